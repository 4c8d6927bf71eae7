"""Gathers and scatters of known boxes: a slice for each, or each put among zeros.

``x[..., [0, 2, 5]]`` and ``x[:, i, j]`` with ``i, j = jnp.tril_indices(n, -1)`` are gathers of
known boxes in HLO, and their derivatives scatters that add.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import many_rows
from shardproof.frontends.hlo.items import Item, Tensor, table_of
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.movement import placed
from shardproof.frontends.hlo.state import Lowering

#: Known boxes of a gather or a scatter, each of which is an operator of its own.
MOST_BOXES: Final = 64
#: Where boxes begin: [box, rank, dimension].
_Begins = npt.NDArray[np.int64]


def gather(low: Lowering, node: Node, table: int, ids: Known, result: Shape) -> int:
    """A gather of known boxes: a slice for each, one after the other; starts clamp, as XLA says.

    Example: ``x[arange(4), arange(4)]`` of ``f32[4,4]``, its diagonal, is ``concat`` of four slices
    of one entry.
    """
    attrs, shape = node.attrs, low.recorder.shape(table)
    many = many_rows.gather(low, node, table, ids, result)
    if many is not None:
        return many
    sizes = attrs["slice_sizes"]
    batching = attrs.get("operand_batching_dims", ())
    gone = {*attrs.get("collapsed_slice_dims", ()), *batching}
    offsets = attrs.get("offset_dims", ())
    own = attrs.get("start_indices_batching_dims", ())
    pairs = tuple(zip(batching, own, strict=True))
    batch, begins = _begins(attrs, ids, attrs["start_index_map"], pairs, len(shape))
    dtype = low.recorder.values[table].dtype
    parts = []
    for begin in np.clip(begins, 0, np.subtract(shape, sizes)):
        value = table
        for d, size in enumerate(sizes):
            if size < shape[d]:
                start = table_of([int(n) for n in begin[:, d]])
                value = low.recorder.op("slice", value, dim=d, start=start, size=size, dtype=dtype)
        parts.append(low.values.view(value, (1, *sizes)))
    value = parts[0]
    if len(parts) > 1:
        value = low.recorder.op("concat", *parts, dim=0, dtype=dtype)
    kept = tuple(n for d, n in enumerate(sizes) if d not in gone)
    outer = [d for d in range(len(result)) if d not in offsets]
    value = low.values.view(value, (*batch, *kept))
    return low.values.broadcast(value, [*outer, *offsets], result)


def scatter(low: Lowering, node: Node, operand: Item, ids: Known, updates: int) -> Tensor:
    """A scatter of known boxes: each among zeros, added up, or in the place of what was there; what
    does not lie inside is dropped, as XLA says.

    Example: ``f32[2]`` added at {{0, 1}, {2, 0}} of ``f32[3,3]``: two entries, each among zeros of
    that shape, and ``add``. Two that write over one place are refused.
    """
    attrs, shape, given = node.attrs, low.shape(node), low.recorder.shape(updates)
    windows = attrs.get("update_window_dims", ())
    batching = attrs.get("input_batching_dims", ())
    own = attrs.get("scatter_indices_batching_dims", ())
    dims = attrs["scatter_dims_to_operand_dims"]
    gone = {*attrs.get("inserted_window_dims", ()), *batching}
    window = iter(given[d] for d in windows)
    sizes = tuple(1 if d in gone else next(window) for d in range(len(shape)))
    pairs = tuple(zip(batching, own, strict=True))
    _, begins = _begins(attrs, ids, dims, pairs, len(shape))
    adds = attrs["to_apply"] == "add"
    if not adds and _meet(begins, sizes):
        raise Unsupported("values of which several are written to one place")
    outer = [d for d in range(len(given)) if d not in windows]
    order = (*outer, *windows)
    if order != tuple(range(len(given))):
        updates = low.recorder.op("permute", updates, dims=order)
    count = len(begins)
    rows = low.values.view(updates, (count, *(given[d] for d in windows)))
    zero = Known((np.broadcast_to(np.array(0, dtype="float32"), shape),), low.dtype(node))
    parts, written = [], operand
    for number, begin in enumerate(begins):
        inside = np.all((begin >= 0) & (begin <= np.subtract(shape, sizes)), axis=1)
        if not inside.any():
            continue
        if not inside.all():
            raise Unsupported("a box that is dropped on some of the ranks")
        one = rows
        if count > 1:
            one = low.recorder.op("slice", rows, dim=0, start=number, size=1)
        part = low.values.view(one, sizes)
        starts = [table_of([int(n) for n in column]) for column in begin.T]
        if adds:
            parts.append(placed(low, zero, part, starts, shape))
        else:
            written = Tensor(placed(low, written, part, starts, shape))
    if not adds:
        return Tensor(low.tensor(written))
    if not (isinstance(operand, Known) and operand.number() == 0):
        parts.append(low.tensor(operand))
    if not parts:
        return Tensor(low.values.full(shape, Fraction(0)))
    total = parts[0]
    for part in parts[1:]:
        total = low.recorder.op("add", total, part)
    return Tensor(total)


def _begins(
    attrs: Mapping[str, Any],
    ids: Known,
    dims: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    rank: int,
) -> tuple[Shape, _Begins]:
    """The dimensions of known indices without their vectors, and where the boxes begin; ``dims``:
    what the indices are of; ``pairs``: dimensions of the batch, of the tensor and of the indices;
    ``rank``: how many dimensions the tensor has."""
    vector = attrs["index_vector_dim"]
    cores = [_vectors(compact(a) if not pairs else a, vector) for a in ids.arrays]
    full = tuple(n for d, n in enumerate(ids.shape) if d != vector)
    if math.prod(full) > MOST_BOXES:
        raise Unsupported(f"known boxes that are more than {MOST_BOXES}")
    begins = np.zeros((*full, len(cores), rank), dtype=np.int64)
    for number, core in enumerate(cores):
        begins[..., number, list(dims)] = np.broadcast_to(core, (*full, len(dims)))
    for d, e in pairs:
        at = e - (e > vector)
        line = np.arange(full[at]).reshape([-1 if a == at else 1 for a in range(len(full))])
        begins[..., d] = line[..., None]
    return full, begins.reshape(-1, len(cores), rank)


def _vectors(indices: Array, dim: int) -> Array:
    """Indices with their vectors along the last dimension."""
    return indices[..., None] if dim == indices.ndim else np.moveaxis(indices, dim, -1)


def _meet(begins: _Begins, sizes: Shape) -> bool:
    """Whether two boxes of one size have a place in common on some rank."""
    apart = np.maximum(sizes, 1)
    return any(
        bool(np.any(np.all(np.abs(a - b) < apart, axis=1)))
        for a, b in itertools.combinations(begins, 2)
    )
