"""The number that says "none" among integers: labels that do not count are -1, or -100.

Integers of an input lie from 0 on, unless the program of one device asks whether they are another:
``y >= 0`` and ``y != -100`` tell such a mark from all others.  Where a program only lets negative
indices count from the end, ``select(i < 0, i + n, i)``, as every lookup of JAX does, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from shardproof.frontends.graphs.graph import Graph, Input, Node
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.state import integral

#: What gives the same integers again, elsewhere or as another type.
_SAME = frozenset(
    {"broadcast", "reshape", "convert", "slice", "dynamic-slice", "gather", "transpose", "copy"}
)
#: What puts the integers of its first operands among each other.
_JOINED = {"concatenate": None, "dynamic-update-slice": 2, "pad": 2}
#: Comparisons of an integer with a number: which mark one tells from the integers from 0 on.
_TELLS = {"GE": 0, "LT": 0, "GT": -1, "LE": -1}
_SWAPPED = {"GE": "LE", "LE": "GE", "GT": "LT", "LT": "GT"}


def marked(graph: Graph) -> Graph:
    """The graph, whose inputs of integers have their marks.

    Example: labels of which a loss counts those that are not -100 have the mark -100.
    """
    origins = {
        item.value: n
        for n, item in enumerate(graph.inputs)
        if integral(graph.values[item.value].dtype)
    }
    numbers: dict[int, float] = {}
    marks: dict[int, set[int]] = {}
    readers: dict[int, list[Node]] = {}
    sums = {node.results[0]: node for node in graph.nodes if node.target == "add"}
    for node in graph.nodes:
        for v in node.operands:
            readers.setdefault(v, []).append(node)
    for node in graph.nodes:
        if node.target == "constant":
            value = node.attrs["value"]
            number = value.number() if isinstance(value, Known) else None
            if number is not None:
                numbers[node.results[0]] = number
        elif node.target in _SAME and node.operands:
            for known in (origins, numbers):
                if node.operands[0] in known:
                    known[node.results[0]] = known[node.operands[0]]  # type: ignore[assignment]
        elif (made := _joined(node, origins, numbers)) is not None:
            origins[node.results[0]] = made
        elif node.target == "compare" and not _wraps(node, readers, sums):
            for position, mark in _marks_of(node, origins, numbers):
                marks.setdefault(position, set()).add(mark)
    inputs = tuple(
        replace(item, mark=min(marks[n])) if n in marks and item.domain is None else item
        for n, item in enumerate(graph.inputs)
    )
    return replace(graph, inputs=inputs)


def _joined(node: Node, origins: Mapping[int, int], numbers: Mapping[int, float]) -> int | None:
    """The input whose integers a node puts among each other, or among numbers from 0 on; None:
    others are among them, as a negative number by which the program finds its own padding again."""
    if node.target not in _JOINED:
        return None
    operands = node.operands[: _JOINED[node.target]]
    inputs = {origins[v] for v in operands if v in origins}
    others = all(numbers.get(v, -1) >= 0 for v in operands if v not in origins)
    return inputs.pop() if len(inputs) == 1 and others else None


def decoded(item: Input, numbers: Array) -> Array:
    """Integers as the program has them, of those that were drawn: -1 is the mark of the input.

    Example: [3, -1] of labels with the mark -100 is [3, -100].
    """
    return numbers if item.mark is None else np.where(numbers == -1, item.mark, numbers)


def _marks_of(
    node: Node, origins: Mapping[int, int], numbers: Mapping[int, float]
) -> Iterator[tuple[int, int]]:
    """The input and the mark that a comparison asks for."""
    x, y = node.operands
    how = node.attrs.get("direction", "")
    if x in numbers:
        x, y, how = y, x, _SWAPPED.get(how, how)
    if x not in origins or y not in numbers:
        return
    number = int(numbers[y])
    if how in ("EQ", "NE") and number < 0:
        yield origins[x], number
    elif _TELLS.get(how) == number:
        yield origins[x], -1


def _wraps(node: Node, readers: Mapping[int, list[Node]], sums: Mapping[int, Node]) -> bool:
    """Whether a comparison only says which indices count from the end."""
    users = readers.get(node.results[0], [])
    return all(
        user.target == "select"
        and (made := sums.get(user.operands[1])) is not None
        and user.operands[2] in made.operands
        for user in users
    )
