"""Vectors of several indices, as ``x[jnp.arange(n), ids]`` makes them: each index by itself.

A gather or scatter by such vectors is one by each index that is computed of ids, one after the
other, where every other one counts the positions of a dimension: that is a dimension of the batch.
XLA's passes let every result be a box of one position, which changes nothing of what is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.items import Ids, Item, Vectors
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Type
from shardproof.frontends.hlo.state import Lowering, Rule

#: Which attributes say what the indices are of, which dimensions are dropped, which are of the
#: batch, of the tensor and of the ids, and where the dimensions of boxes are.
Keys: TypeAlias = tuple[str, str, str, str, str]


class Chosen(NamedTuple):
    """Ids that choose along a dimension.  Example: of ``x[:, ids]``, dimension 1 and the ids."""

    dim: int
    ids: Ids


#: What is done to every index by itself.
EACH = frozenset(
    {"add", "subtract", "compare", "select", "clamp", "and", "or", "minimum", "maximum", "convert"}
)


def joined(xs: Sequence[Item], dim: int, shape: Shape) -> Vectors | None:
    """A concatenation of indices, of which one at least is of ids, along the last dimension; None:
    it is another.

    Example: ``concatenate(reshape(iota), reshape(ids))`` of ``s32[4,1]`` each, along dimension 1,
    is `Vectors` of shape (4, 2): a known count and the ids.
    """
    whole = all(isinstance(x, Ids | Known | Vectors) for x in xs)
    if dim != len(shape) - 1 or not whole or all(isinstance(x, Known) for x in xs):
        return None
    parts = [part for x in xs for part in _parts(x)]
    return Vectors(tuple(parts), shape) if len(parts) == shape[-1] else None


def _parts(x: Item) -> list[Ids | Known]:
    match x:
        case Vectors(parts):
            return list(parts)
        case Ids() if x.shape[-1] == 1:
            return [x]
        case Known():
            return [_component(x, n) for n in range(x.shape[-1])]
    return []


def _component(x: Known, number: int) -> Known:
    return Known(tuple(a[..., number : number + 1] for a in x.arrays), x.dtype)


def _own(x: Item, number: int) -> Item:
    """What belongs to one index of the vectors."""
    match x:
        case Vectors(parts):
            return parts[number]
        case Known():
            return _component(x, number)
        case Ids() if x.axes[-1] < 0:
            return Ids(x.origin, x.axes, (*x.shape[:-1], 1), x.functions)
    raise Unsupported("vectors of indices together with other numbers")


def apply(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """An operator on vectors of indices, index by index; raises `Unsupported` for any but `EACH`.

    Example: ``compare(v, 0), direction=GE`` of ``v = s32[4,2]`` compares the count with 0, which is
    folded, and the ids with 0, which is a function of the id; ``negate(v)`` is refused.
    """
    if node.target == "reduce":
        return _all(low, node, xs)
    shape = low.shape(node)
    if node.target in ("reshape", "copy") and xs[0].shape == shape:  # type: ignore[union-attr]
        return xs[0]
    if node.target not in EACH:
        raise Unsupported(f"{node.target} of vectors of indices")
    results: list[Ids | Known] = []
    for number in range(shape[-1]):
        own = [_own(x, number) for x in xs]
        constants = [x for x in own if isinstance(x, Known)]
        type = Type((*shape[:-1], 1), low.dtype(node))
        one = known.fold(node.target, node.attrs, constants, type) if own == constants else None
        made = one if one is not None else rule(low, node, own)
        if not isinstance(made, Ids | Known):
            raise Unsupported(f"{node.target} of vectors of indices")
        results.append(made)
    return Vectors(tuple(results), shape)


def _all(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Whether every index of a vector is as asked."""
    vectors, shape = xs[0], low.shape(node)
    if not isinstance(vectors, Vectors) or node.attrs["to_apply"] != "and":
        raise Unsupported("a reduction of vectors of indices")
    if tuple(node.attrs["dimensions"]) != (len(vectors.shape) - 1,):
        raise Unsupported("a reduction of vectors of indices")
    open_: list[Item] = []
    for part in vectors.parts:
        if part.number() == 1:
            continue
        if isinstance(part, Ids):
            open_.append(Ids(part.origin, part.axes[:-1], part.shape[:-1], part.functions))
        else:
            arrays = tuple(a[..., 0] for a in part.arrays)
            open_.append(Known(arrays, part.dtype))
    if not open_:
        return Known((np.broadcast_to(np.array(True), shape),), "bool")
    holds = open_[0]
    for other in open_[1:]:
        holds = low.op("mul", low.tensor(holds), low.tensor(other))
    return holds


