"""Operators on complex tensors, which are pairs of real numbers along a last dimension of size 2.

``pairs`` says of every operand, and last of the result, whether it is complex; others are real.

Example: ``complex.mul.Tensor`` of [n, 2] and [n, 2] is ``(a c - b d, a d + b c)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Operand, dimensions
from shardproof.frontends.aten.rules import lowers, rule_of

ZERO = Fraction(0)
#: Operators that say that a tensor is complex, or is not, and move nothing.
AS_PAIRS: Final = frozenset({"aten.view_as_complex.default", "aten.view_as_real.default"})
#: Operators that give one half, and which.
PARTS: Final = {"aten.real.default": 0, "aten.imag.default": 1}
#: Conjugates that are only marked as such, and the operator that makes them.
CONJUGATE: Final = {"aten._conj.default": "aten.conj_physical.default"}


def halves(lo: Lowering, x: Operand, is_pair: bool) -> tuple[Any, Any]:
    """Real and imaginary part of an operand, which is complex or not; raises `Unsupported` for a
    complex number that is no tensor.

    Example: of pairs [3, 2] two tensors [3]; of a real tensor itself and 0.
    """
    if not is_pair:
        return x, 0
    if isinstance(x, (int, float)):
        raise Unsupported("a complex number that is no tensor")
    last = len(x.shape) - 1
    parts = (lo.slice(x, last, i, 1) for i in range(2))
    first, second = (lo.reshape(part, x.shape[:-1]) for part in parts)
    return first, second


def pair(lo: Lowering, first: Operand, second: Operand) -> Any:
    """A complex tensor of its real and its imaginary part, which broadcast.

    Example: [3] and 0 are pairs [3, 2], whose second numbers are zero.
    """
    a, b, shape = lo.operands(first, second)
    parts = [lo.reshape(lo.expand(x, shape), (*shape, 1)) for x in (a, b)]
    return lo.concat(parts, len(shape))


def _known_zero(x: Operand) -> bool:
    return x == 0 if isinstance(x, (int, float)) else isinstance(x, Const) and not x.value


@lowers("complex.mul.Tensor", "complex.mul.Scalar")
def _mul(lo: Lowering, x: Lowered, y: Operand, *, pairs: Sequence[bool]) -> Any:
    (a, b), (c, d) = halves(lo, x, pairs[0]), halves(lo, y, pairs[1])
    if _known_zero(d):
        return pair(lo, lo.mul(a, c), lo.mul(b, c))
    if _known_zero(b):
        return pair(lo, lo.mul(a, c), lo.mul(a, d))
    return pair(lo, lo.sub(lo.mul(a, c), lo.mul(b, d)), lo.add(lo.mul(a, d), lo.mul(b, c)))


@lowers("complex.div.Tensor", "complex.div.Scalar")
def _div(lo: Lowering, x: Lowered, y: Operand, *, pairs: Sequence[bool]) -> Any:
    """By real numbers, or times the conjugate over the square of the absolute value."""
    (a, b), (c, d) = halves(lo, x, pairs[0]), halves(lo, y, pairs[1])
    if _known_zero(d):
        return pair(lo, lo.div(a, c), lo.div(b, c))
    square = lo.add(lo.mul(c, c), lo.mul(d, d))
    real, other = lo.add(lo.mul(a, c), lo.mul(b, d)), lo.sub(lo.mul(b, c), lo.mul(a, d))
    return pair(lo, lo.div(real, square), lo.div(other, square))


def _added(name: str, sign: int) -> None:
    @lowers(f"complex.{name}.Tensor", f"complex.{name}.Scalar")
    def rule(lo: Lowering, x: Lowered, y: Operand, *, pairs: Sequence[bool]) -> Any:
        (a, b), (c, d) = halves(lo, x, pairs[0]), halves(lo, y, pairs[1])
        return pair(lo, *(lo.add(p, q, Fraction(sign)) for p, q in ((a, c), (b, d))))


_added("add", 1)
_added("sub", -1)


@lowers("complex.neg.default")
def _neg(lo: Lowering, x: Lowered, *, pairs: Sequence[bool]) -> Any:
    return lo.scale(x, Fraction(-1))


@lowers("complex.conj_physical.default")
def _conjugate(lo: Lowering, x: Lowered, *, pairs: Sequence[bool]) -> Any:
    a, b = halves(lo, x, True)
    return pair(lo, a, lo.scale(b, Fraction(-1)))


@lowers("complex.complex.default")
def _complex(lo: Lowering, x: Lowered, y: Lowered, *, pairs: Sequence[bool]) -> Any:
    return pair(lo, x, y)


@lowers("complex.polar.default")
def _polar(lo: Lowering, size: Lowered, angle: Lowered, *, pairs: Sequence[bool]) -> Any:
    return pair(lo, lo.mul(size, lo.unary("cos", angle)), lo.mul(size, lo.unary("sin", angle)))


@lowers("complex.abs.default")
def _abs(lo: Lowering, x: Lowered, *, pairs: Sequence[bool]) -> Any:
    a, b = halves(lo, x, True)
    return lo.unary("sqrt", lo.add(lo.mul(a, a), lo.mul(b, b)))


@lowers("complex.sum.dim_IntList", "complex.sum.default")
def _sum(
    lo: Lowering,
    x: Lowered,
    dim: object = None,
    keepdim: bool = False,
    *,
    pairs: Sequence[bool],
) -> Any:
    return lo.sum(x, dimensions(x.shape[:-1], dim), keepdim)


@lowers("complex.cat.default")
def _cat(lo: Lowering, xs: Sequence[Lowered], dim: int = 0, *, pairs: Sequence[bool]) -> Any:
    if any(len(x.shape) != len(lo.expected[0][0]) for x in xs):
        raise Unsupported("complex tensors beside real ones")
    return lo.concat(xs, dimensions(xs[0].shape[:-1], dim)[0])


@lowers("complex.copy.default")
def _copy(lo: Lowering, x: Lowered, source: Lowered, *, pairs: Sequence[bool]) -> Any:
    """What is written over a tensor, with its sizes."""
    if not pairs[0]:
        raise Unsupported("complex numbers written over real ones")
    whole = source if pairs[1] else pair(lo, source, 0)
    lead = (1,) * (len(x.shape) - len(whole.shape))
    return lo.expand(lo.reshape(whole, (*lead, *whole.shape)), x.shape)


@lowers("complex.gather.default")
def _gather(
    lo: Lowering,
    x: Lowered,
    dim: int,
    index: Lowered,
    sparse_grad: bool = False,
    *,
    pairs: Sequence[bool],
) -> Any:
    """Both halves by the same ids."""
    rule = rule_of("aten.gather.default")
    assert rule is not None
    (at,) = dimensions(x.shape[:-1], dim)
    a, b = halves(lo, x, True)
    return pair(lo, rule(lo, a, at, index), rule(lo, b, at, index))


@lowers("complex.zeros_like.default", "complex.zeros.default", "complex.new_zeros.default")
def _zeros(lo: Lowering, *_: Any, pairs: Sequence[bool], **__: Any) -> Any:
    shape, dtype = lo.expected[0]
    return Const(ZERO, shape, dtype)


@lowers("complex.ones_like.default", "complex.ones.default")
def _ones(lo: Lowering, *_: Any, pairs: Sequence[bool], **__: Any) -> Any:
    shape, dtype = lo.expected[0]
    one = Const(Fraction(1), shape[:-1], dtype)
    return pair(lo, one, 0)


@lowers("complex._to_copy.default")
def _cast(lo: Lowering, x: Lowered, *, pairs: Sequence[bool], **_: Any) -> Any:
    """Between complex types, or of real numbers."""
    if not pairs[-1]:
        raise Unsupported("complex numbers as real ones")
    return x if pairs[0] else pair(lo, x, 0)


def has_meaning(name: str) -> bool:
    """Whether an operator of ATen's has a meaning on complex tensors.

    Example: ``aten.mul.Tensor`` and ``aten.view_as_real.default`` have, ``aten.relu.default`` has
    none.
    """
    moves = name in AS_PAIRS or name in PARTS or name in CONJUGATE
    return (
        moves
        or name == "aten.resolve_conj.default"
        or rule_of(name.replace("aten.", "complex.", 1)) is not None
    )
