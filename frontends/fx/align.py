"""Which node of the single side's graph a rank's node stands for, for findings.

Names of nodes count operators (``view_17``), so that one operator more on a rank shifts all behind
it.  Here nodes are aligned as lines of two texts are: by operator and source line, in order.
Nothing that is proved depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from shardproof.frontends.fx.records import CALL, Graph, Node

#: Graphs of more nodes are aligned by name.
MOST = 20_000


def modules(single: Graph, rank: Graph) -> dict[str, str]:
    """The name that findings give each node of a rank: of the single side's node that it stands
    for, or its own, marked where the single side has another node of that name.

    Example: where a rank has ``x_sum`` and ``x_wait`` of an all-reduce beside the nodes of the
    single side, these keep their names, and its ``scaled`` is the ``scaled`` behind them; two
    graphs of the same operators and lines need no names: {}.
    """
    own, other = _calls(single), _calls(rank)
    names = {node.name for node in single.nodes}
    if len(own) > MOST or len(other) > MOST or _tokens(own) == _tokens(other):
        return {}
    modules_by_node = {
        n.name: f"{n.name} of the ranks" if n.name in names else n.name for n in other
    }
    matcher = SequenceMatcher(None, _tokens(own), _tokens(other), autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        for k in range(size):
            modules_by_node[other[j + k].name] = own[i + k].name
    return modules_by_node


def _calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == CALL]


def _tokens(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    return [(node.target, node.src or "") for node in nodes]