def dropped(
    attrs: Mapping[str, Any], count: int, result: Shape, keys: Keys
) -> tuple[Mapping[str, Any], Shape]:
    """Attributes and the shape of the result (or of the updates) of a gather or scatter by vectors,
    of a tensor of ``count`` dimensions, whose boxes have no dimension that an index chooses;
    ``keys``: see `Keys`.

    Example: results ``f32[8,1,1]`` of vectors ``s32[8,2]`` are ``f32[8]``.

    Raises `Unsupported` where a box has several positions along such a dimension.
    """
    to_dims, gone, batching, _, boxes = keys
    left = (*attrs.get(gone, ()), *attrs.get(batching, ()))
    windows = [d for d in range(count) if d not in left]
    own = tuple(attrs.get(boxes, ()))
    narrow = {own[windows.index(d)] for d in attrs[to_dims] if d in windows}
    if any(result[p] != 1 for p in narrow):
        raise Unsupported("rows chosen by vectors of several indices")
    kept = [p for p in range(len(result)) if p not in narrow]
    more = {
        gone: tuple(sorted({*attrs.get(gone, ()), *attrs[to_dims]})),
        boxes: tuple(n for n, p in enumerate(kept) if p in own),
    }
    return {**attrs, **more}, tuple(result[p] for p in kept)


def resolved(
    given: Mapping[str, Any], x: Vectors, shape: Shape, boxes: Shape, keys: Keys
) -> tuple[Mapping[str, Any], Shape, list[Chosen]]:
    """A gather or scatter of a tensor of this shape by what is left of its index vectors:
    attributes, the shape of the result (or of the updates, which was ``boxes``), and which ids
    choose along which dimension.

    An index that counts the positions of a dimension makes that a dimension of the batch.  One that
    is 0 where a box has all positions of its dimension says nothing
    (``vmap(dynamic_update_slice)``).

    Example: of ``x[jnp.arange(4), ids]`` with ``x = f32[4,9]``, a gather along dimension 1 by the
    ids, where dimension 0 of ``x`` and of the ids is of the batch.

    An index that is one number everywhere is that number for every id.

    Raises `Unsupported` for other known indices.
    """
    attrs, parts = _without_whole(given, x, shape, boxes, keys)
    attrs, boxes = dropped(attrs, len(shape), boxes, keys)
    to_dims, gone, batching, own_batching, _ = keys
    if attrs["index_vector_dim"] != len(x.shape) - 1:
        raise Unsupported("rows chosen by vectors of several indices")
    chosen: list[Chosen] = []
    pairs = list(zip(attrs.get(batching, ()), attrs.get(own_batching, ()), strict=True))
    for dim, part in zip(attrs[to_dims], parts, strict=True):
        along = _counted(part, shape[dim]) if isinstance(part, Known) else -1
        if isinstance(part, Ids):
            own = Ids(part.origin, part.axes[:-1], part.shape[:-1], part.functions)
            chosen.append(Chosen(dim, own))
        elif along >= 0:
            pairs.append((dim, along))
        else:
            chosen.append(Chosen(dim, _always(part, x)))
    pairs.sort()
    dims = tuple(one.dim for one in chosen)
    counted = {d for d, _ in pairs}
    more = {
        to_dims: dims,
        gone: tuple(d for d in attrs[gone] if d not in counted),
        batching: tuple(d for d, _ in pairs),
        own_batching: tuple(e for _, e in pairs),
        "index_vector_dim": len(x.shape) - 1,
    }
    return {**attrs, **more}, boxes, chosen


def several(
    attrs: Mapping[str, Any], x: Vectors, shape: Shape, boxes: Shape, keys: Keys
) -> tuple[int, int, int] | None:
    """Which index begins boxes of several positions of its dimension, but not all of them, which
    dimension that is, and where boxes have it; None: none does.

    Example: of boxes ``f32[4,2,3]`` of ``f32[6,3]`` by vectors ``s32[4,2]``, index 0, dimension 0
    and dimension 1 of the boxes.
    """
    places = _places(attrs, shape, keys)
    for number, dim in enumerate(attrs[keys[0]]):
        if dim in places and 1 < boxes[places[dim]] < shape[dim]:
            return number, dim, places[dim]
    return None


