"""Gathers of rows that ids choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import index_vectors, marked, words
from shardproof.frontends.hlo.indices import own_axes, reshaped
from shardproof.frontends.hlo.items import (
    Ids,
    Item,
    Lookup,
    Narrow,
    Vectors,
)
from shardproof.frontends.hlo.state import Lowering
from shardproof.frontends.hlo.viewed import viewed
from shardproof.frontends.hlo.written import Spots

LETTERS = "abcdefghijklmnopqrstuwxyz"
#: So many positions of a box that begins at an id are read one by one.
MOST_POSITIONS: Final = 64
GATHER: Final[index_vectors.Keys] = (
    "start_index_map",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "offset_dims",
)


def aimed(
    x: Item, given: Mapping[str, Any], key: str
) -> tuple[Mapping[str, Any], Ids, tuple[int, ...]]:
    """Attributes, scalar ids without the dimension of index vectors, and which dimensions of the
    file's indices these have; ``key``: which attribute says along which dimension they choose.

    Example: of ``s32[4,1]`` with ``index_vector_dim=1``, the ids as ``s32[4]``, of dimension 0.

    Raises `Unsupported` for numbers that are no ids, and for vectors of several indices.
    """
    if not isinstance(x, Ids):
        raise Unsupported("rows chosen by computed numbers")
    vector = given["index_vector_dim"]
    if len(given[key]) != 1 or (vector < len(x.shape) and x.shape[vector] != 1):
        raise Unsupported("rows chosen by vectors of several indices")
    if vector == len(x.shape):
        return given, x, tuple(range(len(x.shape)))
    kept = tuple(d for d in range(len(x.shape)) if d != vector)
    axes = tuple(x.axes[d] for d in kept)
    return given, Ids(x.origin, axes, tuple(x.shape[d] for d in kept), x.functions), kept


def gather(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Rows along one dimension; indices clamp, as XLA says.

    Example: ``table = f32[32,8]`` by ids ``s32[4,6]`` is a `Lookup` of shape (4, 6, 8) with the
    equation ``abv,vc->abc``.
    """
    own = marked.written(low, node)
    if own is not None:
        return own
    if isinstance(xs[0], Spots):
        return _of_all(low, node, xs[0], xs[1])
    table = low.tensor(xs[0])
    if not isinstance(xs[1], Vectors):
        return _rows(low, node.attrs, table, xs[1], low.shape(node))
    return _boxes(low, node.attrs, table, xs[1], low.shape(node))


def _of_all(low: Lowering, node: Node, places: Spots, x: Item) -> Ids:
    """The places that ids choose of those of all ranks' largest scores: of the largest of all."""
    shape, attrs = low.shape(node), node.attrs
    if isinstance(x, Vectors):
        attrs, _, chosen = index_vectors.resolved(attrs, x, places.shape, shape, GATHER)
        (dim, ids) = chosen[0] if len(chosen) == 1 else (-1, None)
        batch = attrs[GATHER[3]]
    else:
        attrs, ids, kept = aimed(x, attrs, GATHER[0])
        (dim,), batch = attrs[GATHER[0]], tuple(map(kept.index, attrs.get(GATHER[3], ())))
    alone = len(attrs.get(GATHER[2], ())) == len(places.shape) - 1 and dim == places.dim
    pick = None if ids is None else words.picked(low, ids)
    if not alone or list(batch) != sorted(batch) or ids is None or pick is None:
        raise Unsupported("rows chosen by vectors of several indices")
    if list(attrs[GATHER[2]]) != sorted(attrs[GATHER[2]]) or pick.dim != dim:
        raise Unsupported("rows chosen by vectors of several indices")
    made = words.largest(low, pick.scores, pick, places)
    if made is None or prod(shape) != prod(ids.shape):
        raise Unsupported("rows chosen by vectors of several indices")
    value = low.values.view(made.places, shape)
    count = len(places.groups[0]) * low.recorder.shape(made.pick.scores)[made.pick.dim]
    return Ids(value, own_axes(shape), shape, (piecewise.identity(0, count),))


def _boxes(low: Lowering, given: Mapping[str, Any], table: int, x: Vectors, result: Shape) -> Item:
    """What vectors of several indices choose, into a tensor of this shape; along a dimension of
    which a box has several positions, one after the other."""
    shape = low.recorder.shape(table)
    wide = index_vectors.several(given, x, shape, result, GATHER)
    if wide is None:
        attrs, whole, chosen = index_vectors.resolved(given, x, shape, result, GATHER)
        return viewed(low, _by_each(low, attrs, table, chosen, whole), result)
    number, dim, at = wide
    first, last = x.parts[number], shape[dim] - result[at]
    if not isinstance(first, Ids) or result[at] > MOST_POSITIONS:
        raise Unsupported("a gather of other boxes than whole rows")
    ends = [p.at(i) for f in first.functions for p in f for i in (p.low, p.high - 1)]
    if not low.settled and not 0 <= min(ends) <= max(ends) <= last:
        raise Narrow(first.origin, last + 1)
    first = replace(first, functions=clamped(first, last + 1))
    sizes = tuple(1 if d == dim else n for d, n in enumerate(given["slice_sizes"]))
    own = {**given, "slice_sizes": sizes}
    box = (*result[:at], 1, *result[at + 1 :])
    parts = []
    for by in range(result[at]):
        moved = (*x.parts[:number], later(first, by), *x.parts[number + 1 :])
        parts.append(low.tensor(_boxes(low, own, table, Vectors(moved, x.shape), box)))
    return low.op("concat", *parts, dim=at)


