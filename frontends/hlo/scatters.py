"""Scatters to rows that ids choose: what is added there, or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, chosen_rows
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import elementwise, index_vectors, marked, repeats
from shardproof.frontends.hlo.indices import reshape
from shardproof.frontends.hlo.items import (
    Gated,
    Ids,
    Item,
    Narrow,
    Tensor,
    Vectors,
    per_rank,
)
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.lookups import (
    LETTERS,
    MOST_POSITIONS,
    aimed,
    dropped,
    window,
)
from shardproof.frontends.hlo.state import Lowering
from shardproof.frontends.hlo.viewed import viewed

_SCATTER: Final[index_vectors.Keys] = (
    "scatter_dims_to_operand_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "update_window_dims",
)


def scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Rows added or written along one dimension, entries that are added by several ids, and one
    number wherever an id is; what is out of bounds is dropped, as XLA says.

    Example: rows ``f32[4,8]`` added at four ids to ``f32[32,8]``: the ``onehot`` of the ids, [4,
    32], ``einsum`` with the rows by ``av,ab->vb``, and ``add``; 1 written there: a choice by where
    the sum of the ``onehot`` is positive.  Boxes of several positions from an id on are written
    position by position.
    """
    boxes = low.graph.values[node.operands[2]].shape
    if isinstance(xs[1], Vectors):
        wide = index_vectors.several(node.attrs, xs[1], low.shape(node), boxes, _SCATTER)
        if wide is not None:
            return _each_position(low, node, xs, xs[1], boxes, wide)
    return _narrow(low, node, xs, boxes, low.shape(node))


def _each_position(
    low: Lowering,
    node: Node,
    xs: Sequence[Item],
    x: Vectors,
    boxes: Shape,
    wide: tuple[int, int, int],
) -> Item:
    """Boxes of several positions from an id on, one position after the other
    (``vmap(dynamic_update_slice)``): no two of them are one place of a box."""
    number, dim, at = wide
    first, last = x.parts[number], low.shape(node)[dim] - boxes[at]
    if not isinstance(first, Ids) or boxes[at] > MOST_POSITIONS:
        raise Unsupported("a scatter of other boxes than whole rows")
    ends = [p.at(i) for f in first.functions for p in f for i in (p.low, p.high - 1)]
    if not 0 <= min(ends) <= max(ends) <= last:
        # A box that is not inside is dropped as a whole.
        if low.settled:
            raise Unsupported("a box that is dropped for some ids")
        raise Narrow(first.origin, last + 1)
    base, box = low.tensor(xs[0]), (*boxes[:at], 1, *boxes[at + 1 :])
    shape = low.recorder.shape(base)
    rows = (*shape[:dim], last + 1, *shape[dim + 1 :])
    for by in range(boxes[at]):
        # The id chooses among the rows from there on, of which it has as many as the last box.
        own = Tensor(_cut(low, base, dim, by, last + 1))
        made = _narrow(low, node, [own, x, _position(low, xs[2], at, by)], box, rows)
        around = (0, by), (by + last + 1, shape[dim] - by - last - 1)
        parts = [[_cut(low, base, dim, start, n)] if n else [] for start, n in around]
        base = low.op("concat", *parts[0], low.tensor(made), *parts[1], dim=dim).value
    return Tensor(base)


def _cut(low: Lowering, value: int, dim: int, start: int, size: int) -> int:
    """So many positions of a dimension."""
    if size == low.recorder.shape(value)[dim]:
        return value
    dtype = low.recorder.values[value].dtype
    return low.recorder.op("slice", value, dim=dim, start=start, size=size, dtype=dtype)


def _position(low: Lowering, x: Item, dim: int, at: int) -> Item:
    """One position of what is written."""
    if isinstance(x, Known):
        return Known(tuple(np.take(a, [at], axis=dim) for a in x.arrays), x.dtype)
    return Tensor(_cut(low, low.tensor(x), dim, at, 1))


