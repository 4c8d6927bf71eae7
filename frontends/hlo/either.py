"""Integers of which a mask says, position by position, which of two they are.

``where(mask, 103, ids)`` hides words, ``where(keep, labels, classes)`` drops labels: which of both
an integer is, a number decides.  What is computed of it is computed of both, and chosen by the
same mask: for every function f, ``f(where(m, x, y))`` is ``where(m, f(x), f(y))``.  So are the rows
that it looks up; rows that are added at it are those at ``x`` where the mask is 1, and those at
``y`` where it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import indices
from shardproof.frontends.hlo.elementwise import inverse, of_rank
from shardproof.frontends.hlo.items import Either, Gated, Ids, Item, Lookup, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering, Rule, integral

#: What computes entry by entry of integers, predicates and rows; what moves entries.
_ENTRYWISE: Final = frozenset(
    {"add", "subtract", "multiply", "negate", "maximum", "minimum", "clamp", "abs", "compare"}
    | {"not", "and", "or", "xor", "select", "convert", "remainder", "divide"}
)
_MOVED: Final = frozenset({"broadcast", "reshape", "transpose", "slice", "reverse"})
#: Of rows that are looked up, what only chooses or moves them.
_OF_ROWS: Final = frozenset({"select", "convert"}) | _MOVED


def chosen(low: Lowering, node: Node, xs: Sequence[Item]) -> Item | None:
    """A choice of integers by what is no function of these; None: it is another choice.

    Example: ``select(mask, ids, 7)`` of a mask that numbers make.
    """
    p, *both = xs
    like = next((x for x in both if isinstance(x, Ids)), None)
    if like is None or not integral(low.dtype(node)) or not all(map(_is_integer, both)):
        return None
    known = isinstance(p, Known | Ids) and p.number() is not None
    own = isinstance(p, Ids) and indices.of_one_id(p, *both)
    wide = low.graph.values[node.operands[0]].shape == like.shape
    if known or own or of_rank(p) is not None or not wide:
        return None
    gate = p if isinstance(p, Ids) else _gate(low.tensor(p), like.shape)
    yes, no = (_as_ids(low, x, like) for x in both)
    return Either(gate, yes, no, like.shape)


def _gate(value: int, shape: Shape) -> Ids:
    """A value of zeros and ones as a predicate that can be moved without being written."""
    return Ids(value, indices.own_axes(shape), shape, (piecewise.identity(0, 2),))


def _is_integer(item: Item) -> bool:
    return isinstance(item, Ids) or (isinstance(item, Known) and item.number() is not None)


def _as_ids(low: Lowering, item: Item, like: Ids) -> Item:
    """A number as one for every id, which a lookup reads as it reads ids."""
    if not isinstance(item, Known):
        return item
    functions = indices.functions(item, like, low.graph.ranks)
    return Ids(like.origin, like.axes, like.shape, functions[:1])


def apply(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """The result of an operator of which some operands are such integers: of both, by its rule,
    where it takes every entry by itself, else of the numbers that they are.

    Example: of ``gather(table, where(mask, ids, 7))``, rows of ``ids`` where the mask is 1, and row
    7 elsewhere.
    """
    if node.target == "gather" and not isinstance(xs[0], Either):
        return _rows(low, node, xs, rule)
    if node.target == "scatter" and isinstance(xs[1], Either) and node.attrs["to_apply"] == "add":
        return _added(low, node, xs, rule)
    own = [x for x in xs if isinstance(x, Either)]
    alike = all(x.gate == own[0].gate and x.shape == own[0].shape for x in own)
    if alike and _by_itself(low, node, xs, own):
        gate = own[0].gate
        if node.target == "reduce":
            kept = [d for d in range(len(gate.shape)) if d not in node.attrs["dimensions"]]
            gate = _placed(gate, kept, range(len(kept)), low.shape(node))
        elif node.target in _MOVED:
            moved = rule(low, node, [gate])
            gate = moved if isinstance(moved, Ids) else _gate(low.tensor(moved), low.shape(node))
        return Either(gate, *_both(low, node, xs, rule), low.shape(node))
    return rule(low, node, [number(low, x) for x in xs])


def _by_itself(low: Lowering, node: Node, xs: Sequence[Item], own: Sequence[Either]) -> bool:
    """Whether an operator takes every entry by itself, and is worth to be read twice."""
    if node.target in _MOVED:
        return True
    if node.target == "reduce":
        # Of one entry each: what a lookup asks of the indices of one dimension.
        return isinstance(xs[0], Either) and prod(xs[0].shape) == prod(low.shape(node))
    if node.target not in _ENTRYWISE or any(x.shape != low.shape(node) for x in own):
        return False
    integers = all(integral(low.graph.values[v].dtype) or _boolean(low, v) for v in node.operands)
    known = all(isinstance(x, Ids | Known | Either) for x in xs)
    if integers and known and not any(_of_rows(x) for x in own):
        return True
    gated = node.target == "multiply" and all(isinstance(x, Either | Ids) for x in xs)
    return node.target in _OF_ROWS or gated


def _boolean(low: Lowering, value: int) -> bool:
    return low.graph.values[value].dtype == "bool"


def _of_rows(x: Either) -> bool:
    return any(isinstance(i, Lookup | Gated | Tensor) for i in (x.yes, x.no))


def _both(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> tuple[Item, Item]:
    """An operator's results of the first integers, and of the second ones."""
    yes, no = (
        rule(low, node, [(x.yes if first else x.no) if isinstance(x, Either) else x for x in xs])
        for first in (True, False)
    )
    return yes, no


