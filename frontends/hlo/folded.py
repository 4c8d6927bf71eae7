"""Constants that XLA made of constants: products and quotients, rounded once more.

Where the single device multiplies by two numbers, a compiled program multiplies by their product,
which is a number of its own.  The ranks' constant is that product, by an assumption that is
printed.  For example, 0.0356774069 of a compiled GELU is 0.797884583 times 0.044715.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import isfinite
from typing import NamedTuple

import numpy as np

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.aten.singles import meant
from shardproof.frontends.graphs.graph import Graph, Node, Value
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Type

#: Programs with more unlike constants are left as they are.
MOST_CONSTANTS = 64


class Made(NamedTuple):
    """How a constant is made of two others: ``multiply`` or ``divide``.

    Example: of 0.0356774069, ``Made("multiply", 0.797884583, 0.044715)``.
    """

    opcode: str
    first: float
    second: float


def unfolded(single: Graph, parallel: Graph) -> tuple[Graph, tuple[Assumption, ...]]:
    """The ranks' graph, in which constants that the single device has not are products or quotients
    of two that it has, where they are these rounded, and of no two others.

    Example: of ``tanh(x * 0.5 / 30)``, compiled to ``tanh(x * 0.0166666675)``, a constant that is
    0.5 divided by 30, and an assumption that says so.
    """
    theirs = sorted(set(_numbers(single).values()))
    own = _numbers(parallel)
    if len(theirs) > MOST_CONSTANTS or len(set(own.values())) > MOST_CONSTANTS:
        return parallel, ()
    made = {
        number: how for number in set(own.values()) - set(theirs) if (how := _made(number, theirs))
    }
    values = list(parallel.values)
    nodes: list[Node] = []
    for node in parallel.nodes:
        how = (
            made.get(own[node.results[0]]) if node.results[:1] and node.results[0] in own else None
        )
        nodes += [node] if how is None else _apart(node, how, values)
    texts = [_sentence(number, how) for number, how in sorted(made.items())]
    assumptions = tuple(Assumption("inferred", "constants", "", text) for text in texts)
    return replace(parallel, values=tuple(values), nodes=tuple(nodes)), assumptions


def _sentence(number: float, how: Made) -> str:
    whole, first, second = (f"{np.float32(x)!s}" for x in (number, how.first, how.second))
    word = "times" if how.opcode == "multiply" else "divided by"
    return f"the constant {whole} of the ranks is {first} {word} {second}, rounded"


def _numbers(graph: Graph) -> Mapping[int, float]:
    """Constants of single precision that are one finite number, by value."""
    numbers = {}
    for node in graph.nodes:
        value = node.attrs.get("value") if node.target == "constant" else None
        if isinstance(value, Known) and value.dtype == "float32":
            number = value.number()
            if isinstance(number, float) and isfinite(number) and abs(number) not in (0, 1):
                numbers[node.results[0]] = number
    return numbers


def _made(number: float, theirs: Sequence[float]) -> Made | None:
    """How a number is made of two others; None: it is not, or it is several ones."""
    ways = list(_ways(number, theirs))
    exact = {_exactly(way) for way in ways}
    return ways[0] if len(exact) == 1 else None


def _exactly(way: Made) -> Fraction:
    first, second = meant(way.first), meant(way.second)
    return first * second if way.opcode == "multiply" else first / second


def _ways(number: float, theirs: Sequence[float]) -> Iterator[Made]:
    singles = [np.float32(x) for x in theirs]
    with np.errstate(over="ignore", under="ignore"):
        for (a, x), (b, y) in product(zip(theirs, singles, strict=True), repeat=2):
            if a <= b and x * y == np.float32(number):
                yield Made("multiply", a, b)
            if x / y == np.float32(number):
                yield Made("divide", a, b)


def _apart(node: Node, how: Made, values: list[Value]) -> list[Node]:
    """Two constants and what is made of them, with the name of the constant."""
    (result,) = node.results
    shape = values[result].shape
    type = Type(shape, "float32")
    numbers = []
    for place, number in enumerate((how.first, how.second)):
        item = known.constant(np.broadcast_to(np.float32(number), shape), type)
        values.append(Value(f"{values[result].name}.{place}", shape, "float32"))
        new = len(values) - 1
        numbers.append(Node(f"{node.name}.{place}", "constant", (), (new,), {"value": item}))
    operands = tuple(n.results[0] for n in numbers)
    return [*numbers, replace(node, target=how.opcode, operands=operands, attrs={})]