def _narrow(low: Lowering, node: Node, xs: Sequence[Item], boxes: Shape, shape: Shape) -> Item:
    """Boxes of one position along dimensions that ids choose, of these sizes, in a tensor of this
    shape."""
    attrs, written = node.attrs, xs[2]
    if isinstance(xs[1], Vectors):
        attrs, boxes, chosen = index_vectors.resolved(attrs, xs[1], shape, boxes, _SCATTER)
        written = viewed(low, written, boxes)
    else:
        attrs, ids, kept = aimed(xs[1], attrs, _SCATTER[0])
        batch = tuple(kept.index(d) for d in attrs.get(_SCATTER[3], ()))
        attrs = {**attrs, _SCATTER[3]: batch, "index_vector_dim": len(ids.shape)}
        chosen = [index_vectors.Chosen(attrs[_SCATTER[0]][0], ids)]
    several = len(chosen) > 1 or _repeats(low, attrs, chosen[0].ids)
    adds, (dim, ids) = attrs["to_apply"] == "add", chosen[0]
    only_marks = not (adds or several) and marked.marks(low, node, xs, ids, shape[dim])
    if adds or not (several or only_marks):
        return _by_each(low, attrs, shape, xs[0], chosen, written)
    if not only_marks and (not isinstance(xs[2], Known) or xs[2].number() is None):
        raise Unsupported("values of which several may be written to one place")
    ones, zeros = (
        Known((np.broadcast_to(np.array(n, dtype="float32"), own),), "float32")
        for n, own in ((1, boxes), (0, shape))
    )
    count = _by_each(low, {**attrs, "to_apply": "add"}, shape, zeros, chosen, ones)
    if only_marks:
        return count
    assert isinstance(xs[2], Known)
    number = Known((np.broadcast_to(np.array(xs[2].number(), "float32"), shape),), "float32")
    hit = low.op("step", low.tensor(count))
    return elementwise.select(low, node, [hit, number, xs[0]])


def _by_each(
    low: Lowering,
    attrs: Mapping[str, Any],
    shape: Shape,
    base: Item,
    chosen: Sequence[index_vectors.Chosen],
    written: Item,
) -> Item:
    """What several ids add to ``base``, or ids along one dimension add or write.

    Example: entries ``(i, j)`` are added as the rows ``i`` of zeros to which entries ``j`` are.
    """
    if len(chosen) == 1:
        return _scattered(low, attrs, shape, base, chosen[0].ids, written)
    step = index_vectors.step(attrs, chosen, shape, _SCATTER)
    zeros = Known((np.broadcast_to(np.array(0, dtype="float32"), step.between),), "float32")
    rows = _by_each(low, step.others, step.between, zeros, step.left, written)
    return _scattered(low, step.attrs, shape, base, step.ids, rows)


def _scattered(
    low: Lowering, attrs: Mapping[str, Any], shape: Shape, base: Item, ids: Ids, written: Item
) -> Item:
    """Rows added or written along one dimension of ``base``, of this shape."""
    (dim,) = attrs["scatter_dims_to_operand_dims"]
    cut = window(attrs, _SCATTER, len(shape))
    if cut >= 0:
        attrs = dropped(attrs, _SCATTER, cut)
        written = _without(low, written, cut)
    given_item, live = _live(low, attrs, ids, written)
    updates = low.tensor(given_item)
    batching = dict(
        zip(attrs.get("input_batching_dims", ()), attrs.get(_SCATTER[3], ()), strict=True)
    )
    if attrs.get("inserted_window_dims", ()) != (dim,):
        raise Unsupported("a scatter of other boxes than whole rows")
    letters = iter(LETTERS)
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
    some = attrs["to_apply"] != "add" and not _all_rows(low, ids, shape[dim], live)
    if attrs["to_apply"] == "add" or some:
        added = _added(low, ids, live, updates, equation, shape, dim)
    else:
        onehot = low.values.onehot(ids.origin, writers(low, ids, shape[dim], live), shape[dim])
        added = Tensor(low.values.contracted(onehot, updates, equation))
    if isinstance(base, Known) and base.number() == 0 and attrs["to_apply"] == "add":
        return added
    if attrs["to_apply"] == "add":
        return Tensor(low.recorder.op("add", low.tensor(base), added.value))
    if isinstance(base, Known) and base.number() == 0:
        return added
    if some:
        ones = low.values.full(low.recorder.shape(updates), Fraction(1))
        hits = _added(low, ids, live, ones, equation, shape, dim).value
        return _beside(low, base, hits, added.value)
    rows = "".join(n for n in names if n in (*own, "v"))
    hit = low.op("einsum", onehot, equation=f"{''.join(own)}v->{rows}").value
    wide = low.values.broadcast(hit, [names.index(n) for n in rows], shape)
    return _beside(low, base, wide, added.value)


