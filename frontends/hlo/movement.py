"""Rules for operators of HLO that move elements, contract them, or reduce them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank, Shape
from shardproof.frontends.hlo import (
    data_starts,
    elementwise,
    exchange,
    index_vectors,
    indices,
    windows,
)
from shardproof.frontends.hlo.elementwise import finite, number_of
from shardproof.frontends.hlo.exchange import Exchanged
from shardproof.frontends.hlo.items import Gated, Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.semantics import dot_equation
from shardproof.frontends.hlo.state import Framed, Lowering
from shardproof.frontends.hlo.viewed import viewed

#: Positions of a dimension that is put in reverse order.
MOST_REVERSED = 64


def broadcast(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The tensor repeated: dimension i becomes dimension ``dimensions[i]`` of the result.

    Example: ``f32[4]`` as ``f32[3,4]`` with dimensions={1} is ``view`` to [1, 4] and ``expand``.
    """
    dims = node.attrs.get("dimensions", ())
    if isinstance(xs[0], Ids):
        return indices.broadcast(xs[0], dims, low.shape(node))
    if isinstance(xs[0], Gated):
        value = low.values.broadcast(xs[0].value, dims, low.shape(node))
        return Gated(value, indices.broadcast(xs[0].gate, dims, low.shape(node)))
    return Tensor(low.values.broadcast(low.tensor(xs[0]), dims, low.shape(node)))


