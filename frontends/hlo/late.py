"""A mean that is divided in its loss, beside ranks that divide gradients once they are added up.

``grad(sum(l m) / sum(m))`` has the factor ``1 / sum(m)`` in every gradient from the loss on; ranks
that add up gradients of ``sum(l m)``, and divide these, have it at their end.  Gradients are linear
in it: here the single device's are read without it, and divided where something else is made of
them.  Over the reals that is the same program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from shardproof.frontends.graphs.graph import Graph, Node, Output, Value
from shardproof.frontends.hlo.known import Known

#: What is linear in its first operand, where the others have no part in it.
_MOVES: Final = frozenset(
    {"broadcast", "reshape", "slice", "transpose", "copy", "reverse", "negate", "dynamic-slice"}
    | {"gather", "convert", "divide"}
)
#: What is linear in either of two operands, but not in both.
_PRODUCTS: Final = frozenset({"multiply", "dot"})
#: What is linear in operands together (from which on, until which), as far as others are zero.
_SUMS: Final = {
    "add": (0, 2),
    "subtract": (0, 2),
    "select": (1, 3),
    "concatenate": (0, None),
    "pad": (0, 2),
    "dynamic-update-slice": (0, 2),
}
#: Sums over ranks.
_JOINS: Final = frozenset({"all-reduce", "reduce-scatter"})
_SAME: Final = frozenset({"broadcast", "reshape", "convert", "copy", "transpose"})


def divided_late(single: Graph, parallel: Graph) -> Graph:
    """The single side, whose gradients are divided at their end, where the ranks' are; as it is
    where the ranks divide no sum by a number that they have added up.

    Example: of ``dot(broadcast(1 / n) * x, w)`` it is ``dot(x, w) / broadcast(n)``.
    """
    if not _divides_sums(parallel):
        return single
    reading = _Reading(single)
    for node in single.nodes:
        if reading.is_quotient(node):
            linear = reading.linear_in(node.results[0])
            if len(linear) > 1:
                return _rewritten(single, node, linear)
    return single


class _Reading:
    """Operators by their results, and numbers of constants."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {v: node for node in graph.nodes for v in node.results}

    def origin(self, value: int) -> int:
        """What a value is in another shape."""
        node = self.makers.get(value)
        while node is not None and node.target in _SAME:
            value = node.operands[0]
            node = self.makers.get(value)
        return value

    def number(self, value: int) -> float | None:
        """The number of a constant."""
        node = self.makers.get(self.origin(value))
        item = node.attrs["value"] if node is not None and node.target == "constant" else None
        return item.number() if isinstance(item, Known) else None

    def is_quotient(self, node: Node) -> bool:
        """Whether a node is a number that is divided by one that is computed."""
        value = self.graph.values[node.results[0]]
        if node.target != "divide" or value.shape or not _is_float(value):
            return False
        over, under = map(self.number, node.operands)
        return over is not None and under is None

    def linear_in(self, value: int) -> frozenset[int]:
        """What is a value times something that is made without it."""
        linear = {value}
        for node in self.graph.nodes:
            if not linear.isdisjoint(node.operands) and self._is_linear(node, linear):
                linear.update(node.results)
        return frozenset(linear)

    def _is_linear(self, node: Node, linear: set[int]) -> bool:
        if not all(_is_float(self.graph.values[v]) for v in node.results):
            return False
        inside = [v in linear for v in node.operands]
        if node.target in _MOVES:
            return inside[0] and not any(inside[1:])
        if node.target in _PRODUCTS:
            return sum(inside) == 1
        if node.target in _SUMS:
            first, last = _SUMS[node.target]
            added, others = node.operands[first:last], node.operands[:first]
            others += node.operands[last:] if last is not None else ()
            zero = all(v in linear or self.number(v) == 0 for v in added)
            return zero and linear.isdisjoint(others)
        if node.attrs.get("to_apply") != "add":
            return False
        if node.target == "reduce":
            return len(inside) == 2 and inside[0] and self.number(node.operands[1]) == 0
        if node.target == "scatter":
            first = node.operands[0] in linear or self.number(node.operands[0]) == 0
            return len(inside) == 3 and first and inside[2] and not inside[1]
        return False


def _is_float(value: Value) -> bool:
    return value.dtype.startswith(("float", "bfloat"))


def _divides_sums(graph: Graph) -> bool:
    """Whether ranks divide what they have added up by a number that they have added up."""
    reading = _Reading(graph)

    def joined(value: int) -> bool:
        node = reading.makers.get(reading.origin(value))
        return node is not None and node.target in _JOINS

    def counted(value: int) -> bool:
        value = reading.origin(value)
        node = reading.makers.get(value)
        if node is None or graph.values[value].shape:
            return False
        bound = node.target == "maximum" and any(map(joined, node.operands))
        return node.target in _JOINS or bound

    return any(
        node.target == "divide"
        and graph.values[node.results[0]].shape
        and joined(node.operands[0])
        and counted(node.operands[1])
        for node in graph.nodes
    )


def _rewritten(graph: Graph, quotient: Node, linear: frozenset[int]) -> Graph:
    """The graph with what is linear in a quotient made of its dividend, and divided where it is
    read by what is not."""
    values, nodes = list(graph.values), list[Node]()
    (whole,) = quotient.results
    over, under = quotient.operands
    late = {whole: whole}

    def new(value: int, name: str) -> int:
        like = values[value]
        values.append(Value(f"{like.name}.{name}", like.shape, like.dtype))
        return len(values) - 1

    def divided(value: int) -> Iterator[Node]:
        shape = values[value].shape
        below = under
        if shape:
            below = new(value, "count")
            named = values[below].name
            yield Node(named, "broadcast", (under,), (below,), {"dimensions": ()})
        late[value] = new(value, "divided")
        yield Node(values[late[value]].name, "divide", (value, below), (late[value],))

    for node in graph.nodes:
        if node.results[0] in linear and node is not quotient:
            operands = tuple(over if v == whole else v for v in node.operands)
            nodes.append(replace(node, operands=operands))
            continue
        for value in dict.fromkeys(node.operands):
            if value in linear and value not in late:
                nodes.extend(divided(value))
        operands = tuple(late[v] if v in linear else v for v in node.operands)
        nodes.append(replace(node, operands=operands))
    outputs: list[Output] = []
    for output in graph.outputs:
        if output.value in linear and output.value not in late:
            nodes.extend(divided(output.value))
        outputs.append(replace(output, value=late.get(output.value, output.value)))
    return replace(graph, values=tuple(values), nodes=tuple(nodes), outputs=tuple(outputs))