def _beside(low: Lowering, base: Item, hits: int, written: int) -> Tensor:
    """What is written, and the tensor that was there where nothing is (``hits`` is 0)."""
    missed = low.op("add", low.op("mul", hits, other=Fraction(-1)).value, other=Fraction(1)).value
    left = low.op("mul", low.tensor(base), missed).value
    return Tensor(low.recorder.op("add", left, written))


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
    free = not low.settled and piecewise.vary(ids.functions)
    if free and any(
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


def added_row(low: Lowering, at: Ids, row: int, dim: int, count: int) -> int:
    """A row among zeros, ``count`` of them altogether along a dimension, at a scalar id.

    Example: ``f32[1,6]`` at ``i`` of 5 along dimension 0 is ``onehot(i)`` and ``einsum`` by
    ``v,a->va``.
    """
    shape = list(low.recorder.shape(row))
    rest = LETTERS[: len(shape) - 1]
    own = LETTERS[len(shape) : len(shape) + len(low.recorder.shape(at.origin))]
    updates = low.values.view(row, tuple(n for d, n in enumerate(shape) if d != dim))
    shape[dim] = count
    equation = f"{own}v,{rest}->{rest[:dim]}v{rest[dim:]}"
    live = (piecewise.constant(at.functions[0], 1),)
    return _added(low, at, live, updates, equation, tuple(shape), dim).value


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


def _repeats(low: Lowering, attrs: Mapping[str, Any], ids: Ids) -> bool:
    """Whether several ids may choose one place: not where every other axis of the ids than those of
    the batch has one position, or is one along which no place is twice."""
    batch = attrs.get(_SCATTER[3], ())
    if any(n != 1 for d, n in enumerate(ids.shape) if ids.axes[d] < 0 and d not in batch):
        return True
    shape = low.recorder.shape(ids.origin)
    of_batch = {ids.axes[e] for e in batch}
    free = [a for a, n in enumerate(shape) if n != 1 and a not in of_batch]
    return any(low.distinct.get(ids.origin) != a for a in free)


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


def _all_rows(low: Lowering, ids: Ids, count: int, live: Sequence[Function]) -> bool:
    """Whether each of so many rows is chosen by one id on every rank; raises `Narrow` where an id
    has no row, or several have one."""
    ranks = low.graph.ranks
    every = True
    for f, own in zip(per_rank(ids.functions, ranks), per_rank(live, ranks), strict=True):
        rows = chosen_rows(f, _inside(f, own, count), count)
        if rows is None:
            raise Narrow(ids.origin, count)
        every &= len(rows) == 1 and rows[0].size == count
    return every


def writers(low: Lowering, ids: Ids, count: int, live: tuple[Function, ...] = ()) -> list[int]:
    """The first id of those that write to the rows, on every rank; ``live``: for which ids at all.

    Example: of ids in [0, 12) that are written less 4 on rank 1 to 8 rows, 0 and 4.

    Raises `Unsupported` where some row has no id, and `Narrow` where an id has no row.
    """
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
