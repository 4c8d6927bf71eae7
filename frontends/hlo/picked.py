"""Gathers and scatters of one known entry of each row: products with a table of 0 and 1.

``jnp.take_along_axis(x, jnp.arange(n)[:, None], 1)`` and ``jnp.diagonal(x)`` pick the diagonal, as
losses do whose labels are positions (of pairs of pictures and texts); a rank picks the entries of
its rows.  What a table picks is a part of what the single device's does, wherever rows are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.many_rows import MOST_ENTRIES
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.state import Lowering

#: Attributes: what indices are of, which dimensions are of the batch, of the tensor and of them.
_GATHER: Final = ("start_index_map", "operand_batching_dims", "start_indices_batching_dims")
_SCATTER: Final = (
    "scatter_dims_to_operand_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
)


class Picked(NamedTuple):
    """Entries of a tensor, one for each position of known indices. ``table``: on every rank, 1 for
    the one that is picked along one dimension, which is the table's last one; ``of``: the names of
    the tensor's dimensions, ``v`` for that one; ``batch``: the names of the indices' dimensions.

    Example: of the diagonal of ``f32[4,4]``, the ones of 4 by 4, ``av`` and ``a``.
    """

    table: tuple[Array, ...]
    of: str
    batch: str


def gather(low: Lowering, node: Node, x: int, ids: Known) -> int | None:
    """One known entry of each row, other ones in other rows; indices clamp.  None: these are other
    boxes.

    Example: the diagonal of ``f32[4,4]`` is ``einsum`` of these and a table by ``av,av->a``.
    """
    attrs, shape = node.attrs, low.recorder.shape(x)
    if attrs.get("offset_dims", ()) or any(n != 1 for n in attrs["slice_sizes"]):
        return None
    picked = _picked(attrs, _GATHER, ids, shape, clamps=True)
    if picked is None or not _varies(picked):
        return None
    table = low.tensor(Known(picked.table, "float32"))
    equation = f"{picked.batch}v,{picked.of}->{picked.batch}"
    return low.op("einsum", table, x, equation=equation).value


def scatter(low: Lowering, node: Node, ids: Known, updates: int) -> int | None:
    """Entries at one known place in each row, zero elsewhere; what is out of bounds is nowhere.
    None: these are other boxes.

    Example: ``f32[4]`` at the diagonal of ``f32[4,5]`` is the product of these, repeated, and the
    diagonal of ones.
    """
    attrs = node.attrs
    if attrs["to_apply"] != "add" or attrs.get("update_window_dims", ()):
        return None
    picked = _picked(attrs, _SCATTER, ids, low.shape(node), clamps=False)
    if picked is None or not (attrs.get("input_batching_dims", ()) or _varies(picked)):
        return None
    table = low.tensor(Known(picked.table, "float32"))
    equation = f"{picked.batch},{picked.batch}v->{picked.of}"
    return low.op("einsum", updates, table, equation=equation).value


def _picked(
    attrs: Mapping[str, Any], keys: tuple[str, str, str], ids: Known, shape: Shape, *, clamps: bool
) -> Picked | None:
    """What is picked of a tensor of this shape; None: no row is counted, or several indices choose
    in one."""
    dims = attrs[keys[0]]
    pairs = tuple(zip(*(attrs.get(key, ()) for key in keys[1:]), strict=True))
    vector = attrs["index_vector_dim"]
    full = tuple(n for e, n in enumerate(ids.shape) if e != vector)
    if len(dims) + len(pairs) != len(shape) or not 0 < len(full) <= 20:
        return None
    indices = [a if vector == a.ndim else np.moveaxis(a, vector, -1) for a in ids.arrays]
    indices = [a.astype(np.int64).reshape(*full, len(dims)) for a in indices]
    letters = "abcdefghijklmnopqrstu"[: len(full)]
    names = {d: letters[e - (e > vector)] for d, e in pairs}
    chosen = []
    for number, d in enumerate(dims):
        along = _counted([a[..., number] for a in indices], shape[d])
        if along is None or letters[along] in names.values():
            chosen.append((d, number))
        else:
            names[d] = letters[along]
    if len(chosen) != 1 or not names or prod(full) * shape[chosen[0][0]] > MOST_ENTRIES:
        return None
    ((dim, number),) = chosen
    names[dim] = "v"
    tables = []
    for a in indices:
        own = np.clip(a[..., number], 0, shape[dim] - 1) if clamps else a[..., number]
        tables.append((own[..., None] == np.arange(shape[dim])).astype("float32"))
    return Picked(tuple(tables), "".join(names[d] for d in range(len(shape))), letters)


def _varies(picked: Picked) -> bool:
    """Whether not all rows have the entry at one place; of these a slice is picked."""
    return any((a != a.reshape(-1, a.shape[-1])[0]).any() for a in picked.table)


def _counted(indices: Sequence[Array], count: int) -> int | None:
    """Along which dimension an index counts all of so many positions, on every rank; None: along
    none."""
    for e, n in enumerate(indices[0].shape):
        line = np.arange(n).reshape([-1 if d == e else 1 for d in range(indices[0].ndim)])
        if n == count > 1 and all((a == line).all() for a in indices):
            return e
    return None
