"""Vectors of several indices, as ``x[jnp.arange(n), ids]`` makes them: each index by itself.

A gather or scatter by such vectors is one by the only index that is computed of ids, where every
other one counts the positions of a dimension: that is a dimension of the batch.  XLA's passes let
every result be a box of one position, which changes nothing of what is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.items import Ids, Item, Vectors
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Type
from shardproof.frontends.hlo.state import Lowering, Rule

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
    attrs: Mapping[str, Any], count: int, result: Shape, keys: tuple[str, str, str, str, str]
) -> tuple[Mapping[str, Any], Shape]:
    """Attributes and the shape of the result (or of the updates) of a gather or scatter by vectors,
    of a tensor of ``count`` dimensions, whose boxes have no dimension that an index chooses;
    ``keys``: as for `single`, and which attribute says what boxes are.

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


def single(
    given: Mapping[str, Any], x: Vectors, shape: Shape, keys: tuple[str, str, str, str]
) -> tuple[Mapping[str, Any], Ids]:
    """Attributes and ids of the gather or scatter of a tensor of this shape by the one index that
    is of ids; ``keys``: which attributes say what the indices are of, which dimensions are dropped,
    and which are of the batch, of the tensor and of the ids.

    Example: of ``x[jnp.arange(4), ids]`` with ``x = f32[4,9]``, a gather along dimension 1 by the
    ids, where dimension 0 of ``x`` and of the ids is of the batch.
    """
    to_dims, dropped, batching, own_batching = keys
    attrs = dict(given)
    dims = attrs[to_dims]
    if attrs["index_vector_dim"] != len(x.shape) - 1 or attrs.get(batching, ()):
        raise Unsupported("rows chosen by vectors of several indices")
    ids: list[tuple[int, Ids]] = []
    pairs: list[tuple[int, int]] = []
    for dim, part in zip(dims, x.parts, strict=True):
        along = _counted(part, shape[dim]) if isinstance(part, Known) else -1
        if isinstance(part, Ids):
            ids.append((dim, part))
        elif along >= 0:
            pairs.append((dim, along))
        else:
            raise Unsupported("rows chosen by vectors of several indices")
    if len(ids) != 1 or not set(dims) <= set(attrs.get(dropped, ())):
        raise Unsupported("rows chosen by vectors of several indices")
    ((dim, chosen),) = ids
    pairs.sort()
    attrs[to_dims] = (dim,)
    attrs[dropped] = tuple(d for d in attrs[dropped] if d == dim)
    attrs[batching] = tuple(d for d, _ in pairs)
    attrs[own_batching] = tuple(e for _, e in pairs)
    attrs["index_vector_dim"] = len(chosen.shape) - 1
    return attrs, Ids(chosen.origin, chosen.axes[:-1], chosen.shape[:-1], chosen.functions)


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
