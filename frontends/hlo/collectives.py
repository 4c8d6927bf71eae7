"""Rules for operators of HLO that join ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.graphs.recorder import GROUP, PAIRS
from shardproof.frontends.hlo import elementwise, exchange, gates, indices, words
from shardproof.frontends.hlo.elementwise import inverse
from shardproof.frontends.hlo.exchange import Exchanged
from shardproof.frontends.hlo.items import Gated, Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.state import Lowering, integral


def _alone(node: Node) -> bool:
    return all(len(g) == 1 for g in node.groups)


def _ordered(node: Node) -> None:
    if any(list(g) != sorted(g) for g in node.groups):
        raise Unsupported("a group whose members are not in the order of their ranks")


def _collective(
    low: Lowering, node: Node, item: Item, operator: str, shape: Shape, **attrs: Any
) -> Tensor:
    x = low.tensor(item)
    dtype = low.recorder.values[x].dtype
    attrs[GROUP] = node.groups
    return Tensor(low.recorder.append(operator, [x], shape, dtype, attrs))


def _ids(
    low: Lowering, x: Item, key: tuple[object, ...], move: Callable[[Item], int]
) -> Ids | None:
    """Ids that ranks hand to each other, as ids: what is computed of each one is computed of what
    arrives; None: these are none, or every rank computes another function of them."""
    if not isinstance(x, Ids) or len(x.functions) > 1:
        return None
    (rule,) = x.functions
    plain = replace(x, functions=(piecewise.identity(rule[0].low, rule[-1].high),))
    moved = indices.ids_after_move(low, plain, key, lambda value: move(Tensor(value)))
    return replace(moved, functions=x.functions)


def all_reduce(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The sum, maximum or minimum over each group; of predicates, "and" and "or".

    Example: in groups {{0,1},{2,3}} by ``add``, ``all_reduce`` with ``op="sum"`` and these groups;
    by ``minimum``, the negated maximum of the negated tensor; by ``multiply`` it is refused.  Of
    what is zero for some ids, the same on all ranks, the sum is zero for these; of known integers
    and predicates it is known.
    """
    how = node.attrs["to_apply"]
    logical = low.dtype(node) == "bool" and how in ("and", "or")
    if not logical and (low.dtype(node) == "bool" or how not in ("add", "maximum", "minimum")):
        raise Unsupported(f"an all-reduce by {how}")
    if _alone(node):
        return xs[0]
    if isinstance(xs[0], Known) and (made := _known(low, node, xs[0])) is not None:
        return made
    if how == "add" and isinstance(xs[0], Gated) and gates.alike(low, xs[0].gate, node.groups):
        summed = all_reduce(low, node, [Tensor(xs[0].value)])
        return replace(xs[0], value=low.tensor(summed))
    x: Item = Tensor(low.tensor(xs[0]))
    if how == "add":
        gathered = _one_after_the_other(low, node, low.tensor(x))
        if gathered is not None:
            return gathered
    bounded = low.bounded.get(low.tensor(x))
    if bounded is not None and bounded.how == how:
        # The number is one for all ranks: the largest of all is bounded by it, too.
        most = all_reduce(low, node, [Tensor(bounded.value)])
        bound = Node(node.name, how, node.operands, node.results)
        both = [i if isinstance(i, Known) else most for i in bounded.both]
        return elementwise.maximum(low, bound, both)
    if logical:
        # Whether one of predicates holds, which are 0 or 1, is their maximum.
        given = inverse(low, low.tensor(x)) if how == "and" else x
        most = _collective(low, node, given, "all_reduce", low.shape(node), op="max")
        return inverse(low, most.value) if how == "and" else most
    if how == "minimum":
        x = low.op("mul", low.tensor(x), other=Fraction(-1))
    reduced = _collective(
        low, node, x, "all_reduce", low.shape(node), op="sum" if how == "add" else "max"
    )
    return low.op("mul", reduced.value, other=Fraction(-1)) if how == "minimum" else reduced


#: How known numbers of the ranks of a group become one.
_KNOWN: Mapping[str, np.ufunc] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def _known(low: Lowering, node: Node, x: Known) -> Known | None:
    """Integers or predicates that are known on every rank, over each group; None: they are floats,
    or a sum that its type does not hold."""
    if not _whole(low, node):
        return None
    made = dict[int, Array]()
    for group in node.groups:
        cores = np.broadcast_arrays(*(compact(x.at(rank)) for rank in group))
        total = _KNOWN[node.attrs["to_apply"]].reduce(np.stack(cores).astype(np.int64), axis=0)
        own = total.astype(x.arrays[0].dtype)
        if not np.array_equal(own, total):
            return None
        made.update(dict.fromkeys(group, np.broadcast_to(own, x.shape)))
    return _of_ranks(low, made, x.dtype)


def _whole(low: Lowering, node: Node) -> bool:
    """Whether all ranks join integers or predicates."""
    whole = low.dtype(node) == "bool" or integral(low.dtype(node))
    return whole and sorted(sum(node.groups, ())) == list(range(low.graph.ranks))


def _of_ranks(low: Lowering, made: Mapping[int, Array], dtype: str) -> Known:
    arrays = tuple(made[rank] for rank in range(low.graph.ranks))
    same = all(np.array_equal(a, arrays[0]) for a in arrays)
    return Known(arrays[:1] if same else arrays, dtype)


