"""Rows at the positions that a mask chooses: read, written over, added up (`chosen`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.chosen import (
    ADD,
    Column,
    Shared,
    by_row,
    chosen_rows,
    counted,
    of_rows,
    resized,
)
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    Shape,
    dimensions,
    fraction,
)
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.routed import Chosen, Read, Where
from shardproof.frontends.aten.rules import TABLE, rule_of
from shardproof.frontends.builder import piecewise


@chosen_rows("aten.nonzero.default")
def _nonzero(lo: Lowering, mask: Lowered) -> Any:
    """Where a mask is true, or whole numbers are not 0; masks that are computed alike have the same
    positions."""
    (((size, _), _),) = lo.expected
    if size not in lo.wheres:
        raise Unsupported("positions of which nothing says how many there are")
    if lo.wheres[size] is None:
        lo.expected = [(mask.shape, "bool")]
        flags = mask if mask.dtype == "bool" else TABLE["aten.ne.Scalar"](lo, mask, 0)
        lo.wheres[size] = Where(flags, size)
    return lo.wheres[size]


@dataclass(frozen=True, slots=True)
class _Places:
    """Dimensions ``first`` and those behind it of a tensor are positions of ``columns`` of a mask.

    Example: of ``weights[rows, k]`` they are dimensions 0 and 1.
    """

    where: Where
    first: int
    columns: tuple[int, ...]

    def spread(self, lo: Lowering, x: Lowered) -> Any:
        """The entries of ``x`` at all positions of the mask, in one dimension instead of these."""
        mask = self.where.mask.shape
        lead, trail = x.shape[: self.first], x.shape[self.first + len(self.columns) :]
        order = [self.columns.index(d) for d in sorted(self.columns)]
        turned = lo.permute(x, self._order(len(x.shape), order))
        sizes = tuple(n if d in self.columns else 1 for d, n in enumerate(mask))
        wide = lo.reshape(turned, (*lead, *sizes, *trail))
        wide = lo.expand(wide, (*lead, *mask, *trail))
        return lo.reshape(wide, (*lead, prod(mask), *trail))

    def added(self, lo: Lowering, rows: Lowered, shape: Shape) -> Any:
        """Entries at all positions of the mask, added up in a tensor of a shape."""
        mask = self.where.mask.shape
        lead, trail = shape[: self.first], shape[self.first + len(self.columns) :]
        wide = lo.reshape(rows, (*lead, *mask, *trail))
        gone = [self.first + d for d in range(len(mask)) if d not in self.columns]
        total = lo.sum(wide, gone) if gone else wide
        order = [sorted(self.columns).index(d) for d in self.columns]
        return lo.permute(total, self._order(len(shape), order))

    def _order(self, rank: int, order: Sequence[int]) -> tuple[int, ...]:
        """These dimensions of a tensor in another order."""
        last = self.first + len(order)
        return (*range(self.first), *(self.first + d for d in order), *range(last, rank))

    def once(self, lo: Lowering) -> bool:
        """Whether every entry is at one position at most."""
        mask = self.where.mask
        gone = [d for d, n in enumerate(mask.shape) if d not in self.columns and n > 1]
        if not gone:
            return True
        if not isinstance(mask, Ids) or len(gone) > 1:
            return False
        true = piecewise.compare("NE", mask.function, piecewise.constant(mask.function, 0))
        many = sum(p.high - p.low for p in true if p.offset)
        dim: int | None = lo.distinct.get(mask.origin.number)
        for name, given in mask.moves:
            if name != "permute" or dim is None:
                return False
            dim = list(given).index(dim)
        return many == 1 and dim == gone[0]


def _places(x: Lowered, indices: Sequence[Any]) -> tuple[_Places, Shape]:
    """Which positions indices are, and the shape that they have."""
    columns = [(d, i) for d, i in enumerate(indices) if i is not None]
    if isinstance(x, Chosen) or not all(isinstance(i, Column) for _, i in columns):
        raise Unsupported("an index by positions of which data says how many there are, and others")
    dims, own = [d for d, _ in columns], [i for _, i in columns]
    where, shape = own[0].where, own[0].shape
    follow = dims == list(range(dims[0], dims[0] + len(dims)))
    alike = all(i.where is where and i.shape == shape for i in own)
    fit = all(x.shape[d] == where.mask.shape[i.dim] for d, i in columns)
    once = len({i.dim for i in own}) == len(own)
    if not (follow and alike and fit and once):
        raise Unsupported("an index by positions of other dimensions")
    return _Places(where, dims[0], tuple(i.dim for i in own)), shape


@chosen_rows("aten.index.Tensor")
def _index(lo: Lowering, x: Lowered, indices: Sequence[Any]) -> Any:
    """Entries at positions, such as ``weights[rows, k]``."""
    places, _ = _places(x, indices)
    ((shape, _),) = lo.expected
    rows = of_rows(lo, lo.reshape(places.spread(lo, x), resized(lo, shape)), shape)
    return replace(rows, read=Read(x, places))


@chosen_rows("aten.index_select.default")
def _index_select(lo: Lowering, x: Lowered, dim: int, index: Any) -> Any:
    (at,) = dimensions(x.shape, dim)
    return _index(lo, x, [*[None] * at, index])


@chosen_rows("aten.index_put.default", "aten._unsafe_index_put.default")
@chosen_rows("aten._index_put_impl.default")
def _index_put(
    lo: Lowering,
    x: Lowered,
    indices: Sequence[Any],
    values: Any,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    """Entries that are written over, or added to, those at positions.  Two that are written over
    one another are refused: which one is there in the end is not said."""
    places, shape = _places(x, indices)
    if not accumulate and not places.once(lo):
        raise Unsupported("rows that are written over each other: several may be at one position")
    last = places.first + len(places.columns)
    full = (*x.shape[: places.first], *shape, *x.shape[last:])
    rows = _every(lo, values, places.where, full)
    zero = isinstance(x, Const) and x.value == 0
    if shape == (places.where.size,):
        if not accumulate and isinstance(rows.rows, Const) and rows.rows.value == 0:
            return Share(x, places, left=True)
        if accumulate and zero and _read_at(rows, x, places):
            assert rows.read is not None
            return Share(rows.read.base, places, left=False, more=rows.read.more)
    more = None if accumulate else _more(rows, x, places)
    rows = rows if more is None else more
    flat = (*full[: places.first], places.where.size, *full[places.first + len(shape) :])
    rows = replace(rows, rows=lo.reshape(rows.rows, resized(lo, flat)), at=places.first)
    added = places.added(lo, rows.counted(lo), x.shape)
    if zero:
        return added
    over = accumulate or more is not None
    return lo.add(x if over else _kept(lo, x, places), added)


def _read_at(rows: Chosen, x: Lowered, places: _Places) -> bool:
    """Whether rows were read at places of a tensor of the shape of ``x``."""
    read = rows.read
    return read is not None and read.places == places and read.base.shape == x.shape


def _more(rows: Chosen, x: Lowered, places: _Places) -> Chosen | None:
    """What was added to rows that were read where they are written; None: they were not.

    Example: of ``y[rows] = y[rows] + z`` it is ``z``.
    """
    read = rows.read
    return read.more if read is not None and (read.base, read.places) == (x, places) else None


@dataclass(frozen=True, slots=True, eq=False)
class Share(Shared):
    """Of ``base`` what is ``left`` where entries at ``places`` are 0, or these entries alone, with
    ``more`` added to them: a gradient that goes on beside rows that were written over, and through
    them.  Both together are the base, and ``more``.

    Example: of ``y[rows] += z`` the gradient of ``y`` goes through what is not written, and through
    what is read to be written back.
    """

    base: Lowered
    places: _Places
    left: bool
    more: Chosen | None = None

    @property
    def shape(self) -> Shape:
        """That of the tensor."""
        return self.base.shape

    @property
    def dtype(self) -> str:
        """That of the tensor."""
        return self.base.dtype

    def real(self, lo: Lowering) -> Real:
        """The numbers, by the mask."""
        if self.left:
            return lo.real(_kept(lo, self.base, self.places))
        rows = Chosen(self.places.spread(lo, self.base), self.places.where, self.places.first)
        own = self.places.added(lo, rows.counted(lo), self.shape)
        return lo.real(own if self.more is None else lo.add(own, self.added(lo)))

    def added(self, lo: Lowering) -> Any:
        """What was added to the entries."""
        assert self.more is not None
        return self.places.added(lo, self.more.counted(lo), self.shape)

    def beside(self, lo: Lowering, other: Share) -> Any:
        """The sum with the other share; None: it is no such share."""
        one = (self.base, self.places) == (other.base, other.places)
        if not one or self.left == other.left or not self.places.once(lo):
            return None
        part = other if self.left else self
        return self.base if part.more is None else lo.add(self.base, part.added(lo))


@chosen_rows(ADD)
def _add(lo: Lowering, x: Any, y: Any, alpha: float = 1) -> Any:
    """A sum of rows, of which it is still known what was added to what was read somewhere; of two
    shares of a tensor; or of numbers."""
    rule = rule_of(ADD)
    assert rule is not None
    given = {} if alpha == 1 else {"alpha": alpha}
    if isinstance(x, Share) and isinstance(y, Share) and alpha == 1:
        both = x.beside(lo, y)
        if both is not None:
            return both
    x, y = (z.real(lo) if isinstance(z, Share) else counted(lo, z) for z in (x, y))
    if not isinstance(x, Chosen) and not isinstance(y, Chosen):
        return rule(lo, x, y, **given)
    made = by_row(lo, rule, [x, y], given)
    for read, more in ((x, y), (y, x)):
        alike = isinstance(read, Chosen) and isinstance(more, Chosen) and read.shape == more.shape
        if alpha == 1 and alike and read.read is not None:
            if read.read.more is not None:
                more = by_row(lo, rule, [read.read.more, more], {})
            return replace(made, read=replace(read.read, more=more))
    return made


def _every(lo: Lowering, values: Any, where: Where, full: Shape) -> Chosen:
    """Values for every position that is written."""
    if isinstance(values, Chosen):
        if values.where is not where or values.shape != full:
            raise Unsupported("rows that are written at positions of other rows")
        return values
    if not hasattr(values, "shape") or isinstance(values, (Where, Column)):
        raise Unsupported("positions that are written")
    at = full.index(where.size)
    return Chosen(lo.expand(values, resized(lo, full)), where, at)


def _kept(lo: Lowering, x: Lowered, places: _Places) -> Any:
    """What is left of a tensor where nothing is written."""
    shape = tuple(x.shape[places.first + n] for n in range(len(places.columns)))
    written = places.where.numbers(lo, x.dtype)
    mask = _Places(places.where, 0, places.columns).added(lo, written, shape)
    rest = len(x.shape) - places.first - len(shape)
    return lo.mul(x, lo.expand(lo.reshape(inverse(lo, mask), (*shape, *[1] * rest)), x.shape))


@chosen_rows("aten.index_add.default")
def _index_add(
    lo: Lowering, x: Lowered, dim: int, index: Any, source: Any, alpha: float = 1
) -> Any:
    """Rows that are added to those at positions, however many are added to one."""
    (at,) = dimensions(x.shape, dim)
    places, _ = _places(x, [*[None] * at, index])
    rows = _every(lo, source, places.where, (*x.shape[:at], places.where.size, *x.shape[at + 1 :]))
    added = places.added(lo, rows.counted(lo), x.shape)
    return lo.add(x, added, fraction(alpha))
