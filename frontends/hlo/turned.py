"""Positions that are moved on around the end along several dimensions (``jnp.roll`` of images
before shifted windows), on both sides alike: products with tables of 0 and 1.

Side by side, four parts of a picture would be read apart in everything that is made of them; a
product with a table is one value.  Where only one side turns so (ranks that have some of the rows
hand on edges), both read parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from shardproof.frontends.graphs.graph import Graph, Node
from shardproof.frontends.hlo import windows
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering

#: By how much which dimensions are turned: their extents and shifts.
Shifts: TypeAlias = frozenset[tuple[int, int]]


class Turn(NamedTuple):
    """A value turned along dimensions: position p of the result is position p + shift of
    ``source``, from the first one again behind the last.

    Example: ``jnp.roll(x, (-1, -2), (0, 1))`` is ``Turn(x, {0: 1, 1: 2})``.
    """

    source: int
    by: Mapping[int, int]


class _Part(NamedTuple):
    """``size`` positions of ``source`` along ``dim`` from ``start`` on, at ``at``."""

    source: int
    dim: int
    start: int
    size: int
    at: int


class _Reading:
    """How a graph turns values."""

    def __init__(self, graph: Graph, maker: Callable[[int], Node | None]) -> None:
        self.graph = graph
        self.maker = maker

    def turn(self, node: Node) -> Turn | None:
        """What a node turns, along every dimension that it and those before it turn."""
        by: dict[int, int] = {}
        source, maker = -1, self.maker(node.results[0])
        while maker is not None:
            one = self._single(maker)
            if one is None or set(one.by) & set(by):
                break
            source = one.source
            by |= one.by
            maker = self.maker(source)
        return Turn(source, by) if len(by) > 1 else None

    def _single(self, node: Node) -> Turn | None:
        """A turn along one dimension: two parts side by side, or added where each is padded."""
        parts = self._beside(node) if node.target == "concatenate" else self._added(node)
        if parts is None or parts[0][:2] != parts[1][:2]:
            return None
        first, second = sorted(parts, key=lambda part: part.at)
        count = self.graph.values[first.source].shape[first.dim]
        whole = first.at == 0 and second.at == first.size and first.size + second.size == count
        if not whole or first.start != second.size or second.start != 0:
            return None
        return Turn(first.source, {first.dim: first.start})

    def _beside(self, node: Node) -> tuple[_Part, _Part] | None:
        cuts = [self._cut(v) for v in node.operands]
        first, second = cuts if len(cuts) == 2 else (None, None)
        if first is None or second is None or node.attrs["dimensions"] != (first.dim,):
            return None
        return first, second._replace(at=first.size)

    def _added(self, node: Node) -> tuple[_Part, _Part] | None:
        if node.target != "add":
            return None
        first, second = (self._padded(v) for v in node.operands)
        return None if first is None or second is None else (first, second)

    def _padded(self, value: int) -> _Part | None:
        """A part among zeros."""
        node = self.maker(value)
        if node is None or node.target != "pad":
            return None
        zero, part = self.maker(node.operands[1]), self._cut(node.operands[0])
        known = zero is not None and zero.target == "constant" and zero.attrs["value"]
        if part is None or not isinstance(known, Known) or known.number() != 0:
            return None
        ways = [(0, 0, 0)] * len(self.graph.values[value].shape)
        count = self.graph.values[value].shape[part.dim]
        at = node.attrs["padding"][part.dim][0]
        ways[part.dim] = (at, count - at - part.size, 0)
        return part._replace(at=at) if list(node.attrs["padding"]) == ways else None

    def _cut(self, value: int) -> _Part | None:
        """Some positions along one dimension."""
        node = self.maker(value)
        if node is None or node.target != "slice":
            return None
        (source,) = node.operands
        shape = self.graph.values[source].shape
        cuts = [
            (d, start, stop - start)
            for d, (n, (start, stop, step)) in enumerate(
                zip(shape, node.attrs["slice"], strict=True)
            )
            if (start, stop, step) != (0, n, 1)
        ]
        alone = len(cuts) == 1 and node.attrs["slice"][cuts[0][0]][2] == 1
        return _Part(source, *cuts[0], 0) if alone else None


def shifts(graph: Graph) -> frozenset[Shifts]:
    """By how much a graph turns values along several dimensions.

    Example: of ``jnp.roll(x, (-1, -2), (0, 1))`` of ``x = f32[4,8]``, ``{(4, 1), (8, 2)}``.
    """
    makers = {v: node for node in graph.nodes for v in node.results}
    reading = _Reading(graph, makers.get)
    turns = (reading.turn(node) for node in graph.nodes if node.results)
    return frozenset(_shifts(graph, turn) for turn in turns if turn is not None)


def _shifts(graph: Graph, turn: Turn) -> Shifts:
    shape = graph.values[turn.source].shape
    return frozenset((shape[d], shift) for d, shift in turn.by.items())


def whole(low: Lowering, node: Node) -> Item | None:
    """What a node turns along several dimensions as both sides do, by tables; None: another node.

    Example: of ``x = f32[4,8]``, ``einsum`` with a table ``[4, 4]`` and one ``[8, 8]``.
    """
    if not low.other.turns or node.target not in ("concatenate", "add"):
        return None
    if not low.dtype(node).startswith(("float", "bfloat")):
        return None
    turn = _Reading(low.graph, low.maker).turn(node)
    if turn is None or _shifts(low.graph, turn) not in low.other.turns:
        return None
    value = low.tensor(low.items[turn.source])
    for dim, shift in sorted(turn.by.items()):
        table = np.roll(np.eye(low.recorder.shape(value)[dim], dtype="float32"), -shift, axis=1)
        value = windows.along(low, value, dim, table)
    return Tensor(value)
