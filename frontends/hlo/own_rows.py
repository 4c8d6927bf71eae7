"""Known rows of a table that is divided over ranks, each of which keeps those that it has.

XLA looks all rows up on every rank, clamped into the rank's part, and writes zeros over those of
other ranks: ``table[arange(n)]``, an embedding of positions whose rows are divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import elementwise
from shardproof.frontends.hlo.elementwise import finite
from shardproof.frontends.hlo.items import Item, Tensor, table_of
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.movement import placed
from shardproof.frontends.hlo.state import Lowering


class Run(NamedTuple):
    """Positions of a line that are kept, one after the other, and the first row that is there.

    Example: of rows [0, 1, 2, 2, 2, 2] the first three: ``Run(0, 3, 0)``.
    """

    start: int
    size: int
    row: int


def select(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A choice (`elementwise.select`); of known rows, some of which are zeros instead, those that
    are kept, between zeros.

    Example: six rows by {-3, ..., 2}, clamped among three, of which the last three are kept, are
    the table behind three rows of zeros.
    """
    kept = _kept(low, node, xs)
    return elementwise.select(low, node, xs) if kept is None else Tensor(kept)


def _kept(low: Lowering, node: Node, xs: Sequence[Item]) -> int | None:
    mask, one, other = xs
    if not isinstance(mask, Known) or mask.number() is not None:
        return None
    at = 2 if finite(one) == 0 else 1 if finite(other) == 0 else 0
    maker = low.maker(node.operands[at]) if at else None
    if maker is None or maker.target != "gather" or not _whole_rows(low, maker):
        return None
    ids = low.items[maker.operands[1]]
    if not isinstance(ids, Known):
        return None
    shape = low.shape(node)
    offsets = maker.attrs.get("offset_dims", ())
    batch = [d for d in range(len(shape)) if d not in offsets]
    if any(shape[d] != n for d, n in zip(batch, _without(ids.shape, maker), strict=True)):
        return None
    masks = [mask.at(r).astype(bool) == (at == 1) for r in range(low.graph.ranks)]
    lines = [_line(m, ids.at(r), maker, batch) for r, m in enumerate(masks)]
    (dim,) = maker.attrs["start_index_map"]
    count = low.graph.values[maker.operands[0]].shape[dim]
    runs = [None if line is None else _run(line, count) for line in lines]
    if any(run is None or line is None for run, line in zip(runs, lines, strict=True)):
        return None
    own = [run for run in runs if run is not None]
    along = {line[0] for line in lines if line is not None}
    if len({run.size for run in own}) > 1 or len(along) > 1:
        return None
    return _placed(low, maker, own, batch, along.pop(), shape)


def _whole_rows(low: Lowering, node: Node) -> bool:
    """Whether a gather is of whole rows, by one index each."""
    attrs, shape = node.attrs, low.graph.values[node.operands[0]].shape
    if len(attrs["start_index_map"]) != 1 or attrs.get("operand_batching_dims", ()):
        return False
    (dim,) = attrs["start_index_map"]
    whole = tuple(1 if d == dim else n for d, n in enumerate(shape))
    return bool(attrs["slice_sizes"] == whole and attrs.get("collapsed_slice_dims", ()) == (dim,))


def _without(shape: Shape, node: Node) -> Shape:
    """The shape of indices without the dimension of their vectors."""
    return tuple(n for d, n in enumerate(shape) if d != node.attrs["index_vector_dim"])


def _line(
    mask: Array, ids: Array, node: Node, batch: Sequence[int]
) -> tuple[int, Array, Array] | None:
    """Along which dimension of the result rows differ, and there which are kept and what their
    numbers are; None: they differ along several, or a row is kept in part."""
    offsets = tuple(d for d in range(mask.ndim) if d not in batch)
    if not np.array_equal(mask.all(axis=offsets), mask.any(axis=offsets)):
        return None
    kept = np.asarray(mask.all(axis=offsets))
    rows = ids.reshape(_without(ids.shape, node)).astype(np.int64)
    moving = [e for e in range(rows.ndim) if _moves(rows, e) or _moves(kept, e)]
    if len(moving) != 1:
        return None
    at = tuple(slice(None) if e == moving[0] else 0 for e in range(rows.ndim))
    return batch[moving[0]], kept[at], rows[at]


def _moves(array: Array, dim: int) -> bool:
    first = np.take(array, [0], axis=dim)
    return not np.array_equal(np.broadcast_to(first, array.shape), array)


def _run(line: tuple[int, Array, Array], count: int) -> Run | None:
    """What is kept of a line, as one run of a table of so many rows; None: it is none."""
    _, kept, rows = line
    (at,) = np.nonzero(kept)
    if not at.size:
        return None
    numbers = np.clip(rows[at], 0, count - 1)
    counted = np.arange(at.size)
    if not (np.array_equal(at, at[0] + counted) and np.array_equal(numbers, numbers[0] + counted)):
        return None
    return Run(int(at[0]), int(at.size), int(numbers[0]))


def _placed(
    low: Lowering, node: Node, runs: Sequence[Run], batch: Sequence[int], along: int, shape: Shape
) -> int:
    """The rows of each rank in a tensor of this shape, between zeros."""
    (dim,) = node.attrs["start_index_map"]
    value, size = low.tensor(low.items[node.operands[0]]), runs[0].size
    if size < low.recorder.shape(value)[dim]:
        start = table_of([run.row for run in runs])
        value = low.recorder.op("slice", value, dim=dim, start=start, size=size)
    offsets = list(node.attrs.get("offset_dims", ()))
    box = tuple(size if d == along else n for d, n in enumerate(shape))
    value = low.values.broadcast(value, [*offsets[:dim], along, *offsets[dim:]], box)
    dtype = low.graph.values[node.results[0]].dtype
    zero = Known((np.broadcast_to(np.array(0, dtype="float32"), shape),), dtype)
    starts = [table_of([run.start if d == along else 0 for run in runs]) for d in range(len(shape))]
    return placed(low, zero, value, starts, shape)
