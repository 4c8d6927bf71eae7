"""Rules for the largest entries of rows, for sorts, and for where entries are.

A sort is the choice of all entries in their order.  Places are ids among the positions of the row:
what is computed of them, and what is read by them, follows the rules of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import indices, words
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering, Pick, integral
from shardproof.frontends.hlo.written import Spots


def _places(low: Lowering, value: int, count: int) -> Ids:
    shape = low.recorder.shape(value)
    identity = piecewise.identity(0, count)
    return Ids(value, indices.own_axes(shape), shape, (identity,))


def first(low: Lowering, x: int, largest: bool) -> int:
    """1 where an entry is the first of the largest (smallest) ones along the last dimension, 0 at
    all others.

    Example: of [3, 9, 5, 9], [0, 1, 0, 0].
    """
    shape = low.recorder.shape(x)
    place = words.chosen(low, x, 1, len(shape) - 1, largest)[1]
    onehot = low.values.onehot(place, [0] * low.graph.ranks, shape[-1])
    return low.values.view(onehot, shape)


def topk(low: Lowering, node: Node, xs: Sequence[Item]) -> Sequence[Item]:
    """The k largest (or smallest) entries of the last dimension, and their places.

    Example: ``topk(x), k=2`` of ``x = f32[4]`` is the operator ``topk`` with two outputs: the two
    largest entries, and their places, ids in [0, 4).
    """
    shape = low.graph.values[node.operands[0]].shape
    last, largest = len(shape) - 1, node.attrs.get("largest", "true") == "true"
    x, count = low.tensor(xs[0]), node.attrs["k"]
    values, places = words.chosen(low, x, count, last, largest)
    of_all = words.largest(low, x, Pick(x, count, last, largest, values, places))
    return Tensor(values if of_all is None else of_all[0]), _places(low, places, shape[last])


def sort(low: Lowering, node: Node, xs: Sequence[Item]) -> Sequence[Item]:
    """Tensors sorted by one of them; the others go where it goes.

    Example: ``sort(x, iota)`` in rising order is ``topk`` of all entries, the smallest first; what
    the iota becomes is their places.
    """
    (dim,), key = node.attrs["dimensions"], node.attrs["key"]
    if node.attrs.get("is_stable", "false") != "true" and len(xs) > 1:
        raise Unsupported("a sort of several tensors that is not stable")
    shape = low.shape(node)
    values, places = words.chosen(low, low.tensor(xs[key]), shape[dim], dim, node.attrs["falling"])
    moved = _places(low, places, shape[dim])
    results: list[Item] = []
    for number, (x, result) in enumerate(zip(xs, node.results, strict=True)):
        counted = isinstance(x, Known) and indices.positions(x) == (dim, [0])
        if counted:
            results.append(moved)
        elif number == key:
            results.append(Tensor(values))
        elif integral(low.graph.values[result].dtype) or low.graph.values[result].dtype == "bool":
            raise Unsupported("integers that are sorted by other numbers")
        else:
            results.append(_gathered(low, low.tensor(x), moved, dim))
    return results


def _gathered(low: Lowering, x: int, places: Ids, dim: int) -> Tensor:
    """Entries of ``x`` along a dimension, by where they are."""
    count = places.shape[dim]
    onehot = low.values.onehot(places.origin, [0] * low.graph.ranks, count)
    names = "abcdefghijklmnopqrstuw"[: len(places.shape)]
    own = names.replace(names[dim], "v")
    return low.op("einsum", onehot, x, equation=f"{names}v,{own}->{names}")


def extreme(low: Lowering, node: Node, xs: Sequence[Item]) -> Sequence[Item]:
    """The maximum or minimum over a dimension, and the first place of it.

    Example: JAX's ``argmax`` of ``f32[4]``, ``reduce(x, iota, -inf, 0)`` by a computation that
    keeps the larger number, is ``topk`` with k = 1 and both results viewed as scalars.
    """
    if len(xs) != 4 or len(node.attrs["dimensions"]) != 1:
        raise Unsupported("a reduction with several results")
    (dim,), how = node.attrs["dimensions"], node.attrs["to_apply"]
    counts, start = xs[1], xs[2]
    if isinstance(counts, Spots):
        return _of_all(low, node, counts, xs)
    counted = indices.positions(counts) if isinstance(counts, Known) else None
    if not isinstance(counts, Known) or counted is None or counted[0] != dim:
        raise Unsupported(f"an {how} of other places than positions")
    worst = start.number() if isinstance(start, Known) else None
    if worst not in ((-inf,) if how == "argmax" else (inf,)):
        raise Unsupported(f"an {how} that begins with {worst}")
    x, largest = low.tensor(xs[0]), how == "argmax"
    values, places = words.chosen(low, x, 1, dim, largest)
    shape = low.shape(node)
    first = _places(low, low.values.view(places, shape), counts.shape[dim])
    if any(counted[1]):
        # Of a part of a tensor whose positions begin elsewhere on each rank.
        (f,) = first.functions
        moved = (piecewise.combine("add", f, piecewise.constant(f, n)) for n in counted[1])
        first = replace(first, functions=tuple(moved))
    return Tensor(low.values.view(values, shape)), first


def _of_all(low: Lowering, node: Node, places: Spots, xs: Sequence[Item]) -> Sequence[Item]:
    """The largest (smallest) score of all ranks of a group, of which each gave its own and where it
    is, and where that is; raises `Unsupported` where these are others."""
    (dim,), how = node.attrs["dimensions"], node.attrs["to_apply"]
    start, x = xs[2], low.tensor(xs[0])
    worst = start.number() if isinstance(start, Known) else None
    of_ranks = Pick(x, 1, dim, how == "argmax", -1, -1)
    made = words.largest(low, x, of_ranks, places) if worst in (inf, -inf) else None
    if made is None or (worst == -inf) != (how == "argmax"):
        raise Unsupported(f"an {how} of other places than positions")
    shape = low.shape(node)
    count = len(places.groups[0]) * low.recorder.shape(made.pick.scores)[made.pick.dim]
    first = _places(low, low.values.view(made.places, shape), count)
    return Tensor(low.values.view(made.values, shape)), first
