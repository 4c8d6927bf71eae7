"""Entries that indices choose: rows by ids, positions of one dimension, an entry of each row.

Known indices are positions; those that the input decides are ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import each_row, ids, known, lookups, twofold
from shardproof.frontends.aten.constants import in_turn
from shardproof.frontends.aten.crossed import crossed
from shardproof.frontends.aten.filled import in_column
from shardproof.frontends.aten.lessened import Less, written_back
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, broadcast
from shardproof.frontends.aten.positions import Positions, rows_at, whole
from shardproof.frontends.aten.rules import lowers, rule_of

#: The operator that adds entries at places of one dimension.
ADDING = "aten.scatter_add.default"


def _entries(x: Lowered, indices: Sequence[Lowered | None]) -> Lowered | None:
    """The ids of ``x[arange(n), ids]``; None: the index is another, or known altogether."""
    if len(indices) != 2 or len(x.shape) != 2 or indices[1] is None:
        return None
    every, chosen = indices[0], indices[1]
    if isinstance(every, Positions) and (every.const, every.steps, every.shape) == (
        0,
        (1,),
        x.shape[:1],
    ):
        known_places = isinstance(chosen, Positions) and any(chosen.steps)
        return chosen if chosen.shape == every.shape and not known_places else None
    return None


def _column(x: Lowered, chosen: Lowered) -> int | None:
    """The column that every row chooses of ``x`` [n, v]; None: it is not everywhere the same."""
    number = ids.number_of(chosen)
    if number is None or not -x.shape[1] <= number < x.shape[1]:
        return None
    return number % x.shape[1]


@lowers("aten.index.Tensor")
def _index(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> Any:
    """Rows by ids; or an entry of each row, by all positions and ids."""
    indices = _from_the_front(lo, x, indices)
    own = [(d, i) for d, i in enumerate(indices) if i is not None]
    dim, by = own[0] if len(own) == 1 else (0, x)
    if dim and len(by.shape) > 1:
        flat = _index(lo, x, [*indices[:dim], lo.reshape(by, (prod(by.shape),))])
        return lo.reshape(flat, (*x.shape[:dim], *by.shape, *x.shape[dim + 1 :]))
    along = _dimension(indices)
    if len(indices) == 1 and isinstance(indices[0], Positions) and along is None:
        return rows_at(lo, x, indices[0])
    if len(indices) == 1 and indices[0] is not None and not isinstance(indices[0], Positions):
        index = ids.ids(indices[0])
        return lookups.rows_of(
            lo, x, indices[0] if index is None else ids.wrapped(index, x.shape[0])
        )
    chosen = _entries(x, indices)
    if chosen is None and along is not None:
        return rule_of("aten.index_select.default")(lo, x, along, indices[along])  # type: ignore[misc]
    if chosen is None:
        box = crossed(lo, x, indices)
        at = known.joined(lo, x.shape, indices) if box is None else None
        if at is not None:
            box = known.places_by(lo, x, at)
        if box is None:
            box = twofold.chosen(lo, x, indices)
        return each_row.chosen(lo, x, indices) if box is None else box
    column = _column(x, chosen)
    if column is not None:
        return lo.reshape(lo.slice(x, 1, column, 1), x.shape[:1])
    return lookups.entries_of(lo, x, chosen)


def _from_the_front(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]
) -> list[Lowered | None]:
    """Known indices of one dimension, those that count from its end counted from its front: -1 and
    0 of 16 positions are 15 and 0.  One of several dimensions is as `in_turn` has it."""
    front = list(indices)
    if sum(index is not None for index in indices) == 1:
        front = [_one_number(index) for index in indices]
        front = [
            i if i is None or len(i.shape) < 2 else in_turn(lo, i, x.shape[d])
            for d, i in enumerate(front)
        ]
    for dim, index in enumerate(front):
        if not isinstance(index, Positions) or len(index.shape) != 1 or dim >= len(x.shape):
            continue
        places = [index.const + index.steps[0] * n for n in range(index.shape[0])]
        size = x.shape[dim]
        if not places or not all(-size <= place < size for place in places):
            continue
        places = [place % size for place in places]
        step = places[1] - places[0] if len(places) > 1 else index.steps[0]
        if all(place == places[0] + step * n for n, place in enumerate(places)):
            front[dim] = replace(index, const=places[0], steps=(step,))
    return front


def _one_number(index: Lowered | None) -> Lowered | None:
    """A whole number that chooses along one dimension, as positions: of ``x[:, [-2]]``."""
    if isinstance(index, Const) and index.dtype != "bool" and len(index.shape) == 1:
        return whole(index)
    return index


def _dimension(indices: Sequence[Lowered | None]) -> int | None:
    """The dimension of which one-dimensional ids, none of them negative, choose positions; None:
    indices are others."""
    own = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(own) != 1 or len(own[0][1].shape) != 1:
        return None
    dim, index = own[0]
    if isinstance(index, Positions):
        ends = index.const, index.const + index.steps[0] * (index.shape[0] - 1)
        return dim if min(ends) >= 0 else None
    domain = getattr(index, "domain", None)
    return dim if domain is not None and domain[0] >= 0 else None


def _is_false(mask: Const) -> bool:
    """Whether a mask is true nowhere."""
    return mask.dtype == "bool" and mask.value == 0


@lowers("aten.index_put.default")
def _index_put(
    lo: Lowering,
    x: Lowered,
    indices: Sequence[Lowered | None],
    values: Lowered,
    accumulate: bool = False,
) -> Any:
    """A number where a mask is true; or an entry of each row, less what ids decide."""
    if len(indices) == 1 and isinstance(indices[0], Const) and _is_false(indices[0]):
        return x
    if len(indices) == 2 and isinstance(values, Less) and not accumulate:
        chosen = _entries(x, indices)
        if chosen is not None:
            return written_back(lo, x, chosen, values)
    if len(indices) == 2 and isinstance(values, ids.Ids) and not accumulate:
        chosen = _entries(x, indices)
        if chosen is not None and isinstance(x, Const) and x.value == 0:
            return lookups.entries_written(lo, x, chosen, values)
    if len(indices) == 2 and values.shape == x.shape[:1]:
        chosen = _entries(x, indices)
        zero = isinstance(x, Const) and x.value == 0
        column = _column(x, chosen) if zero and chosen is not None else None
        if column is not None:
            return in_column(lo, values, column, x.shape[1])
        index = None if chosen is None else ids.ids(chosen)
        if index is not None:
            at = lo.reshape(ids.placed_at(index, x.shape[1]), (x.shape[0], 1))
            source = lo.reshape(values, (x.shape[0], 1))
            name = ADDING if zero or accumulate else "aten.scatter.src"
            return rule_of(name)(lo, x, 1, at, source)  # type: ignore[misc]
    indices = _from_the_front(lo, x, indices)
    if accumulate:
        return _added_up_there(lo, x, indices, values)
    put = each_row.written(lo, x, indices, values, "aten.scatter.src")
    return _where_true(lo, x, indices, values) if put is None else put


def _added_up_there(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered
) -> Any:
    """x with what comes to a place added up there."""
    added = twofold.added(lo, x, indices, values)
    if added is None:
        added = _added_places(lo, x, indices, values)
    if added is None:
        added = each_row.written(lo, x, indices, values, ADDING)
    if added is None:
        added = _added(lo, x, indices, values)
    if added is None:
        raise Unsupported("rows that are added where a mask is true")
    return added


def _where_true(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered
) -> Any:
    """One row, or number, written wherever a mask is true."""
    if len(indices) != 1:
        raise Unsupported("index_put of anything but one row where a mask is true")
    (mask,) = indices
    if mask is None or mask.dtype != "bool" or x.shape[: len(mask.shape)] != mask.shape:
        raise Unsupported("index_put by anything but a mask")
    row = x.shape[len(mask.shape) :]
    wide = lo.reshape(mask, (*mask.shape, *(1,) * len(row)))
    if isinstance(values, Const) and values.shape == ():
        return rule_of("aten.masked_fill.Scalar")(lo, x, wide, float(values.value))  # type: ignore[misc]
    given = values.shape[1:] if len(values.shape) == len(row) + 1 else values.shape
    if prod(given) != prod(values.shape) or broadcast(given, row) != row:
        raise Unsupported("index_put of anything but one row where a mask is true")
    every = lo.expand(lo.reshape(values, (*(1,) * (len(x.shape) - len(given)), *given)), x.shape)
    return rule_of("aten.where.self")(lo, lo.expand(wide, x.shape), every, x)  # type: ignore[misc]


def _added_places(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered
) -> Any:
    """``x`` with entries added at known places of several dimensions; None: indices are others."""
    places = known.joined(lo, x.shape, indices)
    placed = None if places is None else known.added_places(lo, values, places, x.shape)
    return None if placed is None else lo.add(x, placed)


def _added(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered) -> Any:
    """``x`` with rows added at ids, which may come again; None: indices are others."""
    indices, values = _in_one_line(lo, *_added_up(lo, x, indices, values))
    along = _dimension(indices)
    if along is not None:
        return rule_of("aten.index_add.default")(lo, x, along, indices[along], values)  # type: ignore[misc]
    if len(indices) == len(x.shape) == 1:  # numbers: rows of one entry
        rows, column = lo.reshape(x, (*x.shape, 1)), lo.reshape(values, (*values.shape, 1))
        added = _added(lo, rows, indices, column)
        return None if added is None else lo.reshape(added, x.shape)
    first = indices[0] if len(indices) == 1 and len(x.shape) == 2 else None
    index = None if first is None else lookups.ids_of(lo, first)
    if index is None or values.shape != (*index.shape, x.shape[1]):
        return None
    at, rule = ids.wrapped(index, x.shape[0]), rule_of("aten.embedding_dense_backward.default")
    return lo.add(x, rule(lo, values, at, x.shape[0], -1, False))  # type: ignore[misc]


def _in_one_line(
    lo: Lowering, indices: Sequence[Lowered | None], values: Lowered
) -> tuple[Sequence[Lowered | None], Lowered]:
    """An index of several dimensions along another dimension than the first, as one of one, and
    what is added there.

    Example: of ``x[:, ids]``, with ids [4, 4] and values [2, 4, 4], ids [16] and values [2, 16].
    """
    own = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    dim, index = own[0] if len(own) == 1 else (0, values)
    size = len(index.shape)
    if not dim or size < 2 or values.shape[dim : dim + size] != index.shape:
        return indices, values
    count = prod(index.shape)
    flat = lo.reshape(values, (*values.shape[:dim], count, *values.shape[dim + size :]))
    return [*indices[:dim], lo.reshape(index, (count,))], flat


def _added_up(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered
) -> tuple[Sequence[Lowered | None], Lowered]:
    """Indices, and what is added there, without the dimensions along which known positions are the
    same: what comes to one place is added up first.

    Example: of the positions 0 to 3 in each of 2 rows, and values [2, 4, 8], the positions 0 to 3
    and the sum [4, 8] over the rows.
    """
    own = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(own) != 1:
        return indices, values
    dim, index = own[0]
    if not isinstance(index, Positions):
        return indices, values
    alike = [d for d, step in enumerate(index.steps) if not step or index.shape[d] == 1]
    if len(index.shape) - len(alike) != 1:
        return indices, values
    if values.shape != (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]):
        return indices, values
    (other,) = (d for d in range(len(index.shape)) if d not in alike)
    at = replace(index, steps=(index.steps[other],), shape=(index.shape[other],))
    kept = [at if d == dim else None for d in range(len(indices))]
    return kept, lo.sum(values, [dim + d for d in alike])