def number(low: Lowering, item: Item) -> Item:
    """An item as the numbers that it is, where it is one of two.

    Example: ``where(mask, ids, 7)`` is ``mask * ids + (1 - mask) * 7``; ids themselves stay ids.
    """
    if not isinstance(item, Either):
        return item
    parts = []
    own = low.tensor(item.gate)
    for gate, side in ((own, item.yes), (inverse(low, own).value, item.no)):
        value = low.tensor(number(low, side))
        parts.append(low.op("mul", gate, value).value)
        low.reaches.chosen.add(parts[-1])
    return low.op("add", *parts)


def _rows(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """Rows by either index, and which of both counts along the dimensions of these."""
    index, shape = xs[1], low.shape(node)
    assert isinstance(index, Either)
    batch = [d for d in range(len(shape)) if d not in node.attrs["offset_dims"]]
    return Either(_along(node, index, batch, shape), *_both(low, node, xs, rule), shape)


def _along(node: Node, index: Either, dims: Sequence[int], shape: Shape) -> Ids:
    """Which of two indices counts, along these dimensions of a shape."""
    vector = node.attrs["index_vector_dim"]
    return _placed(index.gate, [d for d in range(len(index.shape)) if d != vector], dims, shape)


def _placed(gate: Ids, kept: Sequence[int], dims: Sequence[int], shape: Shape) -> Ids:
    """Dimension ``kept[i]`` of a predicate as dimension ``dims[i]`` of a shape."""
    axes = [-1] * len(shape)
    for d, place in zip(kept, dims, strict=True):
        axes[place] = gate.axes[d]
    return replace(gate, axes=tuple(axes), shape=shape)


def _added(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """Rows that are added at the first index where it counts, then at the second one."""
    index, updates = xs[1], xs[2]
    assert isinstance(index, Either)
    shape = low.graph.values[node.operands[2]].shape
    dims = [d for d in range(len(shape)) if d not in node.attrs.get("update_window_dims", ())]
    gate = _along(node, index, dims, shape)
    own, total = low.tensor(gate), number(low, xs[0])
    for counts, side, first in (
        (own, index.yes, True),
        (inverse(low, own).value, index.no, False),
    ):
        rows = updates
        if isinstance(updates, Either) and updates.gate == gate:
            rows = updates.yes if first else updates.no
        total = rule(low, node, [total, side, _times(low, counts, number(low, rows))])
    return total


def _times(low: Lowering, gate: int, rows: Item) -> Item:
    if isinstance(rows, Gated):
        return replace(rows, value=low.op("mul", gate, rows.value).value)
    return low.op("mul", gate, low.tensor(rows))
