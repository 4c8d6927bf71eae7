"""Rules for operators of HLO that move elements, contract them, or reduce them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank, Shape
from shardproof.frontends.hlo import elementwise, exchange, indices
from shardproof.frontends.hlo.elementwise import finite, number_of
from shardproof.frontends.hlo.exchange import Exchanged
from shardproof.frontends.hlo.items import Ids, Item, Lookup, Tensor
from shardproof.frontends.hlo.semantics import dot_equation
from shardproof.frontends.hlo.state import Lowering

#: Positions of a dimension that is put in reverse order.
MOST_REVERSED = 64


def broadcast(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = node.attrs.get("dimensions", ())
    if isinstance(xs[0], Ids):
        return indices.broadcast(xs[0], dims, low.shape(node))
    return Tensor(low.values.broadcast(low.tensor(xs[0]), dims, low.shape(node)))


def reshape(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[0], Ids):
        return indices.reshape(low, xs[0], low.shape(node))
    if isinstance(xs[0], Lookup) and xs[0].shape == low.shape(node):
        return xs[0]
    if isinstance(xs[0], Exchanged):
        found = exchange.reshaped(low.recorder, xs[0], low.shape(node))
        if found is not None:
            return Tensor(found) if isinstance(found, int) else found
    return Tensor(low.values.view(low.tensor(xs[0]), low.shape(node)))


def bitcast(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if low.graph.values[node.operands[0]].shape != low.shape(node):
        raise Unsupported("a bitcast after layout assignment, which may be a transpose")
    return xs[0]


def transpose(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = node.attrs["dimensions"]
    if isinstance(xs[0], Ids):
        return indices.transpose(xs[0], dims)
    if isinstance(xs[0], Exchanged):
        found = exchange.transposed(xs[0], tuple(dims))
        if found is not None:
            return found
    return low.op("permute", low.tensor(xs[0]), dims=tuple(dims))


def _cut(low: Lowering, item: Item, starts: Sequence[int | PerRank], sizes: Shape) -> Item:
    """A box of a tensor."""

    def cut(value: int) -> int:
        dtype = low.recorder.values[value].dtype
        for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            if size != low.recorder.shape(value)[d]:
                value = low.recorder.op("slice", value, dim=d, start=start, size=size, dtype=dtype)
        return value

    if not isinstance(item, Ids):
        return Tensor(cut(low.tensor(item)))
    if any(len(f) > 1 or f[0][2:] != (1, 0) for f in item.functions):
        raise Unsupported("a slice of computed ids")
    return indices.moved(low, item, ("slice", tuple(starts), sizes), cut)


def slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if any(step != 1 for _, _, step in node.attrs["slice"]):
        raise Unsupported("a slice with steps")
    return _cut(low, xs[0], [start for start, _, _ in node.attrs["slice"]], low.shape(node))


def reverse(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Positions of some dimensions in the other order, one after the other."""
    if isinstance(xs[0], Ids):
        raise Unsupported("ids in reverse order")
    value = low.tensor(xs[0])
    for dim in node.attrs["dimensions"]:
        count = low.recorder.shape(value)[dim]
        if count > MOST_REVERSED:
            raise Unsupported(f"{count} positions in reverse order")
        if count > 1:
            rows = [
                low.op("slice", value, dim=dim, start=count - 1 - i, size=1).value
                for i in range(count)
            ]
            value = low.op("concat", *rows, dim=dim).value
    return Tensor(value)


def dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if "starts" not in node.attrs:
        raise Unsupported("starts that depend on data")
    return _cut(low, xs[0], node.attrs["starts"], low.shape(node))


def dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What is before the part, the part, what is after it, along one dimension."""
    if "starts" not in node.attrs:
        raise Unsupported("starts that depend on data")
    starts, part, shape = node.attrs["starts"], low.tensor(xs[1]), low.shape(node)
    sizes = low.recorder.shape(part)
    cut = [d for d, n in enumerate(shape) if sizes[d] != n]
    if not cut:
        return Tensor(part)
    if len(cut) > 1 or isinstance(starts[cut[0]], PerRank):
        raise Unsupported("an update of a box along several dimensions, or elsewhere on each rank")
    return framed(low, xs[0], part, cut[0], starts[cut[0]], shape)


def framed(low: Lowering, around: Item, part: int, dim: int, start: int, shape: Shape) -> Tensor:
    """``around`` with ``part`` instead of its positions from ``start`` on."""
    size = low.recorder.shape(part)[dim]
    pieces = [part]
    for begin, end, first in ((0, start, True), (start + size, shape[dim], False)):
        if end > begin:
            box = (*shape[:dim], end - begin, *shape[dim + 1 :])
            number = finite(around)
            if number is not None:
                piece = low.values.full(box, number)
            else:
                at = [begin if d == dim else 0 for d in range(len(shape))]
                piece = low.tensor(_cut(low, around, at, box))
            pieces.insert(0 if first else len(pieces), piece)
    return low.op("concat", *pieces, dim=dim) if len(pieces) > 1 else Tensor(part)


def concatenate(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if len(xs) == 1:
        return xs[0]
    return low.op("concat", *(low.tensor(x) for x in xs), dim=node.attrs["dimensions"][0])


def pad(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if any(interior for _, _, interior in node.attrs["padding"]):
        raise Unsupported("padding between elements")
    if finite(xs[1]) is None:
        raise Unsupported("padding with what is no finite constant")
    value = low.tensor(xs[0])
    for d, (before, after, _) in enumerate(node.attrs["padding"]):
        size = low.recorder.shape(value)[d] + min(before, 0) + min(after, 0)
        if size <= 0:
            raise Unsupported("padding that leaves nothing")
        if size != low.recorder.shape(value)[d]:
            value = low.recorder.op("slice", value, dim=d, start=-min(before, 0), size=size)
        shape = low.recorder.shape(value)
        wide = (*shape[:d], size + max(before, 0) + max(after, 0), *shape[d + 1 :])
        value = framed(low, xs[1], value, d, max(before, 0), wide).value
    return Tensor(value)


# -- contractions, reductions ----------------------------------------------------------------------


def dot(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if not low.dtype(node).startswith(("float", "bfloat")):
        raise Unsupported("a product of integers")
    left, right = (len(low.graph.values[v].shape) for v in node.operands)
    equation = dot_equation(node.attrs, left, right)
    return low.op("einsum", *(low.tensor(x) for x in xs), equation=equation)


def reduce(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = tuple(node.attrs.get("dimensions", ()))
    how = node.attrs["to_apply"]
    if isinstance(xs[0], Ids):
        return indices.reduce(low, xs[0], dims, low.shape(node), how, xs[1])
    if low.dtype(node) == "bool":
        raise Unsupported(f"a reduction of predicates by {how}")
    neutral = {"add": 0, "maximum": -inf, "minimum": inf}.get(how)
    if neutral is None:
        raise Unsupported(f"a reduction by {how}")
    value = low.tensor(xs[0])
    sign = Fraction(-1)
    if how == "minimum":
        value = low.op("mul", value, other=sign).value
    if dims:
        value = low.op("sum" if how == "add" else "amax", value, dim=dims).value
    if how == "minimum":
        value = low.op("mul", value, other=sign).value
    if number_of(xs[1]) == neutral:
        return Tensor(value)
    first = Tensor(low.values.broadcast(low.tensor(xs[1]), (), low.shape(node)))
    joined = Node(node.name, how, node.operands, node.results)
    if how == "add":
        return elementwise.add(low, joined, [Tensor(value), first])
    return elementwise.maximum(low, joined, [Tensor(value), first])
