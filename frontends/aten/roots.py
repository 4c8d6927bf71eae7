"""Squares of roots: a norm that is squared again is the sum of squares that it is the root of.

Norms of shards are squared, added up and rooted again (``clip_grad_norm_`` of DTensors), and norms
of tensors are stacked, of which the norm is taken.  Such a root is of a sum of squares, which is
never negative, so its square is that sum: nothing is lost but a root that nobody reads.

A root times a number that is itself a root of a fraction is one root: Adam's second moments are
divided by their correction before the root is taken, or by its root afterwards.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.irrational import MOST, root, squared
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real
from shardproof.frontends.aten.rules import lowers

#: Operators whose result is their operand, or part of it, moved.
VIEWS: Final = frozenset({"view", "slice", "permute", "expand"})
#: Fractions whose roots are recognised, and how far from these a number may be by rounding.
MOST_DENOMINATOR: Final = 1 << 20
ROUNDING: Final = Fraction(1, 1 << 50)
#: Operators that give nothing negative of what is not negative.
_KEEPING: Final = VIEWS | {"sum", "concat", "add", "all_reduce"}


def maker(lo: Lowering, number: int) -> Op | None:
    """The operator that made a value (None: it is an input).

    Example: of the value of ``x.pow(2).sum()`` it is ``sum``, of ``x`` None.
    """
    return next((op for op in reversed(lo.ops) if number in op.outputs), None)


def origin(lo: Lowering, number: int) -> Op | None:
    """The operator that made what a value is a view of (None: it is an input).

    Example: of ``x.sum().reshape(1, 1)`` it is ``sum``.
    """
    op = maker(lo, number)
    while op is not None and op.name in VIEWS:
        op = maker(lo, op.inputs[0])
    return op


def value(lo: Lowering, number: int) -> Real:
    """A value by its number.

    Example: an operator's operand, of the shape and type that it has.
    """
    return Real(number, lo.values[number].shape, lo.values[number].dtype)


def square(lo: Lowering, x: object) -> Real | None:
    """The square of a value that is made of roots of sums of squares, and of numbers, by moving and
    scaling; None of any other.

    Example: of ``torch.linalg.vector_norm(x)`` it is ``sum(x * x)``, of its half a quarter of that;
    of ``sum(x).sqrt()`` None: the sum may be negative.
    """
    if not isinstance(x, Real):
        return None
    op = maker(lo, x.number)
    if op is None or op.backward:
        return None
    if op.name == "sqrt":
        (inner,) = op.inputs
        return value(lo, inner) if _never_negative(lo, inner) else None
    other = op.attrs.get("other")
    if op.name == "add":
        number = _filled(lo, op)
        return None if number is None else lo.real(Const(number**2, x.shape, x.dtype))
    scaled = op.name == "mul" and len(op.inputs) == 1 and isinstance(other, int | Fraction)
    # No other operator is looked behind: its operands may be all that a deep model has computed.
    if not scaled and op.name not in VIEWS and op.name != "concat":
        return None
    parts = [square(lo, value(lo, n)) for n in op.inputs]
    known = [part for part in parts if part is not None]
    if not parts or len(known) < len(parts):
        return None
    if scaled and isinstance(other, int | Fraction):
        return lo.real(lo.scale(known[0], _squared(lo, Fraction(other))))
    return lo.emits(op.name, known, op.attrs)[0]


def scaled(lo: Lowering, x: Lowered, factor: Fraction) -> Any:
    """``x`` times a number: a root, or a view of one, times a root of a fraction as the root of
    both.

    Example: ``v.sqrt() / 0.001**0.5`` is ``(v * 1000).sqrt()``, ``v.rsqrt() / 2**0.5`` is
    ``(v * 2).rsqrt()``; ``v.sqrt() * 3`` is that.
    """
    fraction = squared(factor) if factor > 0 and isinstance(x, Real) else None
    inside = None if fraction is None else _inside(lo, lo.real(x), fraction)
    if fraction is None or inside is None:
        return lo.scale(x, factor)
    _note(lo, factor, fraction)
    return inside


def _inside(lo: Lowering, x: Real, fraction: Fraction) -> Real | None:
    """A root times that of a fraction, as one; None: ``x`` is no root."""
    op = maker(lo, x.number)
    if op is None or op.backward:
        return None
    operand = value(lo, op.inputs[0])
    if op.name in ("sqrt", "rsqrt"):
        power = fraction if op.name == "sqrt" else 1 / fraction
        return lo.emit(op.name, lo.real(lo.scale(operand, power)))
    inner = _inside(lo, operand, fraction) if op.name in VIEWS else None
    return None if inner is None else lo.emits(op.name, [inner], op.attrs, x.dtype)[0]


def _filled(lo: Lowering, op: Op) -> Fraction | None:
    """The number that a value is at all places, as `Lowering.real` writes constants; None: it is
    none.

    Example: 0, the norm of a rank that has nothing of a tensor, where the others have their norms.
    """
    other = op.attrs.get("other")
    zero = maker(lo, op.inputs[0]) if len(op.inputs) == 1 else None
    if zero is None or zero.name != "mul" or zero.backward or "alpha" in op.attrs:
        return None
    nothing = len(zero.inputs) == 1 and zero.attrs.get("other") == 0
    return Fraction(other) if nothing and isinstance(other, int | Fraction) else None


def _squared(lo: Lowering, factor: Fraction) -> Fraction:
    """The square of a constant; of the nearest number to a root of a fraction, that fraction."""
    exact = factor**2
    near = exact.limit_denominator(MOST_DENOMINATOR)
    if near == exact or not near or abs(exact / near - 1) > ROUNDING:
        return exact
    _note(lo, factor, near)
    return near


def _note(lo: Lowering, factor: Fraction, near: Fraction) -> None:
    lo.notes.setdefault(
        f"{float(factor)!r} is read as the root of {near}, which it is but for rounding"
    )


def _never_negative(lo: Lowering, number: int) -> bool:
    """Whether a value is a sum of squares by the operators that made it."""
    op = maker(lo, number)
    if op is None or op.backward:
        return False
    if op.name == "mul" and len(op.inputs) == 2:
        return op.inputs[0] == op.inputs[1] or all(_never_negative(lo, n) for n in op.inputs)
    if op.name == "mul" or (op.name == "add" and len(op.inputs) == 1):
        other = op.attrs.get("other")
        if not isinstance(other, int | Fraction) or other < 0:
            return False
    elif op.name not in _KEEPING or op.attrs.get("op", "sum") != "sum" or "alpha" in op.attrs:
        return False
    return all(_never_negative(lo, n) for n in op.inputs)


@lowers("aten.sqrt.default", "aten.sqrt.out")
def _sqrt(lo: Lowering, x: Lowered) -> Any:
    return _root(x, 1) or lo.unary("sqrt", x)


@lowers("aten.rsqrt.default", "aten.rsqrt.out")
def _rsqrt(lo: Lowering, x: Lowered) -> Any:
    return _root(x, -1) or lo.unary("rsqrt", x)


def _root(x: Lowered, power: int) -> Const | None:
    """The root of a number, or of one divided by it; None: ``x`` is no such number."""
    if not isinstance(x, Const) or x.value <= 0 or max(x.value.as_integer_ratio()) > MOST:
        return None
    return Const(root(x.value**power), x.shape, x.dtype)
