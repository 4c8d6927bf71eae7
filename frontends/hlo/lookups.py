"""Gathers and scatters of rows that ids choose, and dynamic slices and updates of one such row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, chosen_rows
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import index_vectors, ones, repeats
from shardproof.frontends.hlo.indices import reshape, reshaped
from shardproof.frontends.hlo.items import (
    Gated,
    Ids,
    Item,
    Lookup,
    Narrow,
    Tensor,
    Vectors,
    per_rank,
)
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering
from shardproof.frontends.hlo.viewed import viewed

_LETTERS = "abcdefghijklmnopqrstuwxyz"
_GATHER: Final[index_vectors.Keys] = (
    "start_index_map",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "offset_dims",
)
_SCATTER: Final[index_vectors.Keys] = (
    "scatter_dims_to_operand_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "update_window_dims",
)


def _aimed(
    x: Item, given: Mapping[str, Any], key: str
) -> tuple[Mapping[str, Any], Ids, tuple[int, ...]]:
    """Attributes, scalar ids without the dimension of index vectors, and its dimensions."""
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
    table = low.tensor(xs[0])
    shape = low.recorder.shape(table)
    if not isinstance(xs[1], Vectors):
        return _rows(low, node.attrs, table, xs[1], low.shape(node))
    attrs, whole, chosen = index_vectors.resolved(
        node.attrs, xs[1], shape, low.shape(node), _GATHER
    )
    return viewed(low, _by_each(low, attrs, table, chosen, whole), low.shape(node))


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
    step = index_vectors.step(attrs, chosen, low.recorder.shape(table), _GATHER)
    rows = low.tensor(_rows(low, step.attrs, table, step.ids, step.between))
    return _by_each(low, step.others, rows, step.left, whole)


def _rows(low: Lowering, given: Mapping[str, Any], table: int, x: Item, whole: Shape) -> Item:
    """Rows of a table, of the shape ``whole``."""
    attrs, ids, kept = _aimed(x, given, _GATHER[0])
    at = _window(attrs, _GATHER, len(low.recorder.shape(table)))
    if at < 0:
        rows = _gathered(low, attrs, table, ids, kept, whole)
        apart = ones.difference(low, rows)
        return rows if apart is None else Tensor(apart)
    # The chosen row stays a dimension of one position.
    attrs = _dropped(attrs, _GATHER, at)
    rest = (*whole[:at], *whole[at + 1 :])
    boxed = reshaped(_gathered(low, attrs, table, ids, kept, rest), whole)
    if boxed is None:
        raise Unsupported("a gather of other boxes than whole rows")
    return boxed


def _window(attrs: Mapping[str, Any], keys: index_vectors.Keys, count: int) -> int:
    """Which dimension of the result (or of the updates) the chosen one of ``count`` is; -1: it is
    dropped."""
    (dim,), gone = attrs[keys[0]], (*attrs.get(keys[1], ()), *attrs.get(keys[2], ()))
    if dim in gone:
        return -1
    windows = [d for d in range(count) if d not in gone]
    return int(attrs[keys[4]][windows.index(dim)])


def _dropped(attrs: Mapping[str, Any], keys: index_vectors.Keys, at: int) -> Mapping[str, Any]:
    """Attributes where the chosen dimension, which is dimension ``at``, is dropped."""
    own = keys[4]
    left = tuple(d - (d > at) for d in attrs[own] if d != at)
    return {**attrs, keys[1]: tuple(sorted((*attrs.get(keys[1], ()), *attrs[keys[0]]))), own: left}


def _gathered(
    low: Lowering,
    attrs: Mapping[str, Any],
    table: int,
    ids: Ids,
    kept: tuple[int, ...],
    whole: Shape,
) -> Lookup:
    """Rows of a table by scalar ids; ``kept``: which dimensions of the file's indices these have;
    ``whole``: the shape of the result."""
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
    letters = iter(_LETTERS)
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
    clamped = _clamped(ids, shape[dim])
    return Lookup(
        table,
        dim,
        Ids(ids.origin, ids.axes, ids.shape, clamped),
        f"{''.join(own)}v,{''.join(names)}->{''.join(result)}",
        tuple(places),
        tuple(dims),
        whole,
        (piecewise.constant(ids.functions[0], 1),),
    )


def scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Rows added or written along one dimension; what is out of bounds is dropped, as XLA says.

    Example: rows ``f32[4,8]`` added at four ids to ``f32[32,8]``: the ``onehot`` of the ids, [4,
    32], ``einsum`` with the rows by ``av,ab->vb``, and ``add``.
    """
    shape = low.shape(node)
    if not isinstance(xs[1], Vectors):
        return _scattered(low, node.attrs, shape, xs[0], xs[1], xs[2])
    boxes = low.graph.values[node.operands[2]].shape
    attrs, whole, chosen = index_vectors.resolved(node.attrs, xs[1], shape, boxes, _SCATTER)
    if len(chosen) > 1 and attrs["to_apply"] != "add":
        raise Unsupported("values written at vectors of several indices")
    return _added_by_each(low, attrs, shape, xs[0], chosen, viewed(low, xs[2], whole))