def _places(attrs: Mapping[str, Any], shape: Shape, keys: Keys) -> dict[int, int]:
    """Where boxes have the dimensions of a tensor that they have."""
    _, gone, batching, _, windows_of = keys
    left = (*attrs.get(gone, ()), *attrs.get(batching, ()))
    windows = [d for d in range(len(shape)) if d not in left]
    return dict(zip(windows, attrs.get(windows_of, ()), strict=True))


def _always(part: Known, x: Vectors) -> Ids:
    """One number (of each rank), as a function of ids beside it."""
    like = next(other for other in x.parts if isinstance(other, Ids))
    functions = []
    for array in part.arrays:
        number = Known((array,), part.dtype).number()
        if not isinstance(number, int):
            raise Unsupported("rows chosen by vectors of several indices")
        functions.append(piecewise.constant(like.functions[0], number))
    return Ids(like.origin, like.axes[:-1], like.shape[:-1], tuple(functions))


def _without_whole(
    attrs: Mapping[str, Any], x: Vectors, shape: Shape, boxes: Shape, keys: Keys
) -> tuple[Mapping[str, Any], list[Ids | Known]]:
    """Attributes and indices without those that are 0 where a box has the whole dimension."""
    to_dims, places = keys[0], _places(attrs, shape, keys)
    kept = [
        (dim, part)
        for dim, part in zip(attrs[to_dims], x.parts, strict=True)
        if not (
            dim in places
            and boxes[places[dim]] == shape[dim]
            and isinstance(part, Known)
            and part.number() == 0
        )
    ]
    return {**attrs, to_dims: tuple(d for d, _ in kept)}, [part for _, part in kept]


class Step(NamedTuple):
    """A gather, or a scatter, along one dimension, of several: its attributes, by which ids, of
    what shape the tensor between it and the others is, and the attributes and ids of these.

    Example: of ``table[i, j]`` with ``table = f32[5,7]`` and ids of shape (4,), the gather of rows
    ``i`` into ``between = (4, 7)``, of which ``others`` take entry ``j`` of each.
    """

    attrs: Mapping[str, Any]
    ids: Ids
    between: Shape
    others: Mapping[str, Any]
    left: tuple[Chosen, ...]


def step(attrs: Mapping[str, Any], chosen: Sequence[Chosen], shape: Shape, keys: Keys) -> Step:
    """The first of several indices by itself: what it chooses has the dimensions of the ids before
    those that are left, in their order, and is a batch for the others.

    Example: see `Step`.
    """
    to_dims, gone, batching, own_batching, boxes = keys
    (dim, ids), batch = chosen[0], len(chosen[0].ids.shape)
    rest = [d for d in range(len(shape)) if d != dim and d not in attrs[batching]]
    left = tuple(Chosen(batch + rest.index(one.dim), one.ids) for one in chosen[1:])
    others = tuple(one.dim for one in left)
    first = {
        **attrs,
        to_dims: (dim,),
        gone: (dim,),
        boxes: tuple(range(batch, batch + len(rest))),
        "slice_sizes": tuple(n if d in rest else 1 for d, n in enumerate(shape)),
        "index_vector_dim": batch,
    }
    sizes = attrs.get("slice_sizes", shape)
    second = {
        **attrs,
        to_dims: others,
        gone: others,
        batching: tuple(range(batch)),
        own_batching: tuple(range(batch)),
        "slice_sizes": (1,) * batch + tuple(sizes[d] for d in rest),
        "index_vector_dim": batch,
    }
    return Step(first, ids, (*ids.shape, *(shape[d] for d in rest)), second, left)


def _counted(x: Known, count: int) -> int:
    """Which dimension a known index counts the positions of; -1: it does not count so many."""
    along = set()
    for array in x.arrays:
        core = compact(array)
        moving = [d for d, n in enumerate(core.shape) if n > 1]
        if len(moving) != 1 or not np.array_equal(np.ravel(core), np.arange(count)):
            return -1
        along.add(moving[0])
    return along.pop() if len(along) == 1 else -1
