"""Rows at the positions that a mask chooses: read, written over, added up (`chosen`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    row_by_row,
    without_numbers,
)
from shardproof.frontends.aten.chosen_ids import Numbered, entries, put
from shardproof.frontends.aten.chosen_written import Patched, Places, Share
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.ids import ids as ids_of
from shardproof.frontends.aten.lookups import Kept, Lookup, restricted
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
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
    if isinstance(mask, Chosen):
        return _among(lo, mask, size)
    if lo.wheres[size] is None:
        lo.expected = [(mask.shape, "bool")]
        flags = mask if mask.dtype == "bool" else TABLE["aten.ne.Scalar"](lo, mask, 0)
        lo.wheres[size] = Where(flags, size)
    own = lo.wheres[size]
    if own.mask.shape == mask.shape:
        return own
    if mask.shape not in own.views:
        own.views[mask.shape] = replace(own, mask=lo.reshape(own.mask, mask.shape))
    return own.views[mask.shape]


def _among(lo: Lowering, mask: Chosen, size: int) -> Where:
    """Where a mask of rows that another one chooses is true: where both are."""
    if len(mask.shape) != 1 or mask.dtype != "bool":
        raise Unsupported("positions of anything but a mask, among rows that another mask chooses")
    if lo.wheres[size] is None:
        outer = lo.reshape(mask.where.mask, mask.rows.shape)
        lo.expected = [(mask.rows.shape, "bool")]
        both = TABLE["aten.logical_and.default"](lo, outer, mask.rows)
        lo.wheres[size] = Where(both, size, inside=mask.where.size)
    own: Where = lo.wheres[size]
    if own.inside != mask.where.size:
        raise Unsupported("positions among rows that another mask chooses")
    return own


def _inner(x: Any, indices: Sequence[Any]) -> Where | None:
    """The mask that chooses among the rows of ``x``, by whose positions it is indexed; None: it is
    indexed otherwise."""
    own = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not isinstance(x, Chosen) or len(own) != 1 or not isinstance(own[0][1], Column):
        return None
    ((place, column),) = own
    fits = (place, column.where.inside, column.dim) == (x.at, x.where.size, 0)
    return column.where if fits and column.shape == (column.where.size,) else None


def _places(x: Lowered, indices: Sequence[Any]) -> tuple[Places, Shape]:
    """Which positions indices are, and the shape that they have."""
    columns = [(d, i) for d, i in enumerate(indices) if i is not None]
    if isinstance(x, Chosen) or not all(isinstance(i, Column) for _, i in columns):
        raise Unsupported("an index by positions of which data says how many there are, and others")
    dims, own = [d for d, _ in columns], [i for _, i in columns]
    where, shape = own[0].where, own[0].shape
    follow = dims == list(range(dims[0], dims[0] + len(dims)))
    alike = all(i.where is where and i.shape == shape for i in own)
    fit = all(x.shape[d] == where.mask.shape[i.dim] for d, i in columns) and not where.inside
    once = len({i.dim for i in own}) == len(own) and prod(shape) == where.size
    if not (follow and alike and fit and once):
        raise Unsupported("an index by positions of other dimensions")
    return Places(where, dims[0], tuple(i.dim for i in own)), shape


@chosen_rows("aten.index.Tensor")
def _index(lo: Lowering, x: Any, indices: Sequence[Any]) -> Any:
    """Entries at positions, such as ``weights[rows, k]``; or by ids of rows."""
    inner = _inner(x, indices)
    if inner is not None:
        return Chosen(x.rows, inner, x.at)
    if _by_ids(x, indices):
        return entries(lo, _value(lo, x), indices)
    places, _ = _places(x, indices)
    x = x.under(lo, places) if isinstance(x, Share) else x
    x = x.real(lo) if isinstance(x, Shared) else x
    ((shape, _),) = lo.expected
    rows = of_rows(lo, lo.reshape(places.spread(lo, x), resized(lo, shape)), shape)
    return replace(rows, read=Read(x, places))


def _by_ids(x: Any, indices: Sequence[Any]) -> bool:
    """Whether an index is ids of rows, or of entries of rows."""
    return isinstance(x, Chosen) or any(isinstance(i, (Chosen, Numbered)) for i in indices)


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
    inner = _inner(x, indices)
    if inner is not None:
        return _put_among(lo, x, values, inner, accumulate)
    if _by_ids(x, indices):
        return put(lo, _value(lo, x), indices, values, accumulate)
    places, shape = _places(x, indices)
    if not accumulate and not places.once(lo):
        raise Unsupported("rows that are written over each other: several may be at one position")
    last = places.first + len(places.columns)
    full = (*x.shape[: places.first], *shape, *x.shape[last:])
    rows = _every(lo, values, places.where, full)
    flat = shape == (places.where.size,)
    zero = isinstance(rows.rows, Const) and rows.rows.value == 0
    if flat and not accumulate and zero and not _filled(x):
        return Share(x if isinstance(x, Share) else _value(lo, x), places, left=True)
    before = x if isinstance(x, Patched) else _value(lo, x)
    if accumulate:
        return _accumulated(lo, _value(lo, x), places, shape, rows)
    more = None if rows.read is None else _more(rows, _value(lo, before), places)
    if more is not None:
        return lo.add(_value(lo, before), _spread(lo, before, places, shape, more))
    added = _spread(lo, before, places, shape, rows)
    extended = before.extended(lo, places, added) if isinstance(before, Patched) else None
    return extended or Patched(_value(lo, before), (places,), (added,))


def _filled(x: Lowered) -> bool:
    """Whether a tensor is of rows that masks choose, or zeros that may be filled with such rows."""
    return isinstance(x, Patched) or (isinstance(x, Const) and x.value == 0)


def _put_among(lo: Lowering, x: Any, values: Any, inner: Where, accumulate: bool) -> Any:
    """Rows that a mask chooses, where rows that another mask chooses among them are written over,
    or added to, those at their places."""
    alike = isinstance(values, Chosen) and values.where.size == inner.size and values.at == x.at
    if not alike or values.rows.shape != x.rows.shape:
        raise Unsupported("rows that are written over others, among those that a mask chooses")
    zero = isinstance(x.rows, Const) and x.rows.value == 0
    written, only = values.counted(lo), zero or x.only
    if zero:
        return replace(x, rows=written, read=None, only=only)
    kept = x.rows if accumulate else lo.mul(x.rows, inverse(lo, inner.counts(lo, x.rows, x.at)))
    return replace(x, rows=lo.add(kept, written), read=None, only=only)


def _value(lo: Lowering, x: Lowered) -> Lowered:
    return x.real(lo) if isinstance(x, Shared) else x


def _accumulated(lo: Lowering, x: Lowered, places: Places, shape: Shape, rows: Chosen) -> Any:
    """Entries that are added to those at positions."""
    zero = isinstance(x, Const) and x.value == 0
    if zero and shape == (places.where.size,) and _read_at(rows, x, places):
        assert rows.read is not None
        return Share(rows.read.base, places, left=False, more=rows.read.more)
    added = _spread(lo, x, places, shape, rows)
    return added if zero else lo.add(x, added)


def _spread(lo: Lowering, x: Lowered, places: Places, shape: Shape, rows: Chosen) -> Any:
    """Rows, in the shape of positions, added up where they are from."""
    last = places.first + len(places.columns)
    flat = (*x.shape[: places.first], places.where.size, *x.shape[last:])
    made = replace(rows, rows=lo.reshape(rows.rows, resized(lo, flat)), at=places.first)
    return places.added(lo, made.counted(lo), x.shape)


def _read_at(rows: Chosen, x: Lowered, places: Places) -> bool:
    """Whether rows were read at places of a tensor of the shape of ``x``."""
    read = rows.read
    return read is not None and read.places == places and read.base.shape == x.shape


def _more(rows: Chosen, x: Lowered, places: Places) -> Chosen | None:
    """What was added to rows that were read where they are written; None: they were not.

    Example: of ``y[rows] = y[rows] + z`` it is ``z``.
    """
    read = rows.read
    return read.more if read is not None and (read.base, read.places) == (x, places) else None


@chosen_rows(ADD)
def _add(lo: Lowering, x: Any, y: Any, alpha: float = 1) -> Any:
    """A sum of rows, of which it is still known what was added to what was read somewhere; of two
    shares of a tensor; or of numbers."""
    rule = rule_of(ADD)
    assert rule is not None
    without_numbers(lo, alpha)
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
        if values.where.size != where.size or values.shape != full:
            raise Unsupported("rows that are written at positions of other rows")
        return values
    if not hasattr(values, "shape") or isinstance(values, (Where, Column)):
        raise Unsupported("positions that are written")
    at = full.index(where.size)
    return Chosen(lo.expand(values, resized(lo, full)), where, at)


@chosen_rows("aten.index_add.default")
def _index_add(
    lo: Lowering, x: Lowered, dim: int, index: Any, source: Any, alpha: float = 1
) -> Any:
    """Rows that are added to those at positions, however many are added to one."""
    without_numbers(lo, alpha)
    (at,) = dimensions(x.shape, dim)
    places, _ = _places(x, [*[None] * at, index])
    rows = _every(lo, source, places.where, (*x.shape[:at], places.where.size, *x.shape[at + 1 :]))
    added = places.added(lo, rows.counted(lo), x.shape)
    return lo.add(x, added, fraction(alpha))


@chosen_rows("aten.index_copy.default")
def _index_copy(lo: Lowering, x: Lowered, dim: int, index: Any, source: Any) -> Any:
    """Rows that are written over those at positions."""
    (at,) = dimensions(x.shape, dim)
    return _index_put(lo, x, [*[None] * at, index], source)


@chosen_rows("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(lo: Lowering, x: Lowered, dim: int, index: Any, number: Any) -> Any:
    """A number that is written over rows at positions."""
    without_numbers(lo, number)
    value = number if isinstance(number, Const) else Const(fraction(number), (), x.dtype)
    return _index_copy(lo, x, dim, index, value)


@chosen_rows("aten.embedding.default")
def _embedding(lo: Lowering, table: Any, ids: Any, *given: Any, **named: Any) -> Any:
    """Rows of a table by ids of rows that a mask chooses."""
    if isinstance(table, Chosen) or not isinstance(ids, Chosen):
        raise Unsupported("a table of rows of which data says how many there are")
    inside = _inside(ids, table.shape[0])
    own = [table, inside or ids, *given]
    made = by_row(lo, TABLE["aten.embedding.default"], own, named, alike=True)
    if inside is None or not isinstance(made.rows, Lookup) or not isinstance(ids.where.mask, Ids):
        return made
    return replace(made, rows=restricted(made.rows, ids.where.mask, True), only=True)


@chosen_rows("aten.embedding_dense_backward.default")
def _embedding_gradient(lo: Lowering, gradient: Any, ids: Any, rows: int, *given: Any) -> Any:
    """The gradient of a table, of which rows that the mask does not choose have no part."""
    if not isinstance(gradient, Chosen) or not isinstance(ids, Chosen):
        raise Unsupported("a gradient by ids of rows of which data says how many there are")
    inside, mask = _inside(ids, rows), ids.where.mask
    live: Any
    if inside is not None and isinstance(mask, Ids):
        live = Kept(lo.real(gradient.rows), mask.reshape(inside.rows.shape))
    else:
        live = gradient.counted(lo)
    own = [replace(gradient, rows=live, only=True), inside or ids, rows, *given]
    rule = TABLE["aten.embedding_dense_backward.default"]
    return by_row(lo, rule, own, {}, alike=True, sums=True)


def _inside(x: Chosen, rows: int) -> Chosen | None:
    """Ids of which some choose no row of a table, and the mask is one of the same ids: those that
    it does not choose, of which nothing is read, are one that it chooses.  None: it is not so.

    Example: of ``ids[ids >= 16] - 16`` with ids in [0, 32), those below 16 are 0, not negative.
    """
    own, mask = ids_of(x.rows), x.where.mask
    if own is None or not isinstance(mask, Ids) or prod(mask.shape) != prod(own.shape):
        return None
    low, high = own.span()
    if (low >= 0 and high <= rows) or mask.reshape(own.shape).at() != own.at():
        return None
    live = piecewise.compare("NE", mask.function, piecewise.constant(mask.function, 0))
    first = next((p.low for p in live if p.offset), None)
    if first is None:
        return None
    number = next(p for p in own.function if p.low <= first < p.high).at(first)
    other = piecewise.constant(own.function, number)
    return replace(x, rows=replace(own, function=piecewise.select(live, own.function, other)))


@chosen_rows("aten.gather.default")
def _gather(lo: Lowering, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Whole rows at positions that are repeated; or an entry of each row."""
    (at,) = dimensions(x.shape, dim)
    if not isinstance(index, Column):
        return row_by_row(lo, "aten.gather.default", [x, dim, index])
    return _index_select(lo, x, at, _one_each(index, x.shape, at))


@chosen_rows("aten.scatter_add.default")
def _scatter_add(lo: Lowering, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Whole rows that are added to those at positions that are repeated."""
    (at,) = dimensions(x.shape, dim)
    if not isinstance(index, Column):
        return row_by_row(lo, "aten.scatter_add.default", [x, dim, index, source])
    if index.shape != getattr(source, "shape", ()):
        raise Unsupported("rows that are added up by ids of which data says how many there are")
    return _index_add(lo, x, at, _one_each(index, x.shape, at), source)


def _one_each(index: Column, shape: Shape, at: int) -> Column:
    """Positions that are repeated along all other dimensions, one for each row."""
    if index.shape != (*shape[:at], index.where.size, *shape[at + 1 :]):
        raise Unsupported("positions that are repeated along some of a row")
    return replace(index, shape=(index.where.size,))
