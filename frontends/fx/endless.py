"""Scores of -1e30 that a mask hides, where a rank has a block of which all is hidden.

In a causal ring a rank meets blocks of keys that come after all of its queries::

    scores = torch.where(queries[:, None] >= keys, scores, -1e30)
    largest = torch.maximum(before, scores.amax(-1))
    weights = torch.exp(scores - largest[..., None])

Over the reals these weights are no zeros, and the single side may hide by another number, or by
minus infinity.  In every format of numbers they are 0, as those of minus infinity are.  So on
both sides such a number is read as minus infinity, with which `frontends.aten` computes as IEEE's
arithmetic does; that is an assumption.  Minus infinity less itself is refused there: -1e30 less
itself is 0, and its exponential 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx.computed import Computed
from shardproof.frontends.fx.records import Archived, Graph, Node, operand

#: Numbers from this one down hide scores.
MOST: Final = -1e9
#: Where operators have their mask, and the number that may hide: everywhere where the mask is this.
_CHOICES: Final = {
    "aten.where.ScalarOther": (0, 2, False),
    "aten.where.ScalarSelf": (0, 1, True),
    "aten.masked_fill.Scalar": (1, 2, True),
}
#: Operators of which all entries are one number, and where they have it.
_FILLS: Final = {"aten.full.default": 1, "aten.scalar_tensor.default": 0}
_WHERE: Final = "aten.where.self"


class Endless(NamedTuple):
    """Both sides with minus infinity in place of numbers, and what is assumed of these.

    Example: -1e30 in the graphs of one device and of two ranks.
    """

    single: Graph
    ranks: Sequence[Graph]
    assumed: Assumption


def endless(single: Graph, ranks: Sequence[Graph]) -> Endless | None:
    """Both sides, with minus infinity in place of numbers that hide; None, unless some rank has a
    block that is hidden altogether and every mask of such a number is known.

    Example: a ring of two ranks whose first one meets the second one's keys; not a causal layer of
    which each rank has some heads.
    """
    sides = [single, *ranks]
    numbers = [set(_numbers(graph)) for graph in sides]
    if not any(numbers[1:]) or any(None in own for own in numbers):
        return None
    hidden = [_hidden(graph) for graph in sides]
    if None in hidden or not any(mask.all() for own in hidden[1:] for mask in own or ()):
        return None
    if any(mask.all(axis=-1).any() for mask in hidden[0] or () if mask.ndim):
        return None
    named = sorted({number for own in numbers for number in own if number is not None})
    text = (
        f"scores of {', '.join(f'{n:g}' for n in named)} that a mask hides are minus infinity: "
        "nothing that they are compared with, or taken from, is near them"
    )
    written = [replace(graph, nodes=[_written(n) for n in graph.nodes]) for graph in sides]
    return Endless(written[0], written[1:], Assumption("inferred", "hidden scores", "", text))


def _numbers(graph: Graph) -> Iterator[float | None]:
    """The numbers of a graph that may hide; None: one stands where it hides nothing."""
    for node in graph.nodes:
        at = _place(node)
        for place, number in enumerate(node.args):
            if _hides(number):
                yield float(number) if place == at else None
        if any(map(_hides, node.kwargs.values())):
            yield None


def _hides(number: Any) -> bool:
    return isinstance(number, (int, float)) and -inf < number <= MOST


def _place(node: Node) -> int | None:
    """Where an operator has a number that may hide; None: it has none."""
    choice = _CHOICES.get(node.target)
    at = choice[1] if choice else _FILLS.get(node.target)
    return at if at is not None and at < len(node.args) else None


def _hidden(graph: Graph) -> list[Any] | None:
    """What is hidden by a number of a graph, where that is known of all; None: it is not."""
    computed = Computed(graph, graph.numbers if isinstance(graph, Archived) else {})
    nodes = {node.name: node for node in graph.nodes}
    hidden: list[Any] = []
    for node in graph.nodes:
        for mask, where in _masks(node, nodes):
            array = computed.array(operand(mask) or "")
            if array is None:
                return None
            hidden.append(np.asarray(array, dtype=bool) == where)
    return hidden


def _masks(node: Node, nodes: dict[str, Node]) -> Iterator[tuple[Any, bool]]:
    """The mask by which a node is filled with a number that hides, and what it is there."""
    choice, at = _CHOICES.get(node.target), _place(node)
    if choice and at is not None and _hides(node.args[at]):
        yield node.args[choice[0]], choice[2]
    if node.target == _WHERE:
        for other, where in zip(node.args[1:3], (True, False), strict=False):
            fill = nodes.get(operand(other) or "")
            place = _place(fill) if fill else None
            if fill and place is not None and _hides(fill.args[place]):
                yield node.args[0], where


def _written(node: Node) -> Node:
    """A node with minus infinity in place of a number that hides."""
    at = _place(node)
    if at is None or not _hides(node.args[at]):
        return node
    return replace(node, args=[*node.args[:at], -inf, *node.args[at + 1 :]])