def _added_by_each(
    low: Lowering,
    attrs: Mapping[str, Any],
    shape: Shape,
    base: Item,
    chosen: Sequence[index_vectors.Chosen],
    written: Item,
) -> Item:
    """What several ids add to ``base``, or one id adds or writes.

    Example: entries ``(i, j)`` are added as the rows ``i`` of zeros to which entries ``j`` are.
    """
    if len(chosen) == 1:
        return _scattered(low, attrs, shape, base, chosen[0].ids, written)
    step = index_vectors.step(attrs, chosen, shape, _SCATTER)
    zeros = Known((np.broadcast_to(np.array(0, dtype="float32"), step.between),), "float32")
    rows = _added_by_each(low, step.others, step.between, zeros, step.left, written)
    return _scattered(low, step.attrs, shape, base, step.ids, rows)


def _scattered(
    low: Lowering, attrs: Mapping[str, Any], shape: Shape, base: Item, x: Item, written: Item
) -> Item:
    """Rows along one dimension of ``base``, of this shape."""
    attrs, ids, kept = _aimed(x, attrs, _SCATTER[0])
    (dim,) = attrs["scatter_dims_to_operand_dims"]
    cut = _window(attrs, _SCATTER, len(shape))
    if cut >= 0:
        attrs = _dropped(attrs, _SCATTER, cut)
        written = _without(low, written, cut)
    given_item, live = _live(low, attrs, ids, written)
    updates = low.tensor(given_item)
    batching = dict(
        zip(
            attrs.get("input_batching_dims", ()),
            (kept.index(d) for d in attrs.get("scatter_indices_batching_dims", ())),
            strict=True,
        )
    )
    if attrs.get("inserted_window_dims", ()) != (dim,):
        raise Unsupported("a scatter of other boxes than whole rows")
    letters = iter(_LETTERS)
    own = [next(letters) for _ in low.recorder.shape(ids.origin)]
    windows = [d for d in range(len(shape)) if d != dim and d not in batching]
    names = ["v" if d == dim else "" for d in range(len(shape))]
    given = []
    at, batch = iter(windows), iter(range(len(ids.shape)))
    back = {e: d for d, e in batching.items()}
    for d, n in enumerate(low.recorder.shape(updates)):
        if d in attrs.get("update_window_dims", ()):
            target = next(at)
            if shape[target] != n:
                raise Unsupported("a scatter of other boxes than whole rows")
            names[target] = name = next(letters)
        else:
            e = next(batch)
            name = own[ids.axes[e]] if ids.axes[e] >= 0 else next(letters)
            if e in back:
                names[back[e]] = name
        given.append(name)
    equation = f"{''.join(own)}v,{''.join(given)}->{''.join(names)}"
    if attrs["to_apply"] == "add":
        added = _added(low, ids, live, updates, equation, shape, dim)
    else:
        onehot = low.values.onehot(ids.origin, _written(low, ids, shape[dim], live), shape[dim])
        added = Tensor(low.values.contracted(onehot, updates, equation))
    if isinstance(base, Known) and base.number() == 0 and attrs["to_apply"] == "add":
        return added
    if attrs["to_apply"] == "add":
        return Tensor(low.recorder.op("add", low.tensor(base), added.value))
    _once(low, ids, set(own) & set(names), own, set(given) - set(own) - set(names))
    if isinstance(base, Known) and base.number() == 0:
        return added
    rows = "".join(n for n in names if n in (*own, "v"))
    hit = low.op("einsum", onehot, equation=f"{''.join(own)}v->{rows}").value
    missed = low.op("add", low.op("mul", hit, other=Fraction(-1)).value, other=Fraction(1)).value
    wide = low.values.broadcast(missed, [names.index(n) for n in rows], shape)
    left = low.op("mul", low.tensor(base), wide).value
    return Tensor(low.recorder.op("add", left, added.value))


