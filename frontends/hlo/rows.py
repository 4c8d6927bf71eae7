"""Gathers and scatters of rows whose numbers are known while the program is read: a slice, a frame.

``x[..., 0]`` and ``table[jnp.arange(n)]`` are gathers in HLO, and their derivatives scatters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank, Shape
from shardproof.frontends.graphs.recorder import fingerprint
from shardproof.frontends.hlo import (
    boxes,
    indices,
    lookups,
    many_rows,
    picked,
    scatters,
    segments,
)
from shardproof.frontends.hlo.items import Ids, Item, Tensor, table_of
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.many_rows import MOST_APART
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.movement import framed, placed
from shardproof.frontends.hlo.state import Lowering
from shardproof.frontends.hlo.viewed import viewed


class Rows(NamedTuple):
    """Known rows of a tensor. ``dim``: along which they lie; ``starts``: the first row on every
    rank; ``along``: which dimension of the index (without that of index vectors) counts on from
    there (-1: none does); ``size``: how many rows.

    Example: rows 2 and 3 by the index ``{{2}, {3}}`` are ``Rows(0, (2,), 0, 2)``.
    """

    dim: int
    starts: tuple[int, ...]
    along: int
    size: int


def rows_of(node: Node, ids: Known, key: str, clamp: int | None) -> Rows:
    """The rows that known indices name; ``clamp``: the number of rows that there are, for a gather;
    raises `Unsupported` unless they are one row, or rows one after the other.

    Example: ``{{2}, {3}}`` of five rows is ``Rows(0, (2,), 0, 2)``; ``{{2}, {4}}`` is refused,
    since these are not one after the other.
    """
    (dim,) = node.attrs[key] if len(node.attrs[key]) == 1 else (-1,)
    vector = node.attrs["index_vector_dim"]
    shape = ids.shape
    if dim < 0 or (vector < len(shape) and shape[vector] != 1):
        raise Unsupported("rows chosen by vectors of several indices")
    starts, shapes = [], set()
    for array in ids.arrays:
        core = compact(array).astype(np.int64)
        if vector < len(shape):
            core = np.take(core, 0, axis=vector)
        if clamp is not None:
            core = np.clip(core, 0, clamp - 1)
        moving = [d for d in range(core.ndim) if core.shape[d] > 1 and _moves(core, d)]
        line = core[tuple(slice(None) if d in moving[:1] else 0 for d in range(core.ndim))]
        if len(moving) > 1 or not np.array_equal(np.ravel(line), np.ravel(line)[0] + _count(line)):
            raise Unsupported("known rows that are not one after the other")
        starts.append(int(np.ravel(line)[0]))
        shapes.add((moving[0] if moving else -1, line.size))
    if len(shapes) > 1:
        raise Unsupported("other known rows on other ranks")
    along, size = shapes.pop()
    return Rows(dim, tuple(starts), along, size)


def _moves(core: np.ndarray[tuple[int, ...], np.dtype[np.int64]], dim: int) -> bool:
    first = np.take(core, [0], axis=dim)
    return not np.array_equal(np.broadcast_to(first, core.shape), core)


def _count(line: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> object:
    return np.arange(line.size)


def gather(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The rows of a tensor that are known, or that ids choose.

    Example: rows 2 and 3 of ``f32[5,3]`` are a ``slice``; rows by an input of ids are a `Lookup`.
    """
    if not isinstance(xs[1], Known):
        return lookups.gather(low, node, xs)
    if isinstance(xs[0], Ids):
        return _of_ids(low, node, xs[0], xs[1])
    table, ids, result = low.tensor(xs[0]), xs[1], low.shape(node)
    entries = picked.gather(low, node, table, ids)
    if entries is not None:
        return Tensor(entries)
    again = _repeated(node, ids, "start_indices_batching_dims")
    if again is None:
        return Tensor(_gathered(low, node, table, ids, result))
    at, times, fewer = again
    dim = [d for d in range(len(result)) if d not in node.attrs.get("offset_dims", ())][at]
    count = result[dim] // times
    value = _gathered(low, node, table, fewer, (*result[:dim], count, *result[dim + 1 :]))
    wide = (*result[:dim], count, times, *result[dim + 1 :])
    apart = [d + (d > dim) for d in range(len(result))]
    return Tensor(low.values.view(low.values.broadcast(value, apart, wide), result))