def _one_after_the_other(low: Lowering, node: Node, x: int) -> Tensor | None:
    """The sum of parts between zeros, which lie one after the other in the order of ranks: they are
    gathered; None: it is another sum."""
    framed = low.framed.get(x)
    if framed is None or any(list(g) != sorted(g) for g in node.groups):
        return None
    size, count = low.recorder.shape(framed.part)[framed.dim], low.shape(node)[framed.dim]
    places = list(range(0, count, size))
    if any([framed.starts[rank] for rank in group] != places for group in node.groups):
        return None
    part, shape = Tensor(framed.part), low.shape(node)
    return _collective(low, node, part, "all_gather", shape, dim=framed.dim)


def all_gather(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The group's parts one after the other along a dimension.

    Example: ``f32[8]`` in groups {{0,1},{2,3}} along dimension 0 is ``f32[16]``, ids stay ids; in
    groups {{1,0},{2,3}} it is refused, since members are joined in the order of ranks; of known
    integers and predicates, as the positions of all ranks, it is known.
    """
    if _alone(node):
        return xs[0]
    _ordered(node)
    (dim,) = node.attrs["dimensions"]
    if isinstance(xs[0], Known) and _whole(low, node):
        known = xs[0]
        made = {g: np.concatenate([known.at(rank) for rank in g], axis=dim) for g in node.groups}
        return _of_ranks(low, {rank: made[g] for g in node.groups for rank in g}, known.dtype)

    def gathered(item: Item) -> int:
        return _collective(low, node, item, "all_gather", low.shape(node), dim=dim).value

    ids = _ids(low, xs[0], (node.groups, dim), gathered)
    return ids or words.spots(low, xs[0], node, dim) or Tensor(gathered(xs[0]))


def reduce_scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Each device's part, along a dimension, of the sum over its group.

    Example: ``f32[8]`` in groups of two along dimension 0 is ``f32[4]``, of rank 1 the second half
    of the sum.
    """
    if node.attrs["to_apply"] != "add" or low.dtype(node) == "bool":
        raise Unsupported(f"a reduce-scatter by {node.attrs['to_apply']}")
    if _alone(node):
        return xs[0]
    _ordered(node)
    return _collective(
        low, node, xs[0], "reduce_scatter", low.shape(node), dim=node.attrs["dimensions"][0]
    )


def all_to_all(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """An exchange in which every member of a group gets a part of one dimension from every other,
    joined along the same one.

    Example: ``f32[8,6]`` among four along dimension 0: `Exchanged`, until a reshape and a transpose
    say along which dimension what arrives is joined; ids are exchanged as they are.
    """
    if _alone(node):
        return xs[0]
    _ordered(node)
    dims = node.attrs.get("dimensions", ())
    if len(dims) != 1:
        raise Unsupported("an all-to-all of several operands")
    shape, members = low.shape(node), len(node.groups[0])
    if shape[dims[0]] % members:
        raise Unsupported(f"an all-to-all of {shape[dims[0]]} positions among {members}")

    def exchanged(item: Item) -> Exchanged:
        return Exchanged(low.tensor(item), dims[0], node.groups, shape)

    key = ("exchanged", node.groups, dims[0])
    ids = _ids(low, xs[0], key, lambda item: exchange.plain(low.recorder, exchanged(item)))
    return ids or exchanged(xs[0])


def permute(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Each device's tensor, handed to another one (collective-permute); zeros where nobody
    sends.

    Example: ``source_target_pairs={{0,1},{1,2},{2,3}}`` passes tensors on by one rank, and rank 0
    has zeros.
    """

    def passed(item: Item) -> int:
        x = low.tensor(item)
        dtype, attrs = low.recorder.values[x].dtype, {PAIRS: node.pairs}
        return low.recorder.append("permute_ranks", [x], low.shape(node), dtype, attrs)

    everywhere = {target for _, target in node.pairs} == set(range(low.graph.ranks))
    if not everywhere:
        return Tensor(passed(xs[0]))
    if isinstance(xs[0], Known) and (low.dtype(node) == "bool" or integral(low.dtype(node))):
        known = xs[0]
        return _of_ranks(low, {to: known.at(own) for own, to in node.pairs}, known.dtype)
    ids = _input_of_others(low, node, xs[0]) or _ids(low, xs[0], (node.pairs,), passed)
    return ids or Tensor(passed(xs[0]))


def _input_of_others(low: Lowering, node: Node, x: Item) -> Ids | None:
    """Ids of an input that every rank gets from another one: the box that this one has, as an input
    of its own; None: these are others.

    Example: rank 1 of two, which gets the ids of rank 0, has the box of rank 0.
    """
    if not isinstance(x, Ids) or len(x.functions) > 1:
        return None
    given = next((p for p in low.recorder.placed if p.value == x.origin), None)
    if given is None:
        return None
    key = ("input of others", x.origin, node.pairs)
    value = low.recorder.known(key)
    if value is None:
        source = {to: own for own, to in node.pairs}
        starts = tuple(given.placement.starts[source[r]] for r in range(low.graph.ranks))
        value = low.recorder.value(low.recorder.shape(x.origin), given.dtype, given.name)
        low.recorder.once(key, value)
        placement = replace(given.placement, starts=starts)
        low.recorder.placed.append(replace(given, value=value, placement=placement))
        low.origins[value] = low.origins[x.origin]
    return replace(x, origin=value)
