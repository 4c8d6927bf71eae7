"""Integers of which programs read remainders alone, as the row of a hashed table, ``ids % 8``.

Nobody says how large they are, and a remainder of any integer is a function of too many.  Where
both sides read an input by remainders of what grows with it, and by nothing else, one that is
smaller than all divisors together stands for all that leave the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import Final

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Graph, Node
from shardproof.frontends.hlo.known import Known

#: What gives the same integers again, elsewhere, of another type or on other ranks.
_SAME: Final = frozenset(
    {"broadcast", "reshape", "slice", "dynamic-slice", "transpose", "copy", "reverse"}
    | {"all-gather", "all-to-all", "collective-permute", "concatenate"}
)
#: What grows with an integer, where the other operand is a number that is not negative.
_GROWING: Final = frozenset({"add", "multiply"})
#: Types in which integers from 0 on are what they were.
_WIDE: Final = frozenset({"int32", "int64", "uint32", "uint64"})
#: So many integers are told apart.
MOST: Final = 1 << 12


def narrowed(single: Graph, parallel: Graph) -> tuple[Graph, list[Assumption]]:
    """The single side, with a domain for inputs of which both read remainders alone, and what is
    assumed of these.

    Example: of ``table[ids % 8]`` on both sides, that ids are from 0 to 7.
    """
    one, other = _Reading(single).moduli(), _Reading(parallel).moduli()
    inputs, assumed = list(single.inputs), []
    for position, own in one.items():
        item, count = inputs[position], lcm(own, other.get(position, 0))
        if not 1 < count <= MOST or item.domain is not None or item.mark is not None:
            continue
        inputs[position] = replace(item, domain=(0, count))
        text = (
            f"integers {item.name}, of which only remainders are used, are not negative, and what "
            f"is divided does not overflow: one from 0 to {count - 1} stands for each"
        )
        assumed.append(Assumption("inferred", item.name, "", text))
    return replace(single, inputs=tuple(inputs)), assumed


class _Reading:
    """How a graph reads its inputs of integers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        signed = {"int32", "int64"}
        self.origins = {
            item.value: frozenset([n])
            for n, item in enumerate(graph.inputs)
            if graph.values[item.value].dtype in signed
        }
        self.numbers: dict[int, float] = {}

    def moduli(self) -> dict[int, int]:
        """The least common multiple of the divisors by which each input is read; none for one that
        is read otherwise."""
        made = {n: 1 for origins in self.origins.values() for n in origins}
        for node in self.graph.nodes:
            for position, modulus in list(self._read(node)):
                if position in made:
                    made[position] = lcm(made[position], modulus)
                if not modulus:
                    made.pop(position, None)
        for output in self.graph.outputs:
            for position in self.origins.get(output.value, ()):
                made.pop(position, None)
        return made

    def _read(self, node: Node) -> Iterator[tuple[int, int]]:
        """The inputs that a node reads, with the divisor (1: it reads none; 0: otherwise)."""
        if node.target == "constant":
            value = node.attrs["value"]
            number = value.number() if isinstance(value, Known) else None
            if number is not None:
                self.numbers[node.results[0]] = number
            return
        dtypes = {self.graph.values[v].dtype for v in node.results}
        same = node.target in _SAME or (node.target == "convert" and dtypes <= _WIDE)
        first = node.operands[0] if node.operands else -1
        if same and first in self.numbers and len(node.operands) == 1:
            self.numbers[node.results[0]] = self.numbers[first]
        read = frozenset(n for v in node.operands for n in self.origins.get(v, ()))
        if not read:
            return
        divisor = self._divisor(node)
        if divisor:
            yield from ((n, divisor) for n in read)
        elif (same and self._moves(node)) or self._grows(node):
            for result in node.results:
                self.origins[result] = read
        else:
            yield from ((n, 0) for n in read)

    def _moves(self, node: Node) -> bool:
        """Whether integers of inputs are all that is moved, and none says where to."""
        if node.target == "concatenate":
            return all(v in self.origins or self.numbers.get(v, -1) >= 0 for v in node.operands)
        return not any(v in self.origins for v in node.operands[1:])

    def _grows(self, node: Node) -> bool:
        others = [v for v in node.operands if v not in self.origins]
        return node.target in _GROWING and all(self.numbers.get(v, -1) >= 0 for v in others)

    def _divisor(self, node: Node) -> int:
        """By what a node divides, if it is a remainder; 0: it is none."""
        if node.target == "remainder" and node.operands[1] not in self.origins:
            return max(0, int(self.numbers.get(node.operands[1], 0)))
        for v in node.operands if node.target == "and" else ():
            bits = int(self.numbers.get(v, 0))
            if bits > 0 and not bits & (bits + 1):
                return bits + 1
        return 0
