"""Which values may be minus infinity somewhere: scores that a mask hides, and what is made of them.

Numbers are real, so none is infinite, but for hidden scores until a softmax has read them.
"""

from __future__ import annotations

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Lowering, Operand, Real, floating, is_symbolic
from shardproof.frontends.aten.roots import maker

#: What is finite of minus infinity, too.
FINITE = frozenset({"exp", "sigmoid", "tanh", "erf", "relu", "softmax"})


def finite(lo: Lowering, x: Operand, question: str) -> None:
    """Raise `Unsupported` where a value may be minus infinity; ``question``: what wants to know.

    Example: of ``scores.masked_fill(mask, -inf)``, or of twice that; its softmax is finite.
    """
    if may_be_infinite(lo, x):
        raise Unsupported(f"{question} of what may be minus infinity where a mask hides it")


def may_be_infinite(lo: Lowering, x: Operand) -> bool:
    """Whether a value may be minus infinity somewhere.

    Example: ``scores.masked_fill(mask, -inf)`` may, and ``torch.full((4, 4), -inf).triu(1)``;
    scores that are an input may not.
    """
    hidden = is_symbolic(x) and floating(x.dtype)
    return hidden or (isinstance(x, Real) and _depends_on_hidden(lo, x.number))


def _depends_on_hidden(lo: Lowering, number: int) -> bool:
    """Whether a value depends on hidden scores in another way than through finite functions, or
    the largest of each row of them."""
    wanted = {number}
    for op in reversed(lo.ops):
        if wanted.isdisjoint(op.outputs) or op.backward or op.name in FINITE:
            continue
        if op.name == "amax" and _reads_rows(lo, op):
            continue
        if op.name == "apply_mask":
            return True
        wanted.update(op.inputs)
    return False


def _reads_rows(lo: Lowering, op: Op) -> bool:
    """Whether a maximum is that of whole rows of scores that a mask hides some of: every row of
    these shows a key (`attention.hide`)."""
    (scores,) = op.inputs
    rank = len(lo.values[scores].shape)
    over = op.attrs.get("dim")
    return isinstance(over, tuple) and rank - 1 in over and _hides_keys(lo, scores)


def _hides_keys(lo: Lowering, number: int) -> bool:
    """Whether a value is scores as a mask leaves them, or some of them above others."""
    op, shape = maker(lo, number), lo.values[number].shape
    if op is None or op.backward:
        return False
    if op.name == "concat":
        beside = op.attrs.get("dim") == len(shape) - 1
        return not beside and all(_hides_keys(lo, x) for x in op.inputs)
    if op.name == "view" and lo.values[op.inputs[0]].shape[-2:] == shape[-2:]:
        return _hides_keys(lo, op.inputs[0])
    return op.name == "apply_mask"