def later(ids: Ids, by: int) -> Ids:
    """The positions so many behind ids.

    Example: of ids in [0, 5) by 2, the function ``id + 2``.
    """
    moved = (piecewise.combine("add", f, piecewise.constant(f, by)) for f in ids.functions)
    return replace(ids, functions=tuple(moved))


def _by_each(
    low: Lowering,
    attrs: Mapping[str, Any],
    table: int,
    chosen: Sequence[index_vectors.Chosen],
    whole: Shape,
) -> Item:
    """What each of several ids chooses of what those before it chose.

    Example: ``table[i, j]`` is entry ``j`` of each of the rows ``i``.
    """
    if len(chosen) == 1:
        return _rows(low, attrs, table, chosen[0].ids, whole)
    step = index_vectors.step(attrs, chosen, low.recorder.shape(table), GATHER)
    rows = low.tensor(_rows(low, step.attrs, table, step.ids, step.between))
    return _by_each(low, step.others, rows, step.left, whole)


def _rows(low: Lowering, given: Mapping[str, Any], table: int, x: Item, whole: Shape) -> Item:
    """Rows of a table, of the shape ``whole``."""
    attrs, ids, kept = aimed(x, given, GATHER[0])
    at = window(attrs, GATHER, len(low.recorder.shape(table)))
    if at < 0:
        return gathered(low, attrs, table, ids, kept, whole)
    # The chosen row stays a dimension of one position.
    attrs = dropped(attrs, GATHER, at)
    rest = (*whole[:at], *whole[at + 1 :])
    boxed = reshaped(gathered(low, attrs, table, ids, kept, rest), whole)
    if boxed is None:
        raise Unsupported("a gather of other boxes than whole rows")
    return boxed


def window(attrs: Mapping[str, Any], keys: index_vectors.Keys, count: int) -> int:
    """Which dimension of the result (or of the updates) the chosen one of ``count`` is; -1: it is
    dropped.

    Example: 1 for rows ``f32[4,1,3]`` of ``f32[9,3]``, -1 for the same rows as ``f32[4,3]``.
    """
    (dim,), gone = attrs[keys[0]], (*attrs.get(keys[1], ()), *attrs.get(keys[2], ()))
    if dim in gone:
        return -1
    windows = [d for d in range(count) if d not in gone]
    return int(attrs[keys[4]][windows.index(dim)])


def dropped(attrs: Mapping[str, Any], keys: index_vectors.Keys, at: int) -> Mapping[str, Any]:
    """Attributes where the chosen dimension, which is dimension ``at``, is dropped.

    Example: ``offset_dims={1,2}`` of rows ``f32[4,1,3]`` are ``{1}`` of ``f32[4,3]``.
    """
    own = keys[4]
    left = tuple(d - (d > at) for d in attrs[own] if d != at)
    return {**attrs, keys[1]: tuple(sorted((*attrs.get(keys[1], ()), *attrs[keys[0]]))), own: left}


def gathered(
    low: Lowering,
    attrs: Mapping[str, Any],
    table: int,
    ids: Ids,
    kept: tuple[int, ...],
    whole: Shape,
) -> Lookup:
    """Rows of a table by scalar ids; ``kept``: which dimensions of the file's indices these have;
    ``whole``: the shape of the result.

    Example: rows of ``f32[9,3]`` by ids of shape (4,) are a `Lookup` of shape (4, 3).
    """
    shape = low.recorder.shape(table)
    (dim,) = attrs["start_index_map"]
    batching = dict(
        zip(
            attrs.get("operand_batching_dims", ()),
            (kept.index(d) for d in attrs.get("start_indices_batching_dims", ())),
            strict=True,
        )
    )
    sizes = tuple(1 if d == dim or d in batching else n for d, n in enumerate(shape))
    if attrs["slice_sizes"] != sizes or attrs.get("collapsed_slice_dims", ()) != (dim,):
        raise Unsupported("a gather of other boxes than whole rows")
    letters = iter(LETTERS)
    own = [next(letters) for _ in low.recorder.shape(ids.origin)]
    names = []
    for d in range(len(shape)):
        axis = ids.axes[batching[d]] if d in batching else -1
        names.append("v" if d == dim else own[axis] if axis >= 0 else next(letters))
    windows = [d for d in range(len(shape)) if d != dim and d not in batching]
    back = {e: d for d, e in batching.items()}
    result, dims, places = [], [], [-1] * len(own)
    at, batch = iter(windows), iter(range(len(ids.shape)))
    for d, n in enumerate(whole):
        if d in attrs.get("offset_dims", ()):
            name = names[next(at)]
        else:
            e = next(batch)
            axis = ids.axes[e]
            if axis >= 0:
                places[axis] = d
            name = own[axis] if axis >= 0 else names[back[e]] if e in back else ""
        if name and not (n == 1 and name in result):
            result.append(name)
            dims.append(d)
    functions = clamped(ids, shape[dim])
    return Lookup(
        table,
        dim,
        Ids(ids.origin, ids.axes, ids.shape, functions),
        f"{''.join(own)}v,{''.join(names)}->{''.join(result)}",
        tuple(places),
        tuple(dims),
        whole,
        (piecewise.constant(ids.functions[0], 1),),
    )


def clamped(ids: Ids, count: int) -> tuple[Function, ...]:
    """Functions of ids, but 0 where they are below it, and the last of so many rows beyond it.

    Example: of ids in [-1, 9) among 5 rows, 0 of -1 and 4 of 5 to 8.
    """
    return tuple(
        piecewise.combine(
            "minimum",
            piecewise.combine("maximum", f, piecewise.constant(f, 0)),
            piecewise.constant(f, count - 1),
        )
        for f in ids.functions
    )