def _added(
    low: Lowering,
    ids: Ids,
    live: Sequence[Function],
    updates: int,
    equation: str,
    shape: Shape,
    dim: int,
) -> Tensor:
    """Updates at the rows that ids choose, added up, among zeros."""
    ranks, count = low.graph.ranks, shape[dim]
    functions = per_rank(ids.functions, ranks)
    inside = [
        _inside(f, own, count) for f, own in zip(functions, per_rank(live, ranks), strict=True)
    ]
    if not low.settled and any(
        chosen_rows(f, own, count) is None for f, own in zip(functions, inside, strict=True)
    ):
        raise Narrow(ids.origin, count)
    total: int | None = None
    for part in repeats.parts(functions, inside, count):
        onehot = low.values.choice(ids.origin, part)
        value = low.values.of_ranks(part, low.values.contracted(onehot, updates, equation))
        size = low.recorder.shape(value)[dim]
        zeros = [(*shape[:dim], n, *shape[dim + 1 :]) for n in (part.row, count - part.row - size)]
        before, after = ([low.values.full(z, Fraction(0))] if z[dim] else [] for z in zeros)
        if before or after:
            value = low.op("concat", *before, value, *after, dim=dim).value
        total = value if total is None else low.op("add", total, value).value
    return Tensor(low.values.full(shape, Fraction(0)) if total is None else total)


def _inside(f: Function, live: Function, count: int) -> Function:
    """For which ids a row is one that there is, and counts."""
    return piecewise.combine("and", repeats.inside(f, count), live)


def _without(low: Lowering, updates: Item, dim: int) -> Item:
    """Updates without a dimension of one position."""
    value = updates.value if isinstance(updates, Gated) else low.tensor(updates)
    shape = low.recorder.shape(value)
    if shape[dim] != 1:
        raise Unsupported("a scatter of other boxes than whole rows")
    rest = (*shape[:dim], *shape[dim + 1 :])
    viewed = low.values.view(value, rest)
    if isinstance(updates, Gated):
        gate = reshape(low, updates.gate, rest)
        if isinstance(gate, Ids):
            return Gated(viewed, gate)
        return Tensor(low.values.view(low.tensor(updates), rest))
    return Tensor(viewed)


def _once(low: Lowering, ids: Ids, batch: set[str], own: Sequence[str], repeated: set[str]) -> None:
    """Refuse values of which several may be written to one place: every other axis of the ids than
    those of the batch has one position, or is one along which no place is twice."""
    shape = low.recorder.shape(ids.origin)
    free = [a for a, name in enumerate(own) if name not in batch and shape[a] != 1]
    many = repeated and any(n != 1 for d, n in enumerate(ids.shape) if ids.axes[d] < 0)
    if many or any(low.distinct.get(ids.origin) != a for a in free):
        raise Unsupported("values of which several may be written to one place")


def _live(
    low: Lowering, attrs: Mapping[str, Any], ids: Ids, updates: Item
) -> tuple[Item, tuple[Function, ...]]:
    """What is written, and for which ids it is not zero (1), of all: where it is gated by the ids
    that say where it is written."""
    every = (piecewise.constant(ids.functions[0], 1),)
    if not isinstance(updates, Gated) or attrs["to_apply"] != "add":
        return updates, every
    gate = updates.gate
    batch = [d for d in range(len(gate.shape)) if d not in attrs.get("update_window_dims", ())]
    axes = tuple(gate.axes[d] for d in batch)
    rest = [a for d, a in enumerate(gate.axes) if d not in batch]
    if gate.origin != ids.origin or axes != ids.axes or any(a >= 0 for a in rest):
        return updates, every
    return Tensor(updates.value), gate.functions


