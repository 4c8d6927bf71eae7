"""That what a relations file says by name is about something that the graphs have: a name that was
written wrong would be a statement that nobody reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.groups import named
from shardproof.frontends.fx.lower import EMPTY
from shardproof.frontends.fx.records import CONSTANT, Archived, Graph
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.untrusted.inert import printable

#: So many names are listed where one is expected.
LISTED = 16


def check(single: Graph, ranks: Sequence[Graph], relations: Relations) -> None:
    """Raise `InvalidInput` for a domain of what is no input of integers of the single side, for a
    constant of which no graph lacks the value, and for a group that no collective of a rank names.

    Example: ``[domains]`` with ``lables = [0, 8]`` beside an input ``labels`` is refused.
    """
    integers = {
        node.name for node in single.inputs if (node.dtype or "").startswith(("int", "uint"))
    }
    for name in relations.domains:
        _expect(name, integers, "an input of integers of the single side", "domains")
    constants = {name for graph in (single, *ranks) for name in _without_value(graph)}
    for name in relations.constants:
        _expect(name, constants, "a constant whose value the graphs do not have", "constants")
    groups = {name for graph in ranks for name in named(graph.nodes)}
    for name in relations.groups:
        _expect(name, groups, "a group that collectives of the ranks name", "groups")


def _without_value(graph: Graph) -> Iterator[str]:
    """The constants that a file names, and of which it has no numbers."""
    numbers = graph.numbers if isinstance(graph, Archived) else {}
    for node in graph.nodes:
        if node.op == CONSTANT and node.name not in numbers:
            yield node.target
        elif node.target == EMPTY and node.name.startswith("constant"):
            yield node.name


def _expect(name: str, known: Collection[str], what: str, where: str) -> None:
    if name in known:
        return
    names = [printable(own, 80) for own in sorted(known)]
    more = ", ..." if len(names) > LISTED else ""
    among = f" ({', '.join(names[:LISTED])}{more})" if names else ""
    raise InvalidInput(f"expected {what}{among}", f"{where}.{printable(name, 80)}")