def reshape(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The same entries, in their order, in another shape: see `viewed`.  Example: ``f32[4,3]`` as
    ``f32[12]``."""
    return viewed(low, xs[0], low.shape(node))


def rounded(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Fewer digits: the identity over the reals, as a cast between floats.  Example:
    ``reduce-precision(x), exponent_bits=8, mantissa_bits=7`` is ``x``."""
    return xs[0]


def transpose(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The tensor with its dimensions in another order.

    Example: ``f32[4,3]`` by {1,0} is ``permute`` with ``dims=(1, 0)``.
    """
    dims = node.attrs["dimensions"]
    if isinstance(xs[0], Ids):
        return indices.transpose(xs[0], dims)
    if isinstance(xs[0], Exchanged):
        exchanged = exchange.transposed(low.recorder, xs[0], tuple(dims))
        if exchanged is not None:
            return exchanged
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
    return indices.each_moved(low, item, ("slice", tuple(starts), sizes), cut)


def slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A box of a tensor, or every so many positions of it.

    Example: [1:5] of nine is ``slice`` with start 1 and size 4; [1:8:3] is position 1 of each row
    of the ``view`` as [3, 3].
    """
    if any(step != 1 for _, _, step in node.attrs["slice"]):
        shape = low.shape(node)

        def every(value: int) -> int:
            for d, (start, _, step) in enumerate(node.attrs["slice"]):
                value = windows.every(low, value, d, start, step, shape[d])
            return value

        if isinstance(xs[0], Ids):
            return indices.each_moved(low, xs[0], ("every", node.attrs["slice"]), every)
        return Tensor(every(low.tensor(xs[0])))
    return _cut(low, xs[0], [start for start, _, _ in node.attrs["slice"]], low.shape(node))


def reverse(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Positions of some dimensions in the other order, one after the other.

    Example: ``f32[3]`` is three slices, the last position first, in a ``concat``.
    """
    if isinstance(xs[0], Ids):
        key = ("reverse", node.attrs["dimensions"])
        return indices.each_moved(low, xs[0], key, lambda v: _reversed(low, node, v))
    return Tensor(_reversed(low, node, low.tensor(xs[0])))


def _reversed(low: Lowering, node: Node, value: int) -> int:
    """A tensor in reverse order, position by position."""
    dtype = low.recorder.values[value].dtype
    for dim in node.attrs["dimensions"]:
        count = low.recorder.shape(value)[dim]
        if count > MOST_REVERSED:
            raise Unsupported(f"{count} positions in reverse order")
        if count > 1:
            rows = [
                low.recorder.op("slice", value, dim=dim, start=count - 1 - i, size=1, dtype=dtype)
                for i in range(count)
            ]
            value = low.recorder.op("concat", *rows, dim=dim, dtype=dtype)
    return value


def dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A part of a tensor that begins at known numbers, at a function of the device's number, or at
    ids.

    Example: at ``partition-id() * 2`` of ``f32[8]`` on four ranks, ``slice`` with the start
    ``PerRank((0, 2, 4, 6))``.
    """
    if "starts" not in node.attrs:
        return data_starts.dynamic_slice(low, node, xs)
    return _cut(low, xs[0], node.attrs["starts"], low.shape(node))


def dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A tensor with a part of it written over: along each dimension what is before the part, the
    part, and what is after it.

    Example: ``f32[2]`` at 7 of ``f32[8]``, which is clamped to 6: ``concat`` of the first six
    entries and the part.
    """
    if "starts" not in node.attrs:
        return data_starts.dynamic_update(low, node, xs)
    starts, shape = node.attrs["starts"], low.shape(node)
    return Tensor(placed(low, xs[0], low.tensor(xs[1]), starts, shape))


def placed(
    low: Lowering, around: Item, part: int, starts: Sequence[int | PerRank], shape: Shape
) -> int:
    """``around`` with ``part`` instead of its box from ``starts`` on, dimension by dimension.

    Example: ``f32[2,3]`` at (1, 2) of ``f32[5,6]`` is first put among the columns of rows 1 and 2,
    and that among the rows.
    """
    sizes = low.recorder.shape(part)
    cut = [d for d, n in enumerate(shape) if sizes[d] != n]
    if not cut:
        return part
    dim, *rest = cut
    if rest:
        # The box of ``around`` that has the part's positions of this dimension.
        at = [starts[d] if d == dim else 0 for d in range(len(shape))]
        box = tuple(sizes[d] if d == dim else n for d, n in enumerate(shape))
        inner: Item = around
        if finite(around) is None:
            inner = _cut(low, around, at, box)
        else:
            inner = Tensor(low.values.full(box, finite(around) or Fraction(0)))
        part = placed(low, inner, part, starts, box)
    start = starts[dim]
    if isinstance(start, PerRank):
        return _by_rank(low, around, part, dim, start, shape)
    return framed(low, around, part, dim, start, shape).value


def _by_rank(low: Lowering, around: Item, part: int, dim: int, start: PerRank, shape: Shape) -> int:
    """As `placed`, elsewhere on each rank: a slice of the part between zeros."""
    size, count = low.recorder.shape(part)[dim], shape[dim]
    wide = (*shape[:dim], 2 * count - size, *shape[dim + 1 :])
    own = PerRank(tuple(count - size - s for s in start.values))
    zero = Known((np.broadcast_to(np.array(0, dtype="float32"), wide),), "float32")

    def window(value: int) -> int:
        padded = framed(low, zero, value, dim, count - size, wide).value
        return low.recorder.op("slice", padded, dim=dim, start=own, size=count)

    written = window(part)
    if finite(around) == 0:
        low.framed[written] = Framed(part, dim, start.values)
        return written
    ones = window(low.values.full(low.recorder.shape(part), Fraction(1)))
    left = low.op("add", low.op("mul", ones, other=Fraction(-1)).value, other=Fraction(1)).value
    return low.op("add", low.op("mul", low.tensor(around), left).value, written).value


def framed(low: Lowering, around: Item, part: int, dim: int, start: int, shape: Shape) -> Tensor:
    """``around`` with ``part`` instead of its positions from ``start`` on.

    Example: rows 2 and 3 of five: ``concat`` of rows 0 and 1, the part, and row 4.
    """
    size = low.recorder.shape(part)[dim]
    pieces = [part]
    for begin, end, first in ((0, start, True), (start + size, shape[dim], False)):
        if end > begin:
            box = (*shape[:dim], end - begin, *shape[dim + 1 :])
            number = finite(around)
            if number is None:
                number = _one_number(low, around, dim, begin, end)
            if number is not None:
                piece = low.values.full(box, number)
            else:
                at = [begin if d == dim else 0 for d in range(len(shape))]
                piece = low.tensor(_cut(low, around, at, box))
            pieces.insert(0 if first else len(pieces), piece)
    return low.op("concat", *pieces, dim=dim) if len(pieces) > 1 else Tensor(part)


def _one_number(low: Lowering, x: Item, dim: int, begin: int, end: int) -> Fraction | None:
    """What all entries of some positions of a dimension are, where these are a part of one number
    of a concatenation: what a loop has not yet written; None: they are others."""
    made = low.reaches.maker(x.value) if isinstance(x, Tensor) else None
    if made is None or made.name != "concat" or made.attrs["dim"] != dim:
        return None
    first = 0
    for part in made.inputs:
        last = first + low.recorder.shape(part)[dim]
        if first <= begin and end <= last:
            maker = low.reaches.maker(part)
            if maker is None or maker.name != "full":
                return None
            number = maker.attrs["value"]
            return number if isinstance(number, Fraction) else None
        first = last
    return None


def concatenate(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Tensors one after the other along a dimension.

    Example: ``f32[4,3]`` and ``f32[2,3]`` along dimension 0 is ``concat``; of counts and ids along
    the last one, vectors of indices.
    """
    shapes = [low.graph.values[v].shape for v in node.operands]
    xs = [x for x, shape in zip(xs, shapes, strict=True) if 0 not in shape]
    if len(xs) == 1:
        return xs[0]
    vectors = index_vectors.joined(xs, node.attrs["dimensions"][0], low.shape(node))
    if vectors is not None:
        return vectors
    ids = indices.joined(low, xs, node.attrs["dimensions"][0])
    if ids is not None:
        return ids
    return low.op("concat", *(low.tensor(x) for x in xs), dim=node.attrs["dimensions"][0])


def pad(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The tensor with a finite number before, after and between its entries; negative padding
    cuts.

    Example: ``padding=-1_2`` of three entries: the last two and two zeros; ``padding=1_0_2``:
    position 3 p + 1 is entry p, the others are zero.
    """
    number = finite(xs[1])
    if number is None:
        raise Unsupported("padding with what is no finite constant")
    ids = _padded(low, node, xs)
    if ids is not None:
        return ids
    value = low.tensor(xs[0])
    for d, (before, after, interior) in enumerate(node.attrs["padding"]):
        if interior:
            first = min(max(before, 0), interior)
            value = _apart(low, xs[1], value, d, first, interior - first)
            before, after = before - first, after - (interior - first)
        size = low.recorder.shape(value)[d] + min(before, 0) + min(after, 0)
        if size <= 0:
            raise Unsupported("padding that leaves nothing")
        if size != low.recorder.shape(value)[d]:
            value = low.recorder.op("slice", value, dim=d, start=-min(before, 0), size=size)
        shape = low.recorder.shape(value)
        wide = (*shape[:d], size + max(before, 0) + max(after, 0), *shape[d + 1 :])
        value = framed(low, xs[1], value, d, max(before, 0), wide).value
    return Tensor(value)


def _apart(low: Lowering, number: Item, value: int, dim: int, before: int, after: int) -> int:
    """The entries along a dimension, each with so many times a number before and after it.

    Example: three entries with one zero after each are three pairs.
    """
    shape = low.recorder.shape(value)
    ahead, count, behind = shape[:dim], shape[dim], shape[dim + 1 :]
    size = before + 1 + after
    single = low.values.view(value, (*ahead, count, 1, *behind))
    wide = (*ahead, count, size, *behind)
    groups = framed(low, number, single, dim + 1, before, wide).value
    return low.values.view(groups, (*ahead, count * size, *behind))


def _padded(low: Lowering, node: Node, xs: Sequence[Item]) -> Ids | None:
    """Ids between numbers along one dimension; None: other padding, or of something else."""
    moving = [d for d, way in enumerate(node.attrs["padding"]) if way != (0, 0, 0)]
    ids, number = xs
    if not isinstance(ids, Ids) or not isinstance(number, Known) or len(moving) != 1:
        return None
    (dim,) = moving
    before, after, interior = node.attrs["padding"][dim]
    if interior or min(before, after) < 0:
        return None
    return indices.between(low, ids, number, dim, before, after)


# -- contractions, reductions ----------------------------------------------------------------------


def dot(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A product by the dimension numbers of a dot, summed over the contracting ones.

    Example: ``f32[8,16]`` and ``f32[8,16,4]``, batch dimension 0 and contracting dimension 1 of
    both, is ``einsum`` by ``ab,abc->ac``.
    """
    if low.dtype(node) == "bool":
        raise Unsupported("a product of predicates")
    left, right = (len(low.graph.values[v].shape) for v in node.operands)
    equation = dot_equation(node.attrs, left, right)
    return low.op("einsum", *(low.tensor(x) for x in xs), equation=equation)


def reduce(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The sum, maximum, minimum or product over dimensions, with the initial value; of predicates,
    all and any.  Of no entries that is the initial value.

    Example: ``reduce(x, inf)`` by ``minimum`` is the negated ``amax`` of the negated tensor;
    ``reduce(x, 1)`` by ``add`` is ``sum`` plus 1.
    """
    dims = tuple(node.attrs.get("dimensions", ()))
    how = node.attrs["to_apply"]
    if 0 in low.graph.values[node.operands[0]].shape:
        return Tensor(low.values.broadcast(low.tensor(xs[1]), (), low.shape(node)))
    alone = all(low.graph.values[node.operands[0]].shape[d] == 1 for d in dims)
    if isinstance(xs[0], Ids) and (alone or low.dtype(node) == "bool"):
        return indices.reduce(low, xs[0], dims, low.shape(node), how, xs[1])
    if how in ("and", "or"):
        return _any_or_all(low, node, xs, dims)
    if low.dtype(node) == "bool":
        raise Unsupported(f"a reduction of predicates by {how}")
    return _product(low, xs, dims) if how == "multiply" else _of_numbers(low, node, xs, dims)


def _product(low: Lowering, xs: Sequence[Item], dims: Shape) -> Item:
    """The product of a few entries: one after the other.

    Example: of ``f32[4,3]`` over dimension 1 two ``mul`` of its columns.
    """
    value = low.tensor(xs[0])
    shape = low.recorder.shape(value)
    kept = tuple(d for d in range(len(shape)) if d not in dims)
    sizes, count = tuple(shape[d] for d in kept), prod(shape[d] for d in dims)
    if count > windows.MOST_FACTORS:
        raise Unsupported(f"a product of {count} entries")
    if (*kept, *dims) != tuple(range(len(shape))):
        value = low.recorder.op("permute", value, dims=(*kept, *dims))
    value = low.values.view(value, (*sizes, count))
    made = low.values.broadcast(low.tensor(xs[1]), (), sizes) if number_of(xs[1]) != 1 else None
    for place in range(count):
        own = low.recorder.op("slice", value, dim=len(sizes), start=place, size=1)
        own = low.values.view(own, sizes)
        made = own if made is None else low.recorder.op("mul", made, own)
    assert made is not None
    return Tensor(made)


def _of_numbers(low: Lowering, node: Node, xs: Sequence[Item], dims: Shape) -> Item:
    """The sum, maximum or minimum of numbers."""
    how = node.attrs["to_apply"]
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


def _any_or_all(low: Lowering, node: Node, xs: Sequence[Item], dims: Shape) -> Item:
    """Of predicates, which are 0 or 1: the maximum is whether one holds."""
    how = node.attrs["to_apply"]
    if low.dtype(node) != "bool" or number_of(xs[1]) != (how == "and"):
        raise Unsupported(f"a reduction by {how} from {number_of(xs[1])}")
    value = low.tensor(xs[0])
    if how == "or":
        return low.op("amax", value, dim=dims)
    missing = low.op("amax", elementwise.inverse(low, value).value, dim=dims)
    return elementwise.inverse(low, missing.value)
