"""Dimensions represented by fewer positions than they have, and arrays over them.

A *factor* lists weights: its i-th representative stands for ``weights[i]`` consecutive positions,
at all of which the tensor is equal.  A *dimension* is a row-major product of factors, outermost
first: a representative of ``((2,), (1, 1))`` stands for two positions that are two apart.  Factors
are kept in a normal form, so that equal dimensions have equal representations: factors of size 1
are dropped, and two neighbours are joined where their product is again made of consecutive
positions.  A dimension whose weights are all 1 is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any, Final, Self

from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported

Factor = tuple[int, ...]
Dim = tuple[Factor, ...]

#: Dimensions of which normal form and weights are kept: a program has few distinct ones.
MOST_KEPT: Final = 512


class Joined(tuple[int, ...]):
    """A factor that is several dimensions one after the other, each with factors of its own: its
    weights are theirs, but what one of them stands for need not be consecutive positions.

    Example: ``((2,),)`` and ``((1, 1),)`` one after the other: weights (2, 1, 1), four positions.
    """

    parts: tuple[Dim, ...]

    def __new__(cls, parts: Sequence[Dim]) -> Self:
        joined = super().__new__(cls, (w for part in parts for w in weights(part)))
        joined.parts = tuple(parts)
        return joined

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joined) and self.parts == other.parts

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.parts)


class Extent(int):
    """The true size of a dimension, as an integer that remembers how it is represented.

    Example: ``Extent(((2,), (1, 1)))`` is 4, and its ``dim`` is ``((2,), (1, 1))``.

    Operator code that broadcasts to ``reading.shape(x)[i]`` thereby broadcasts to the
    representatives of that very dimension; arithmetic gives plain integers.
    """

    dim: Dim

    def __new__(cls, dim: Dim) -> Self:
        extent = super().__new__(cls, prod(sum(factor) for factor in dim))
        extent.dim = dim
        return extent


@dataclass(frozen=True, eq=False)
class Weighted:
    """An array of representatives and its dimensions, which are brought to normal form.

    Example: ``Weighted(np.array([1.0, 2.0]), (((3, 5),),))``: 8 entries, three of 1 and five of 2;
    their sum is 13.

    Raises `ValueError` unless the array has one entry per combination of representatives.
    """

    data: NDArray[Any]
    dims: tuple[Dim, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(normal(dim) for dim in self.dims))
        if self.data.shape != tuple(count(dim) for dim in self.dims):
            raise ValueError(f"an array of shape {self.data.shape} cannot have dims {self.dims}")

    @cached_property
    def shape(self) -> tuple[Extent, ...]:
        """The true shape."""
        return tuple(Extent(dim) for dim in self.dims)


def exact(data: NDArray[Any]) -> Weighted:
    """An array with every position representing itself.

    Example: of an array of shape (2, 3) the dimensions ``((1, 1),)`` and ``((1, 1, 1),)``.
    """
    return Weighted(data, tuple(unit(n) for n in data.shape))


def unit(size: int) -> Dim:
    """A dimension whose every position represents itself.

    Example: of 4 positions the weights are 1, 1, 1 and 1.
    """
    return normal(((1,) * size,))


def count(dim: Dim) -> int:
    """The number of representatives of a dimension.

    Example: ``((2,), (1, 1))`` has 2, which stand for 4 positions.
    """
    return prod(len(factor) for factor in dim)


def is_exact(dim: Dim) -> bool:
    """Whether every position of a dimension represents itself alone.

    Example: ``((1, 1),)`` is, ``((2,), (1, 1))`` is not.
    """
    return all(map(_is_unit, dim))


@lru_cache(MOST_KEPT)
def weights(dim: Dim) -> tuple[int, ...]:
    """How many positions each representative of a dimension stands for.

    Example: of ``((2, 3), (1, 1))`` (2, 2, 3, 3).
    """
    return tuple(prod(combination) for combination in product(*dim))


@lru_cache(MOST_KEPT)
def firsts(dim: Dim) -> tuple[int, ...]:
    """The first of the positions that each representative of a dimension stands for.

    Example: of ``((1, 2), (1, 2))``, nine positions, 0, 1, 3 and 4.
    """
    places: tuple[int, ...] = (0,)
    for factor in dim:
        inner, within = sum(factor), _firsts_within(factor)
        places = tuple(place * inner + first for place in places for first in within)
    return places


def _firsts_within(factor: Factor) -> tuple[int, ...]:
    """As `firsts`, of one factor: of several parts, each has its own, behind those before it."""
    if not isinstance(factor, Joined):
        return tuple(sum(factor[:i]) for i in range(len(factor)))
    begins = [sum(int(Extent(part)) for part in factor.parts[:i]) for i in range(len(factor.parts))]
    return tuple(
        begin + first
        for begin, part in zip(begins, factor.parts, strict=True)
        for first in firsts(part)
    )


@lru_cache(MOST_KEPT)
def normal(dim: Dim) -> Dim:
    """The representation that equal dimensions share; raises `ValueError` for weights below 1.

    Example: ``((1,), (1, 1), (1, 1, 1))`` is ``((1, 1, 1, 1, 1, 1),)``, and ``((2,), (3,))`` is
    ``((6,),)``.
    """
    if any(min(factor, default=1) < 1 for factor in dim):
        raise ValueError(f"weights below 1: {dim}")
    if not all(dim):
        return ((),)
    result: list[Factor] = []
    for factor in dim:
        if sum(factor) == 1:
            continue
        joined = factor
        while result and _joins(result[-1], joined):
            joined = _join(result.pop(), joined)
        result.append(joined)
    return tuple(result)


def _joins(outer: Factor, inner: Factor) -> bool:
    """Whether the product of two factors is one."""
    if isinstance(inner, Joined):
        return _is_unit(outer)
    return not isinstance(outer, Joined) and (_is_unit(outer) or len(inner) == 1)


def _is_unit(factor: Factor) -> bool:
    return factor.count(1) == len(factor)


def _join(outer: Factor, inner: Factor) -> Factor:
    """The product, where each of its representatives stands for consecutive positions."""
    if isinstance(inner, Joined):
        return _one_factor(_side_by_side(inner.parts * len(outer)))
    if _is_unit(outer):
        return inner * len(outer)
    return tuple(weight * inner[0] for weight in outer)


def _peel(factor: Factor, inner: int) -> tuple[Factor, Factor]:
    """The factor as a product whose inner factor has size ``inner``; inverse of `_join`."""
    if isinstance(factor, Joined):
        return _peel_joined(factor, inner)
    outer = sum(factor) // inner
    period = factor[: len(factor) // outer]
    if sum(period) == inner and factor == period * outer:
        return (1,) * outer, period
    if all(weight % inner == 0 for weight in factor):
        return tuple(weight // inner for weight in factor), (inner,)
    raise Unsupported(f"a dimension of weights {factor} cannot be split into {outer} x {inner}")


def _peel_joined(factor: Joined, inner: int) -> tuple[Factor, Factor]:
    """As `_peel`, where every part is such a product with one inner factor."""
    if any(Extent(part) % inner for part in factor.parts):
        raise Unsupported(f"a dimension of several parts cannot be split by {inner}")
    split = [regroup([part], (Extent(part) // inner, inner)) for part in factor.parts]
    tails = {tail for _, tail in split}
    if len(tails) > 1 or len(tail := tails.pop()) != 1:
        raise Unsupported(f"a dimension of several parts cannot be split by {inner}")
    return _one_factor(_side_by_side([outer for outer, _ in split])), tail[0]


def _one_factor(dim: Dim) -> Factor:
    if len(dim) == 1:
        return dim[0]
    return Joined([dim]) if dim else (1,)


def _side_by_side(dims: Sequence[Dim]) -> Dim:
    """Dimensions one after the other: one product, where they are one together, else parts, which
    are the same however the positions were divided among ``dims``."""
    parts: list[Dim] = []
    for one in (one for dim in dims for one in _stretches(dim)):
        last = parts[-1] if parts else ()
        if parts and last[1:] == one[1:]:
            parts[-1] = normal(((*last[0], *one[0]), *one[1:]))
        else:
            parts.append(one)
    try:
        return _adjoined(parts)
    except Unsupported:
        return (Joined(parts),)


def _stretches(dim: Dim) -> list[Dim]:
    """A dimension as such of one factor, and such that stand for the same positions again and
    again: ``((1, 2), (1, 1))`` as ``((1, 1),)`` and ``((2,), (1, 1))``."""
    head, *rest = dim or ((1,),)
    if isinstance(head, Joined):
        return [one for part in head.parts for one in _stretches(normal((*part, *rest)))]
    if not rest:
        return [(head,)]
    inner = normal(tuple(rest))
    return [
        one
        for weight in head
        for one in (_stretches(inner) if weight == 1 else [normal(((weight,), *inner))])
    ]


def regroup(dims: Sequence[Dim], sizes: Sequence[int]) -> tuple[Dim, ...]:
    """The dimensions of a row-major reshape to true ``sizes``.

    Example: ``((4, 4),)`` as [2, 4] is ``((1, 1),)`` and ``((4,),)``; ``((3, 5),)`` cannot be split
    so.

    Raises `ShapeMismatch` if the number of elements changes, `Unsupported` where a
    representative would have to be cut.
    """
    have = [int(Extent(dim)) for dim in dims]
    if prod(have) != prod(sizes) or any(n < 0 for n in sizes):
        raise ShapeMismatch(f"reshape of {have} to {[int(n) for n in sizes]}")
    if 0 in sizes:
        return tuple(unit(n) for n in sizes)
    factors = list(normal(tuple(factor for dim in dims for factor in dim)))
    result: list[Dim] = []
    for size in reversed(sizes):
        inner: list[Factor] = []
        need = int(size)
        while need > 1:
            factor = factors.pop()
            total = sum(factor)
            if total > need and total % need == 0:
                outer, factor = _peel(factor, need)
                factors.append(outer)
                total = need
            elif need % total:
                raise Unsupported(f"reshape of {tuple(dims)} to {[int(n) for n in sizes]}")
            inner.append(factor)
            need //= total
        result.append(normal(tuple(reversed(inner))))
    return tuple(reversed(result))


@lru_cache(MOST_KEPT)
def narrow(dim: Dim, start: int, size: int) -> tuple[Dim, slice]:
    """Positions [start, start + size) of a dimension, and the representatives that they have.

    Example: positions [4, 6) of ``((4, 4),)`` are ``((2,),)``, of the representative at 1.

    Of ``((1, 1, 1), (4,))`` positions [2, 8) are the last two of the first four, and the next four.

    Raises `ShapeMismatch` outside the dimension, `Unsupported` where the interval cuts what one
    representative stands for, and needs it as a whole as well.
    """
    total = Extent(dim)
    if start < 0 or size < 0 or start + size > total:
        raise ShapeMismatch(f"positions {start} to {start + size} of a dimension of {total}")
    head, *rest = dim or ((1,),)
    inner, step = Extent(tuple(rest)), count(tuple(rest))
    if isinstance(head, Joined) and start % inner == 0 and size % inner == 0:
        joined, span = _narrow_joined(head, start // inner, size // inner)
        return normal((*joined, *rest)), slice(span.start * step, span.stop * step)
    if start % inner or size % inner:
        return _narrow_within(dim, start, size)
    first, last = start // inner, (start + size) // inner
    kept: list[int] = []
    skipped = end = 0
    for weight in head:
        begin, end = end, end + weight
        overlap = min(end, last) - max(begin, first)
        if overlap > 0:
            kept.append(overlap)
        elif not kept:
            skipped += 1
    return normal((tuple(kept), *rest)), slice(skipped * step, (skipped + len(kept)) * step)


def _narrow_within(dim: Dim, start: int, size: int) -> tuple[Dim, slice]:
    """`narrow` of an interval that begins or ends within a position of the outermost factor: what
    it has of that one, and whole ones beside."""
    head, *rest = dim
    inner, step = Extent(tuple(rest)), count(tuple(rest))
    stop = start + size
    whole = -(-start // inner) * inner, stop // inner * inner
    bounds = sorted({start, stop, *(bound for bound in whole if start < bound < stop)})
    kept: list[Dim] = []
    at: slice | None = None
    for low, high in pairwise(bounds):
        if low % inner or high % inner:
            _, outer = narrow((head,), low // inner, 1)
            part, own = narrow(tuple(rest), low % inner, high - low)
            span = slice(outer.start * step + own.start, outer.start * step + own.stop)
        else:
            part, span = narrow(dim, low, high - low)
        if at is not None and at.stop != span.start:
            raise Unsupported(f"positions {start} to {stop} of {dim}: cut through a factor")
        at = slice(span.start if at is None else at.start, span.stop)
        kept.append(part)
    return _side_by_side(kept), at or slice(0, 0)


def _narrow_joined(factor: Joined, start: int, size: int) -> tuple[Dim, slice]:
    """`narrow` of a factor of several parts."""
    kept: list[Dim] = []
    bounds: list[int] = []
    position = counted = 0
    for part in factor.parts:
        length = int(Extent(part))
        low, high = max(start - position, 0), min(start + size - position, length)
        if low < high:
            cut, own = narrow(part, low, high - low)
            kept.append(cut)
            bounds += [counted + own.start, counted + own.stop]
        position, counted = position + length, counted + count(part)
    return _side_by_side(kept), slice(bounds[0], bounds[-1]) if bounds else slice(0, 0)


def adjoin(dims: Sequence[Dim]) -> Dim:
    """Dimensions one after the other, as one dimension.

    Example: ``((2, 2),)`` and ``((4,),)`` are ``((2, 2, 4),)``.
    """
    try:
        return _adjoined(dims)
    except Unsupported:
        return normal(_side_by_side([normal(dim) for dim in dims if Extent(dim)]))


def _adjoined(dims: Sequence[Dim]) -> Dim:
    """Dimensions one after the other; raises `Unsupported` if their inner factors differ."""
    if any(isinstance(factor, Joined) for dim in dims for factor in dim):
        raise Unsupported("a dimension of several parts")
    parts = [dim or ((1,),) for dim in dims if Extent(dim)]
    rest = max((part[1:] for part in parts), key=len, default=())
    heads = [_outermost(part, rest) for part in parts]
    return normal((tuple(weight for head in heads for weight in head), *rest))


def _outermost(dim: Dim, rest: Dim) -> Factor:
    """The one factor that stands before the inner factors ``rest``."""
    inner = Extent(rest)
    if dim[1:] == rest:
        return dim[0]
    if Extent(dim) % inner == 0:
        outer, tail = regroup([dim], (Extent(dim) // inner, inner))
        if tail == rest and len(outer) < 2:
            return outer[0] if outer else (1,)
    raise Unsupported(f"concatenation of {dim} with what has the inner factors {rest}")