def _written(low: Lowering, ids: Ids, count: int, live: tuple[Function, ...] = ()) -> list[int]:
    """The first id of those that write to the rows, on every rank."""
    starts = []
    ranks = low.graph.ranks
    live = live or (piecewise.constant(ids.functions[0], 1),)
    for f, own in zip(per_rank(ids.functions, ranks), per_rank(live, ranks), strict=True):
        rows = chosen_rows(f, _inside(f, own, count), count)
        if rows is None:
            raise Narrow(ids.origin, count)
        if len(rows) != 1 or rows[0].size != count:
            raise Unsupported("a scatter that writes some of the rows")
        starts.append(rows[0].id)
    return starts


def dynamic(low: Lowering, node: Node, xs: Sequence[Item], first: int) -> tuple[int, Ids]:
    """Where a dynamic slice or update of one position begins: the dimension in which data says so,
    and the scalar id of the position. Raises `Unsupported` unless it begins at 0 in all other
    dimensions.

    Example: of ``dynamic-slice(x, i, 0)`` with an id ``i``, dimension 0 and ``i``; two ids are
    refused.
    """
    starts = xs[first:]
    moving = [d for d, x in enumerate(starts) if not isinstance(x, Known)]
    still = [x.number() for x in starts if isinstance(x, Known)]
    if len(moving) != 1 or any(still):
        raise Unsupported("starts that depend on data")
    chosen = starts[moving[0]]
    if not isinstance(chosen, Ids):
        raise Unsupported("starts that depend on data")
    return moving[0], chosen


def dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A dynamic slice of one row, whose number is an id.

    Example: ``dynamic-slice(x, i, 0)`` of ``f32[5,6]`` as ``[1, 6]``: the ``onehot`` of ``i`` and
    ``einsum`` by ``v,va->a``; as ``[2, 6]`` it is refused.
    """
    dim, chosen = dynamic(low, node, xs, 1)
    shape = low.recorder.shape(low.tensor(xs[0]))
    whole = tuple(1 if d == dim else n for d, n in enumerate(shape))
    if low.shape(node) != whole:
        raise Unsupported("a slice of several positions that begins where data says")
    attrs = {
        "offset_dims": tuple(range(len(shape) - 1)),
        "collapsed_slice_dims": (dim,),
        "start_index_map": (dim,),
        "index_vector_dim": 0,
        "slice_sizes": whole,
    }
    rest = tuple(n for d, n in enumerate(shape) if d != dim)
    rows = _gathered(low, attrs, low.tensor(xs[0]), chosen, (), rest)
    row = reshaped(rows, whole)
    if row is None:
        raise Unsupported("a slice of one position that begins where data says")
    return row


def dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A dynamic update of one row, whose number is an id (clamped).

    Example: ``f32[1,6]`` at row ``i`` of ``x = f32[5,6]`` is ``h * u + x * (1 - h)`` where ``h`` is
    the one-hot of ``i`` along the rows.
    """
    dim, chosen = dynamic(low, node, xs, 2)
    shape, part = low.shape(node), low.tensor(xs[1])
    if low.recorder.shape(part) != tuple(1 if d == dim else n for d, n in enumerate(shape)):
        raise Unsupported("an update of several positions that begins where data says")
    clamped = _clamped(chosen, shape[dim])
    onehot = low.values.onehot(
        chosen.origin,
        _written(low, Ids(chosen.origin, chosen.axes, chosen.shape, clamped), shape[dim]),
        shape[dim],
    )
    line = low.values.view(onehot, (shape[dim],))
    hit = low.values.broadcast(line, (dim,), shape)
    wide = low.op("expand", part, size=shape).value
    written = low.op("mul", hit, wide).value
    if isinstance(xs[0], Known) and xs[0].number() == 0:
        return Tensor(written)
    missed = low.op("add", low.op("mul", hit, other=Fraction(-1)).value, other=Fraction(1)).value
    return low.op("add", low.op("mul", low.tensor(xs[0]), missed).value, written)


def _clamped(ids: Ids, count: int) -> tuple[Function, ...]:
    return tuple(
        piecewise.combine(
            "minimum",
            piecewise.combine("maximum", f, piecewise.constant(f, 0)),
            piecewise.constant(f, count - 1),
        )
        for f in ids.functions
    )
