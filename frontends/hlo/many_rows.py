"""Gathers and scatters of many known rows: products with a table of 0 and 1.

A table of buckets of relative positions (T5) is read at every pair of positions: as many slices,
joined, would be as many values.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.state import Lowering

#: Known rows up to which each is an operator of its own.
MOST_APART: Final = 32
#: Entries that a table may have.
MOST_ENTRIES: Final = 1 << 18


def gather(low: Lowering, node: Node, table: int, ids: Known, result: Shape) -> int | None:
    """Whole rows of a table along one dimension, by known numbers, which clamp; None: it is another
    gather, or these are few.

    Example: ``f32[32,4]`` by ``s32[8,8]`` is ``einsum`` of a table [8, 8, 32] and these by
    ``abv,vc->abc``.
    """
    attrs, shape = node.attrs, low.recorder.shape(table)
    if len(attrs["start_index_map"]) != 1 or attrs.get("operand_batching_dims", ()):
        return None
    (dim,) = attrs["start_index_map"]
    whole = tuple(1 if d == dim else n for d, n in enumerate(shape))
    if attrs["slice_sizes"] != whole or attrs.get("collapsed_slice_dims", ()) != (dim,):
        return None
    chosen = _chosen(node, ids, shape[dim], clamps=True)
    if chosen is None:
        return None
    letters = iter("abcdefghijklmnopqrstuwxyz")
    offsets = attrs.get("offset_dims", ())
    names = [next(letters) for _ in result]
    windows = iter(names[d] for d in offsets)
    rows = "".join(names[d] for d in range(len(result)) if d not in offsets)
    own = "".join("v" if d == dim else next(windows) for d in range(len(shape)))
    equation = f"{rows}v,{own}->{''.join(names)}"
    return low.op("einsum", low.tensor(chosen), table, equation=equation).value


def scatter(low: Lowering, node: Node, ids: Known, updates: int) -> int | None:
    """Whole rows that are added up at known numbers along one dimension, those of no row dropped;
    None: it is another scatter, or these are few.

    Example: ``f32[8,8,4]`` added at ``s32[8,8]`` of ``f32[32,4]`` is ``einsum`` of a table
    [8, 8, 32] and these by ``abv,abc->vc``.
    """
    attrs, shape, given = node.attrs, low.shape(node), low.recorder.shape(updates)
    dims = attrs["scatter_dims_to_operand_dims"]
    if attrs["to_apply"] != "add" or len(dims) != 1 or attrs.get("input_batching_dims", ()):
        return None
    windows = attrs.get("update_window_dims", ())
    rest = tuple(n for d, n in enumerate(shape) if d != dims[0])
    if attrs.get("inserted_window_dims", ()) != dims or tuple(given[d] for d in windows) != rest:
        return None
    chosen = _chosen(node, ids, shape[dims[0]], clamps=False)
    if chosen is None:
        return None
    names = "abcdefghijklmnopqrstuwxyz"[: len(given)]
    rows = "".join(names[d] for d in range(len(given)) if d not in windows)
    own = iter(names[d] for d in windows)
    result = "".join("v" if d == dims[0] else next(own) for d in range(len(shape)))
    equation = f"{rows}v,{names}->{result}"
    return low.op("einsum", low.tensor(chosen), updates, equation=equation).value


def _chosen(node: Node, ids: Known, count: int, *, clamps: bool) -> Known | None:
    """1 where a row is the one that is chosen, 0 at all others; None: few rows, or too many."""
    vector = node.attrs["index_vector_dim"]
    if vector < len(ids.shape) and ids.shape[vector] != 1:
        return None
    full = tuple(n for d, n in enumerate(ids.shape) if d != vector)
    if prod(full) <= MOST_APART or prod(full) * count > MOST_ENTRIES:
        return None
    tables = []
    for array in ids.arrays:
        core = compact(array).astype(np.int64)
        if vector < len(ids.shape):
            core = np.take(core, 0, axis=vector)
        if clamps:
            core = np.clip(core, 0, count - 1)
        hot = (core[..., None] == np.arange(count)).astype("float32")
        tables.append(np.broadcast_to(hot, (*full, count)))
    return Known(tuple(tables), "float32")
