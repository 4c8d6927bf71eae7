"""A captured program as every reader of graphs gives it: nodes, inputs, outputs, groups of ranks.

One `Graph` is what every rank of it runs (``ranks`` of them, numbered from 0).  What differs
between these ranks is a number that is looked up by rank: a `PerRank` attribute, the groups of a
collective, the boxes of a `Placement`.  A program that is captured rank by rank is a graph for each
rank, with ``ranks`` 1 and ``first`` its number.

For example, on two ranks, ``y = all-reduce(dot(x, w))`` where ``w`` is divided by rows::

    Graph(
        dialect="hlo",
        values=(Value("x", (2, 4), "float32"), Value("w", (4, 8), "float32"),
                Value("dot", (2, 8), "float32"), Value("y", (2, 8), "float32")),
        nodes=(Node("dot", "dot", (0, 1), (2,)),
               Node("y", "all-reduce", (2,), (3,), groups=((0, 1),))),
        inputs=(Input(0, "x"), Input(1, "w", Placement((8, 8), ((0, 0), (4, 0))))),
        outputs=(Output(3, "y"),),
        ranks=2,
    )

Invariants, which `check` enforces: a value is given once, by an input or a node, before it is read.
Targets, attributes and their meaning are the dialect's; nothing here interprets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Source

Shape: TypeAlias = tuple[int, ...]
#: Ranks in group order, each group once.
Groups: TypeAlias = tuple[tuple[int, ...], ...]

#: Graphs with more of these are refused.
MOST_NODES = 1 << 20
MOST_RANKS = 1 << 14


class PerRank(NamedTuple):
    """An integer that depends on the rank: one for every rank of the graph.

    Example: ``PerRank((0, 4, 8, 12))``, where each of four ranks begins to read.
    """

    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its name where it was read, true local shape, element type in NumPy's words
    (``bfloat16`` is one too, ``bool`` and ``int32`` are data).

    Example: ``Value("dot", (2, 8), "float32")``.
    """

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the dialect.

    Example: ``Node("y", "all-reduce", (2,), (3,), groups=((0, 1),))`` sums value 2 over ranks 0 and
    1.

    ``operands`` and ``results`` are value numbers, in the dialect's order.  ``attrs`` are the
    dialect's, by name.  ``groups``: for an operator that joins ranks, all groups in which it meets,
    of global ranks in group order; together they are all ranks that run the graph (and no other).
    ``pairs``: of a permutation of ranks, (source, target).
    """

    name: str
    target: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    source: Source = field(default_factory=Source)


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of a full tensor that each rank has: where its box begins, for every rank of the
    graph; its extent is the local shape.

    Example: ``Placement((8, 8), ((0, 0), (4, 0)))``: rank 1 has the rows from 4 on.
    """

    full: Shape
    starts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A value that comes from outside.

    Example: ``Input(1, "w", Placement((8, 8), ((0, 0), (4, 0))))``.

    ``placement``: as the file states it; None: it says nothing.
    ``trainable``: whether the file says that it is a parameter.
    ``mark``: the negative number that its integers may be, beside those from 0 on; where domains
    are and numbers are drawn, -1 stands for it; ``domain``: of integers, from, to (exclusive), as
    the user states it.
    """

    value: int
    name: str
    placement: Placement | None = None
    trainable: bool = False
    mark: int | None = None
    domain: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A value that goes outside, with its stated placement.

    Example: ``Output(3, "y")``, of which nothing says where it lies.
    """

    value: int
    name: str
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured program (the head of this file has an example). ``axes``: names and extents of the
    mesh, slowest first, where the file names them (rank = the coordinates as a number); ``notes``:
    sentences of what the framework is believed to do with it."""

    dialect: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    ranks: int = 1
    first: int = 0
    axes: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def members(self) -> range:
        """The global ranks that run this graph."""
        return range(self.first, self.first + self.ranks)


def check(graph: Graph, where: str = "") -> None:
    """Raise `InvalidInput`, naming the node, unless values are given once and before they are read,
    and groups are of ranks that exist.

    Example: a node ``y`` that reads its own value: "y: reads value 1 before it is given".
    """
    if len(graph.nodes) > MOST_NODES or not 1 <= graph.ranks <= MOST_RANKS:
        raise InvalidInput(
            f"{len(graph.nodes)} operators on {graph.ranks} ranks, expected at most "
            f"{MOST_NODES} on 1 to {MOST_RANKS}",
            where,
        )
    known: set[int] = set()
    for item in graph.inputs:
        _give(graph, known, (item.value,), item.name)
        _placed(graph, item)
    for node in graph.nodes:
        missing = [v for v in node.operands if v not in known]
        if missing:
            raise InvalidInput(f"reads value {missing[0]} before it is given", node.name)
        _give(graph, known, node.results, node.name)
        _joined(graph, node)
    for output in graph.outputs:
        if output.value not in known:
            raise InvalidInput("is given by no operator", f"output {output.name}")
        _placed(graph, output)


def _give(graph: Graph, known: set[int], values: Sequence[int], where: str) -> None:
    for value in values:
        if not 0 <= value < len(graph.values) or value in known:
            raise InvalidInput(f"gives value {value}, which is none or given already", where)
        known.add(value)


def _placed(graph: Graph, item: Input | Output) -> None:
    placed = item.placement
    if placed is None:
        return
    shape = graph.values[item.value].shape
    if len(placed.starts) != graph.ranks or len(placed.full) != len(shape):
        raise InvalidInput("is placed by another number of ranks or dimensions", item.name)
    for start in placed.starts:
        if len(start) != len(shape) or any(
            not 0 <= s <= full - n for s, n, full in zip(start, shape, placed.full, strict=True)
        ):
            raise InvalidInput(
                f"a part of shape {list(shape)} at {list(start)} does not lie in "
                f"{list(placed.full)}",
                item.name,
            )


def _joined(graph: Graph, node: Node) -> None:
    ranks = [rank for group in node.groups for rank in group]
    if len(set(ranks)) < len(ranks):
        raise InvalidInput("a rank is in two groups of one operator", node.name)
    if ranks and graph.ranks > 1 and sorted(ranks) != list(graph.members):
        raise InvalidInput("groups are not all ranks of the graph", node.name)
    for key, value in node.attrs.items():
        if isinstance(value, PerRank) and len(value.values) != graph.ranks:
            raise InvalidInput(f"attribute {key} is given for other ranks", node.name)
