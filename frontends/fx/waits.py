"""Whether results of collectives are read before a graph waits for them.

What a functional collective gives is there once ``wait_tensor`` is asked for it, or for a view of
it; a pass that moves a reader in front of the wait makes another program.  A graph without any
wait was written by somebody to whom the results are values.
"""

from __future__ import annotations

from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.functional import VIEWS
from shardproof.frontends.fx.records import GETITEM, OUTPUT, Graph, operands

WAIT: Final = "_c10d_functional.wait_tensor.default"
#: Collectives whose results are to be waited for.
_ISSUED: Final = ("_c10d_functional.", "_c10d_functional_autograd.")


def check(graph: Graph) -> None:
    """Raise `InvalidInput` where a result is read before the wait for it.

    Example: ``y = all_reduce(x); z = add(y, y); w = wait_tensor(y)``: "z reads y before the wait".
    """
    if not any(node.target == WAIT for node in graph.nodes):
        return
    issued: dict[str, str] = {}
    for node in graph.nodes:
        read = [name for name in operands((node.args, node.kwargs)) if name in issued]
        if node.target == WAIT:
            over = {issued[name] for name in read}
            issued = {name: of for name, of in issued.items() if of not in over}
        elif read and node.target in VIEWS:
            issued[node.name] = issued[read[0]]
        elif read and node.target == GETITEM:
            issued[node.name] = node.name
        elif read and node.op != OUTPUT:
            raise InvalidInput(
                f"{node.name} ({node.target}) reads {read[0]} before the wait for it"
            )
        elif node.target.startswith(_ISSUED):
            issued[node.name] = node.name
            if node.target.endswith("_.default"):
                issued |= dict.fromkeys(operands(node.args), node.name)
