"""Quotients that are 0 where what they are divided by is 0, as the gradients of norms are.

PyTorch's norm gives ``x * (g / n).masked_fill(n == 0, 0)`` back, a root of a sum of squares by hand
``x * (g / n)``.  Numbers are real to us and a quotient by 0 is none, so a choice that puts 0 there
says nothing of it: both are one value, where that is a number, which is printed.
"""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Const, Lowering, Operand, Real
from shardproof.frontends.aten.positive import LEFT_OUT
from shardproof.frontends.aten.roots import maker


def quotient(lo: Lowering, mask: object, x: Operand, y: Operand) -> Real | None:
    """What ``torch.where(mask, x, y)`` is, where one of both is 0 and the other one a quotient, and
    the mask says where that is divided by 0; None: it is another choice.

    Example: ``torch.where(n == 0, 0, g / n)`` is ``g / n``; with ``n > 0``, or with 1 for 0, it is
    none such.
    """
    if not isinstance(mask, Real):
        return None
    for zero, other, equal in ((x, y, True), (y, x, False)):
        if not isinstance(other, Real) or not _is_zero(zero):
            continue
        divisor = _divisor(lo, other.number)
        if divisor is not None and divisor == _compared(lo, mask.number, equal):
            lo.notes.setdefault(LEFT_OUT)
            return other
    return None


def _is_zero(x: Operand) -> bool:
    number = x.value if isinstance(x, Const) else x
    return isinstance(number, (int, float, Fraction)) and number == 0


def _divisor(lo: Lowering, number: int) -> int | None:
    """What a value is divided by; None: it is no quotient."""
    op = maker(lo, number)
    if op is None or op.backward or op.name != "div" or len(op.inputs) != 2:
        return None
    return op.inputs[1]


def _compared(lo: Lowering, number: int, equal: bool) -> int | None:
    """The value that a mask compares with 0: is it that (``equal``), or another number?  None: the
    mask is another one.  It is the square of the value's sign, or 1 less that."""
    op: Op | None = maker(lo, number)
    if equal:
        for name, other in (("add", 1), ("mul", -1)):
            if op is None or op.backward or (op.name, op.attrs.get("other")) != (name, other):
                return None
            op = maker(lo, op.inputs[0])
    squared = op is not None and not op.backward and op.name == "mul" and len(op.inputs) == 2
    return _of_sign(lo, op) if op is not None and squared else None


def _of_sign(lo: Lowering, square: Op) -> int | None:
    """What the square of a sign is the sign of."""
    first, second = (maker(lo, n) for n in square.inputs)
    if first is None or second is None or not (first.backward and second.backward):
        return None
    signs = first.name == second.name == "abs"
    return first.inputs[0] if signs and first.inputs[0] == second.inputs[0] else None
