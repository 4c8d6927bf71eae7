"""Which values may be minus infinity somewhere: scores that a mask hides, and what is made of them.

Numbers are real, so none is infinite, but for hidden scores until a softmax has read them.
"""

from __future__ import annotations

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowering, Operand, Real, floating, is_symbolic

#: What is finite of minus infinity, too.
FINITE = frozenset({"exp", "sigmoid", "tanh", "erf", "relu", "softmax"})


def finite(lo: Lowering, x: Operand, question: str) -> None:
    """Raise `Unsupported` where a value may be minus infinity; ``question``: what wants to know.

    Example: of ``scores.masked_fill(mask, -inf)``, or of twice that; its softmax is finite.
    """
    hidden = is_symbolic(x) and floating(x.dtype)
    if hidden or (isinstance(x, Real) and _may_be_infinite(lo, x.number)):
        raise Unsupported(f"{question} of what may be minus infinity where a mask hides it")


def _may_be_infinite(lo: Lowering, number: int) -> bool:
    """Whether a value depends on hidden scores in another way than through finite functions."""
    wanted = {number}
    for op in reversed(lo.ops):
        if wanted.isdisjoint(op.outputs) or op.backward or op.name in FINITE:
            continue
        if op.name == "apply_mask":
            return True
        wanted.update(op.inputs)
    return False