def _of_ids(low: Lowering, node: Node, x: Ids, rows: Known) -> Item:
    """Ids that are known rows or boxes of ids: those of slices, one after the other, stay ids.

    Example: column 2 of ids ``s32[8,4]``, or the rank's own, by ``ids[:, axis_index("tp")]``.
    """

    def chosen(value: int) -> int:
        return _gathered(low, node, value, rows, low.shape(node))

    vector = node.attrs["index_vector_dim"]
    count = prod(n for d, n in enumerate(rows.shape) if d != vector)
    if count > MOST_APART and not _one_after_the_other(node, rows, x.shape):
        return Tensor(chosen(low.tensor(x)))
    attrs = tuple(sorted(node.attrs.items()))
    key = ("gather", attrs, low.shape(node), *(fingerprint(a) for a in rows.arrays))
    return indices.each_moved(low, x, key, chosen)


def _one_after_the_other(node: Node, rows: Known, shape: Shape) -> bool:
    """Whether known rows are one row, or rows one after the other."""
    try:
        rows_of(node, rows, "start_index_map", shape[node.attrs["start_index_map"][0]])
    except Unsupported:
        return False
    return True


def _repeated(node: Node, ids: Known, batching: str) -> tuple[int, int, Known] | None:
    """Known indices each of which follows itself as often as all others along one dimension: which
    one (without that of index vectors), how often, and each index once; None: they do not.

    Example: rows 0, 0, 1 and 1, of a picture that is made twice as high, are rows 0 and 1 twice.
    """
    vector = node.attrs["index_vector_dim"]
    for e, n in enumerate(ids.shape):
        if e == vector or e in node.attrs.get(batching, ()) or n == 1:
            continue
        moved = [np.moveaxis(a, e, 0) for a in ids.arrays]
        if all(np.array_equal(a[1:], a[:-1]) for a in moved):
            continue
        for times in range(n // 2, 1, -1):
            if n % times == 0 and all(_stays(a, times) for a in moved):
                fewer = tuple(np.moveaxis(a[::times], 0, e) for a in moved)
                return e - (e > vector), times, Known(fewer, ids.dtype)
    return None


def _stays(a: Array, times: int) -> bool:
    """Whether each of so many rows, one after the other, is the same."""
    first = a[::times]
    return all(np.array_equal(a[k::times], first) for k in range(1, times))


def _gathered(low: Lowering, node: Node, table: int, ids: Known, result: Shape) -> int:
    """A gather of known rows or boxes into a tensor of this shape."""
    shape = low.recorder.shape(table)
    try:
        rows = rows_of(node, ids, "start_index_map", shape[node.attrs["start_index_map"][0]])
    except Unsupported:
        return boxes.gather(low, node, table, ids, result)
    whole = tuple(1 if d == rows.dim else n for d, n in enumerate(shape))
    if (
        node.attrs["slice_sizes"] != whole
        or node.attrs.get("collapsed_slice_dims", ()) != (rows.dim,)
        or node.attrs.get("operand_batching_dims", ())
    ):
        return boxes.gather(low, node, table, ids, result)
    value = table
    if rows.size < shape[rows.dim]:
        starts = table_of(rows.starts)
        dtype = low.recorder.values[value].dtype
        value = low.recorder.op(
            "slice", value, dim=rows.dim, start=starts, size=rows.size, dtype=dtype
        )
    offsets = list(node.attrs.get("offset_dims", ()))
    batch = [d for d in range(len(result)) if d not in offsets]
    if rows.along < 0:
        value = low.values.view(value, (*shape[: rows.dim], *shape[rows.dim + 1 :]))
        return low.values.broadcast(value, offsets, result)
    places = [*offsets[: rows.dim], batch[rows.along], *offsets[rows.dim :]]
    return low.values.broadcast(value, places, result)


def _ids_among(
    low: Lowering, operand: Item, written: Item, starts: Sequence[int | PerRank], shape: Shape
) -> Ids | None:
    """Ids that are written among one number along one dimension; None: something else is.

    Example: labels behind a first word, ``zeros.at[:, 1:].set(labels[:, :-1])``.
    """
    if not isinstance(written, Ids) or not isinstance(operand, Known) or operand.number() is None:
        return None
    if len(written.shape) != len(shape):
        return None
    moving = [d for d, n in enumerate(written.shape) if n != shape[d]]
    first = starts[moving[0]] if len(moving) == 1 else None
    if not isinstance(first, int):
        return None
    (dim,) = moving
    return indices.between(
        low, written, operand, dim, first, shape[dim] - first - written.shape[dim]
    )


def _in_box(
    low: Lowering,
    node: Node,
    operand: Item,
    updates: Item,
    starts: Sequence[int | PerRank],
    sizes: Shape,
) -> Item:
    """What is written to, or added in, one box; where that is the whole of zeros, or all is
    written, it is what it was (numbers that a predicate of ids chooses stay such)."""
    shape = low.shape(node)
    if node.attrs["to_apply"] == "replace":
        ids = _ids_among(low, operand, updates, starts, shape)
        if ids is not None:
            return ids
    if sizes == shape and all(start == 0 for start in starts):
        adds = node.attrs["to_apply"] == "add"
        if not adds or (isinstance(operand, Known) and operand.number() == 0):
            return viewed(low, updates, shape)
    value = low.values.view(low.tensor(updates), sizes)
    if node.attrs["to_apply"] == "replace":
        return Tensor(placed(low, operand, value, starts, shape))
    return _added(low, operand, placed(low, _zero(low, node), value, starts, shape))


def scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Rows added or written along one dimension, in bounds, or one box: known ones, or what ids
    choose.

    Example: ``f32[2,3]`` written to rows 2 and 3 of ``f32[5,3]`` is ``concat`` of rows 0 and 1,
    these and row 4.
    """
    how = node.attrs["to_apply"]
    if how in ("maximum", "minimum") and isinstance(xs[1], Ids):
        return segments.scatter(low, node, xs)
    if how not in ("add", "replace"):
        raise Unsupported(f"a scatter by {how}")
    if not isinstance(xs[1], Known):
        return scatters.scatter(low, node, xs)
    operand, ids, updates = xs[0], xs[1], low.tensor(xs[2])
    shape = low.shape(node)
    again = _repeated(node, ids, "scatter_indices_batching_dims") if how == "add" else None
    if again is not None:
        at, times, ids = again
        given = low.recorder.shape(updates)
        windows = node.attrs.get("update_window_dims", ())
        dim = [d for d in range(len(given)) if d not in windows][at]
        wide = (*given[:dim], given[dim] // times, times, *given[dim + 1 :])
        updates = low.recorder.op("sum", low.values.view(updates, wide), dim=(dim + 1,))
    apart = picked.scatter(low, node, ids, updates)
    if apart is not None:
        return _added(low, operand, apart)
    box = _box(low, node, ids, low.recorder.shape(updates))
    if box is not None:
        return _in_box(low, node, operand, xs[2] if again is None else Tensor(updates), *box)
    rows = _whole_rows(low, node, ids, low.recorder.shape(updates))
    inside = rows is not None and _inside(rows, shape[rows.dim])
    if rows is None or not (inside or how == "add"):
        return _several(low, node, operand, ids, updates)
    given = low.recorder.shape(updates)
    windows = list(node.attrs.get("update_window_dims", ()))
    batch = [d for d in range(len(given)) if d not in windows]
    kept = [batch[rows.along]] if rows.along >= 0 else []
    summed = tuple(d for d in batch if d not in kept)
    if how == "replace" and any(given[d] != 1 for d in summed):
        raise Unsupported("values of which several are written to one place")
    value = low.recorder.op("sum", updates, dim=summed) if summed else updates
    value = _in_order(low, value, windows, kept, rows, shape)
    if how == "replace":
        return framed(low, operand, value, rows.dim, rows.starts[0], shape)
    if not inside:
        return _added(low, operand, _window(low, node, value, rows))
    added = framed(low, _zero(low, node), value, rows.dim, rows.starts[0], shape).value
    return _added(low, operand, added)


def _several(low: Lowering, node: Node, operand: Item, ids: Known, updates: int) -> Tensor:
    many = many_rows.scatter(low, node, ids, updates)
    if many is not None:
        return _added(low, operand, many)
    return boxes.scatter(low, node, operand, ids, updates)


def _inside(rows: Rows, count: int) -> bool:
    """Whether all rows are there, the same ones on every rank."""
    return len(set(rows.starts)) == 1 and 0 <= rows.starts[0] <= count - rows.size


def _window(low: Lowering, node: Node, value: int, rows: Rows) -> int:
    """Rows that begin elsewhere on each rank, zeros beside them; those that are not inside are
    dropped.

    Example: six rows from 0 on of a rank with the first three rows of a table, and from -3 on of
    one with the last three, are the ``slice`` of three of them from 0 or 3 on.
    """
    dim, count = rows.dim, low.shape(node)[rows.dim]
    before = max(0, *rows.starts)
    after = max(0, *(count - start - rows.size for start in rows.starts))
    if before or after:
        shape = low.shape(node)
        wide = (*shape[:dim], before + rows.size + after, *shape[dim + 1 :])
        zero = Known((np.broadcast_to(np.array(0, dtype="float32"), wide),), low.dtype(node))
        value = framed(low, zero, value, dim, before, wide).value
    start = table_of([before - start for start in rows.starts])
    return low.recorder.op("slice", value, dim=dim, start=start, size=count)


def _whole_rows(low: Lowering, node: Node, ids: Known, given: Shape) -> Rows | None:
    """The whole rows, one after the other, that a scatter of updates of this shape writes on every
    rank; None: these are other boxes."""
    attrs, shape = node.attrs, low.shape(node)
    try:
        rows = rows_of(node, ids, "scatter_dims_to_operand_dims", None)
    except Unsupported:
        return None
    alone = attrs.get("inserted_window_dims", ()) == (rows.dim,)
    whole = [n for d, n in enumerate(shape) if d != rows.dim]
    if not alone or attrs.get("input_batching_dims", ()):
        return None
    return rows if [given[d] for d in attrs.get("update_window_dims", ())] == whole else None


def _added(low: Lowering, operand: Item, part: int) -> Tensor:
    if isinstance(operand, Known) and operand.number() == 0:
        return Tensor(part)
    return Tensor(low.recorder.op("add", low.tensor(operand), part))


def _box(
    low: Lowering, node: Node, ids: Known, given: Shape
) -> tuple[list[int | PerRank], Shape] | None:
    """Where the one box is that a scatter with one vector of known indices writes, and its size;
    None: there are several vectors, or it does not lie inside (and is dropped)."""
    attrs, shape = node.attrs, low.shape(node)
    vector = attrs["index_vector_dim"]
    if any(n != 1 for d, n in enumerate(ids.shape) if d != vector) or attrs.get(
        "input_batching_dims", ()
    ):
        return None
    inserted = attrs.get("inserted_window_dims", ())
    windows = iter(given[d] for d in attrs.get("update_window_dims", ()))
    sizes = tuple(1 if d in inserted else next(windows) for d in range(len(shape)))
    columns: list[list[int]] = [[] for _ in shape]
    for rank in range(low.graph.ranks):
        at = [0] * len(shape)
        numbers = np.ravel(ids.at(rank)).astype(np.int64)
        for d, number in zip(attrs["scatter_dims_to_operand_dims"], numbers, strict=True):
            at[d] = int(number)
        if any(not 0 <= a <= n - m for a, n, m in zip(at, shape, sizes, strict=True)):
            return None
        for column, a in zip(columns, at, strict=True):
            column.append(a)
    return [table_of(column) for column in columns], sizes


def _in_order(
    low: Lowering,
    value: int,
    windows: Sequence[int],
    kept: Sequence[int],
    rows: Rows,
    shape: Shape,
) -> int:
    """Updates with their dimensions where the operand has them; rows are of size 1 if there is no
    dimension of them."""
    dims = sorted([*windows, *kept])
    target = [*windows[: rows.dim], *kept, *windows[rows.dim :]]
    order = tuple(dims.index(d) for d in target)
    if order != tuple(range(len(order))):
        value = low.recorder.op("permute", value, dims=order)
    box = (*shape[: rows.dim], rows.size, *shape[rows.dim + 1 :])
    return low.values.view(value, box)


def _zero(low: Lowering, node: Node) -> Known:
    dtype = low.dtype(node)
    return Known((np.broadcast_to(np.array(0, dtype="float32"), low.shape(node)),), dtype)
