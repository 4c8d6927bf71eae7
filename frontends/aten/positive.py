"""Which values are positive by how they are made: there a logarithm is a number."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from fractions import Fraction
from typing import Final

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Const, Lowering, Operand, Real


class Sign(IntEnum):
    """What is known of every entry of a value.

    Example: of ``exp(x)`` it is `POSITIVE`, of ``relu(x)`` `NOT_NEGATIVE`, of ``x`` `ANY`.
    """

    ANY = 0
    NOT_NEGATIVE = 1
    POSITIVE = 2


#: The same entries somewhere else, or sums of them.
_MOVED: Final = frozenset(
    {
        *("view", "slice", "permute", "expand", "concat", "to", "sum", "mean", "amax"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"),
    }
)
_ALWAYS: Final[Mapping[str, Sign]] = {
    **dict.fromkeys(("exp", "sigmoid", "softmax"), Sign.POSITIVE),
    **dict.fromkeys(("relu", "abs"), Sign.NOT_NEGATIVE),
}
#: Functions whose values are positive where their operands are, and not negative likewise.
_KEEPING: Final = frozenset({"sqrt", "rsqrt", "inv", "div"})
#: How far back it is looked.
MOST: Final = 60


def is_positive(lo: Lowering, x: Operand) -> bool:
    """Whether all entries are positive, as far as the operators say so that made them.

    Example: of ``softmax(x)``, a row of it, and ``relu(x) + 1``; not of ``x``, nor of ``relu(x)``.
    """
    if isinstance(x, (Const, bool, int, float)):
        return (x.value if isinstance(x, Const) else x) > 0
    if not isinstance(x, Real):
        return False
    makers = {made: op for op in lo.ops for made in op.outputs}
    return _sign(makers, x.number, MOST) == Sign.POSITIVE


def _sign(makers: Mapping[int, Op], number: int, most: int) -> Sign:
    op = makers.get(number)
    if op is None or op.backward or not most:
        return Sign.ANY
    if op.name in _ALWAYS:
        return _ALWAYS[op.name]
    if op.name == "mul" and len(op.inputs) == 2 and op.inputs[0] == op.inputs[1]:
        return max(Sign.NOT_NEGATIVE, _sign(makers, op.inputs[0], most - 1))
    if op.name not in _MOVED | _KEEPING | {"add", "mul"} or op.attrs.get("op", "sum") != "sum":
        return Sign.ANY
    if not op.inputs or "alpha" in op.attrs:
        return Sign.ANY
    return _joined(op, [_sign(makers, n, most - 1) for n in op.inputs])


def _joined(op: Op, signs: list[Sign]) -> Sign:
    """Of a sum one positive addend is enough; else what all operands are, and the number."""
    if "other" in op.attrs:
        other = op.attrs["other"]
        if not isinstance(other, int | Fraction):
            return Sign.ANY
        positive, negative = other > 0, other < 0
        signs = [
            *signs,
            Sign.POSITIVE if positive else Sign.ANY if negative else Sign.NOT_NEGATIVE,
        ]
    if op.name == "add":
        return max(signs) if min(signs) != Sign.ANY else Sign.ANY
    return min(signs)
