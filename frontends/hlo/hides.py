"""Scores of -1e30 that a mask hides, of steps whose ranks have blocks of keys.

A causal ring begins with a largest score of -1e30, and meets blocks of keys that come after all of
a rank's queries::

    scores = jnp.where(queries[:, None] >= keys, scores, -1e30)
    largest = jnp.maximum(before, scores.max(-1))
    weights = jnp.exp(scores - largest[..., None])

Over the reals these weights are no zeros, and the larger one of -1e30 and a number is not that
number.  In every format they are.  So the number is read as minus infinity on both sides, if
everything that is made of it is understood then; that is an assumption, which PyTorch's graphs
have, too (`frontends.fx.endless`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

import numpy as np

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Graph, Node
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.endless import Lowest
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array, Type
from shardproof.frontends.hlo.state import Lowering

#: Numbers from this one down hide scores.
MOST: Final = -1e9
#: Known numbers up to this one may be added to them.
NEAR: Final = 1e6
#: Factors of scores between this and its reciprocal leave what hides far from everything.
SMALLEST: Final = 1e-3
#: What gives the same number in another shape or type.
_MOVES: Final = frozenset({"broadcast", "reshape", "transpose", "convert", "copy", "slice"})
#: Of what is minus infinity they give that, and of nothing else.
_KEEPS: Final = _MOVES | {
    *("select", "maximum", "concatenate", "dynamic-slice", "dynamic-update-slice"),
    *("collective-permute", "all-gather"),
}


class Endless(NamedTuple):
    """Both sides with minus infinity in place of numbers, and what is assumed of these.

    Example: of a causal ring of two ranks, which hides scores by -1e30.
    """

    single: Graph
    parallel: Graph
    assumed: tuple[Assumption, ...] = ()


class _Uses(NamedTuple):
    """The numbers of a side that hide; which entries each choice hides, on every rank; whether a
    largest score begins with such a number."""

    numbers: frozenset[float]
    masks: tuple[tuple[Array, ...], ...]
    begins: bool


def endless(single: Lowering, parallel: Lowering) -> Iterator[Endless]:
    """Both sides, as they were lowered, with minus infinity in place of numbers that hide, or as
    they are where they have it; none, unless a rank has a block of scores that is hidden from it
    altogether.

    Example: a causal ring of two ranks; not causal attention of which each rank has some heads.
    """
    if any(isinstance(item, Lowest) for item in parallel.items.values()):
        yield Endless(single.graph, parallel.graph)
    assumed = _assumed(single, parallel)
    if assumed is not None:
        yield Endless(_written(single.graph), _written(parallel.graph), (assumed,))


def _assumed(single: Lowering, parallel: Lowering) -> Assumption | None:
    """What is assumed of numbers that hide; None, unless a block is hidden from some rank
    altogether, or a largest score begins with such a number, and all masks are known."""
    alone, ranks = _uses(single), _uses(parallel)
    if alone is None or ranks is None:
        return None
    whole = any(mask.all() for own in ranks.masks for mask in own)
    if not whole and not ranks.begins:
        return None
    if any(_hides_a_row(mask) for own in alone.masks for mask in own):
        return None
    names = ", ".join(f"{n:g}" for n in sorted(alone.numbers | ranks.numbers))
    text = (
        f"scores of {names} that a mask hides, or that a largest score begins with, are minus "
        "infinity: nothing that they are compared with, or taken from, is near them"
    )
    return Assumption("inferred", "hidden scores", "", text)


def _number(node: Node) -> float | None:
    """The number of a constant that hides scores; None: it is another one."""
    item = node.attrs.get("value") if node.target == "constant" else None
    if not isinstance(item, Known) or not item.dtype.startswith(("float", "bfloat")):
        return None
    number = item.number()
    return float(number) if number is not None and -inf < number <= MOST else None


def _uses(low: Lowering) -> _Uses | None:
    """What a side does with numbers that hide; None: anything else than to take their exponential,
    or by a mask that is not known."""
    walk = _Walk(low)
    return walk.uses() if all(map(walk.read, low.graph.nodes)) else None


class _Walk:
    """Where numbers that hide go, operator by operator: ``fills``: tensors of one such number;
    ``hiding``: those, and all that may have such a number, more or less, at some entry."""

    def __init__(self, low: Lowering) -> None:
        self.low = low
        self.fills: dict[int, float] = {}
        self.hiding: set[int] = set()
        self.masks: list[tuple[Array, ...]] = []
        self.begins = False

    def uses(self) -> _Uses | None:
        """What was read; None: such a number is a result."""
        if any(output.value in self.hiding for output in self.low.graph.outputs):
            return None
        return _Uses(frozenset(self.fills.values()), tuple(self.masks), self.begins)

    def read(self, node: Node) -> bool:
        """Go on behind an operator; whether it does with such numbers what may be done."""
        number = _number(node)
        if number is not None:
            self.fills[node.results[0]] = number
            self.hiding.add(node.results[0])
            return True
        if self.hiding.isdisjoint(node.operands):
            return True
        if node.target in ("exponential", "compare"):
            return True
        if not self._keeps(node):
            return False
        self.hiding.update(node.results)
        if node.target in _MOVES and node.operands[0] in self.fills:
            self.fills[node.results[0]] = self.fills[node.operands[0]]
        if node.target == "maximum" and not self.fills.keys().isdisjoint(node.operands):
            self.begins = True
        return node.target != "select" or self._chosen(node)

    def _keeps(self, node: Node) -> bool:
        """Whether what is minus infinity stays it, and what is not does."""
        if node.target in ("multiply", "divide"):
            one, other = node.operands
            factor = self._number(other if one in self.hiding else one)
            first = one in self.hiding or node.target == "multiply"
            return first and factor is not None and SMALLEST <= factor <= 1 / SMALLEST
        if node.target in ("reduce", "all-reduce"):
            return len(node.results) == 1 and node.attrs["to_apply"] == "maximum"
        if node.target in ("add", "subtract"):
            return all(map(self._is_far, node.operands))
        return node.target in _KEEPS

    def _is_far(self, value: int) -> bool:
        """Whether a number that is added is no known one that comes near what hides."""
        item = self.low.items[value]
        if not isinstance(item, Known) or value in self.hiding:
            return True
        cores = [compact(array) for array in item.arrays]
        return all(np.all((np.abs(c) <= NEAR) | np.isinf(c)) for c in cores)

    def _number(self, value: int) -> float | None:
        item = self.low.items[value]
        number = item.number() if isinstance(item, Known) else None
        return None if number is None else float(number)

    def _chosen(self, node: Node) -> bool:
        """Whether a choice is by a known mask, where it hides."""
        own = [v in self.fills for v in node.operands[1:]]
        if any(own):
            hidden = _hidden(self.low, node, own[0])
            if hidden is None or all(own):
                return False
            self.masks.append(hidden)
        return True


def _hidden(low: Lowering, node: Node, first: bool) -> tuple[Array, ...] | None:
    """Which entries a choice hides, where its predicate holds (``first``) or not, on every rank (or
    once for all), one position of each dimension along which they repeat; None: nobody knows."""
    mask = low.items[node.operands[0]]
    if not isinstance(mask, Known):
        return None
    return tuple(compact(array).astype(bool) == first for array in mask.arrays)


def _hides_a_row(mask: Array) -> bool:
    """Whether a mask may hide all keys of a query: all entries of a line, or, where it varies along
    one dimension alone, any, which may be queries."""
    lines = [d for d in range(mask.ndim) if mask.shape[d] > 1 or d == mask.ndim - 1]
    return len(lines) < 2 or any(mask.all(axis=d).any() for d in lines)


def _written(graph: Graph) -> Graph:
    """A graph with minus infinity in place of numbers that hide."""
    return replace(graph, nodes=tuple(_replaced(graph)))


def _replaced(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if _number(node) is None:
            yield node
            continue
        value = graph.values[node.results[0]]
        type = Type(value.shape, value.dtype)
        array = np.broadcast_to(np.array(-inf, dtype="float32"), value.shape)
        yield replace(node, attrs={**node.attrs, "value": known.constant(array, type)})
