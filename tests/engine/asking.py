"""Whether obligations hold, as the solvers say."""

from __future__ import annotations

from collections.abc import Callable

from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, build
from shardproof.solvers import Portfolio, Query

#: Whether the obligation that the prover states of a claim, with all its members, is proved.
Holds = Callable[[NodeTable, Claim], bool]


def asked(portfolio: Portfolio) -> Holds:
    """The question, put to one portfolio."""

    def holds(nodes: NodeTable, claim: Claim) -> bool:
        return portfolio.solve(Query.of("", build(nodes, claim).goals)).verdict == "unsat"

    return holds
