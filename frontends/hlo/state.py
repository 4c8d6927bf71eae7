"""The state of a lowering: what has been emitted of one graph, and what every value is so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Graph, Node, Shape
from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo.divided import Over
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.extended import Reaches
from shardproof.frontends.hlo.items import Item, Narrow, Tensor, Values
from shardproof.frontends.hlo.module import Array, Type


class Other(NamedTuple):
    """What is known of the other side: its constants of unlike numbers, and which
    windows it has over other positions; ``by_order``: causal masks are read by their positions, on
    both sides, and are no constants; ``causal``: of how many positions its scores are that have
    minus infinity where the key comes after the query; ``turns``: by how much it turns values along
    several dimensions (`turned`).

    Example: ``Other(tables=[mask])`` of the ranks, where the single side has a causal mask.
    """

    tables: Sequence[Array] = ()
    windows: frozenset[Over] = frozenset()
    by_order: bool = False
    causal: tuple[int, ...] = ()
    turns: frozenset[frozenset[tuple[int, int]]] = frozenset()


#: In the name of an operator that no rule says.
REFUSED: Final = " of HLO ("


class Numbers(NamedTuple):
    """What a float is on every rank (one array for all, or one for each), in double precision;
    ``exact``: neither these nor the type's own numbers are rounded on the way; ``single``: the same
    in single precision.

    Example: ``(iota + 0.5) * 2`` of ``f32[3]`` is ``[1, 3, 5]``, exactly; ``iota * 0.1`` is not.
    """

    arrays: tuple[Array, ...]
    exact: bool
    single: tuple[Array, ...]


class Framed(NamedTuple):
    """A part between zeros along a dimension, where it begins at another position on each rank.

    Example: of ``dynamic-update-slice(zeros, x, 4 * partition-id)`` of ``x = f32[4]`` on two ranks:
    that value of ``x``, dimension 0 and the starts (0, 4).
    """

    part: int
    dim: int
    starts: tuple[int, ...]


class Bounded(NamedTuple):
    """The larger or smaller one (``how``: "maximum" or "minimum") of a number and a value.

    Example: of ``maximum(x, 1e-8)``, ``x`` being value 3, "maximum", both operands and 3.
    """

    how: str
    both: tuple[Item, ...]
    value: int


class Pick(NamedTuple):
    """The ``most`` largest (or smallest) entries of ``scores`` along a dimension: values of the
    body, and where they are.

    Example: of ``argmax`` of ``f32[4,8]``, value 2: ``Pick(2, 1, 1, True, 3, 4)``.
    """

    scores: int
    most: int
    dim: int
    largest: bool
    values: int
    places: int


class Lowering:
    """The operators of one graph, while they are emitted.

    Example: after ``add(x, z)`` of two parameters, ``items`` has ``Tensor(2)`` for it, and the
    recorder the operator ``add`` of values 0 and 1.

    ``domains``: of integer inputs, by position, [low, high); ``settled``: they stay as they are;
    ``expressions``: those of bits on both sides; ``other``: what is known of the other side.
    """

    def __init__(
        self,
        graph: Graph,
        domains: Mapping[int, tuple[int, int]],
        settled: bool,
        expressions: Expressions | None = None,
        other: Other | None = None,
    ) -> None:
        self.expressions = expressions or Expressions()
        self.other = other or Other()
        self.graph = graph
        self.domains = domains
        self.settled = settled
        self.recorder = Recorder(graph.ranks)
        self.reaches = Reaches(self.recorder)
        self.values = Values(
            self.recorder, self.expressions, settled, self.other.tables, self.other.by_order
        )
        self.items: dict[int, Item] = {}
        #: What floats are that constants alone make (`doubles`).
        self.numbers: dict[int, Numbers] = {}
        self.origins: dict[int, int] = {}
        #: Quotients by their value: of which ids, by which number, and what is added to the ids.
        self.quotients: dict[int, tuple[int, int, int]] = {}
        #: Values of places, none of which is twice in a row along the axis.
        self.distinct: dict[int, int] = {}
        #: What is bounded by a number, by the value that it became.
        self.bounded: dict[int, Bounded] = {}
        #: Choices of the largest entries, by both values that they gave.
        self.picks: dict[int, Pick] = {}
        #: Values of the graph that only tell where something was written (`marked`).
        self.marks: set[int] = set()
        #: Parts between zeros, by the value that they became.
        self.framed: dict[int, Framed] = {}
        self._makers: dict[int, Node] = {}

    def maker(self, value: int) -> Node | None:
        """The operator that a value is the result of; None for an input."""
        if not self._makers:
            self._makers = {v: node for node in self.graph.nodes for v in node.results}
        return self._makers.get(value)

    def narrowed(self, error: Narrow) -> tuple[int, int]:
        """Which input lies among how many rows (-1: nobody says how large it is).

        Example: of five rows that ``ids // 2`` chooses, the input of the ids, and 10.
        """
        origin, rows = error.origin, error.rows
        if origin in self.quotients:
            origin, divisor, offset = self.quotients[origin]
            rows = rows * divisor - offset
        return self.origins.get(origin, -1), rows

    def narrow(self, node: Node, error: Narrow) -> None:
        """Ids may choose rows that are none: their domain is narrowed, unless it is settled."""
        if not self.settled:
            raise error
        self.refuse(node, Unsupported(f"ids may choose other rows than the {error.rows}"))

    def refuse(self, node: Node, error: Unsupported) -> None:
        """An operator that no rule says is one that nobody declares: whatever depends on it is
        neither proved nor refuted, by its name and the reason."""
        inputs = [x.value for v in node.operands if isinstance(x := self.items[v], Tensor)]
        for result in node.results:
            value = self.graph.values[result]
            name = f"{node.target}{REFUSED}{error})"
            refused = self.recorder.append(name, inputs, value.shape, value.dtype, {})
            self.items[result] = Tensor(refused)

    def type(self, node: Node) -> Type:
        """Shape and element type of a node's first result."""
        value = self.graph.values[node.results[0]]
        return Type(value.shape, value.dtype)

    def shape(self, node: Node) -> Shape:
        """The shape of a node's first result."""
        return self.graph.values[node.results[0]].shape

    def dtype(self, node: Node) -> str:
        """The element type of a node's first result."""
        return self.graph.values[node.results[0]].dtype

    def tensor(self, item: Item) -> int:
        """The value that an item becomes (`Values.tensor`)."""
        return self.values.tensor(item)

    def op(self, operator: str, *inputs: int, **attrs: Any) -> Tensor:
        """An operator on values, as an item."""
        return Tensor(self.recorder.op(operator, *inputs, **attrs))


#: What makes the result of an operator of its operands.
Rule: TypeAlias = Callable[[Lowering, Node, Sequence[Item]], Item]
#: The same of an operator with several results.
Several: TypeAlias = Callable[[Lowering, Node, Sequence[Item]], Sequence[Item]]


def integral(dtype: str) -> bool:
    """Whether an element type is of whole numbers, predicates not among them.

    Example: ``int32`` and ``uint8`` are, ``bool`` and ``float32`` are not.
    """
    return dtype.startswith(("int", "uint"))
