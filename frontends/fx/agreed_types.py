"""Whether ranks that meet in a collective give it elements of one type: backends move bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.groups import groups, named
from shardproof.frontends.fx.records import Graph, Node


def check(graphs: Sequence[Graph], recorded: Mapping[str, list[list[int]]]) -> None:
    """Raise `InvalidInput` where ranks issue one collective for elements of unlike types, in the
    order in which each issues those of a group; ``recorded``: groups that somebody states.

    Example: where rank 0 reduces float64 and rank 1 float32, the numbers that each gets are none.
    """
    met: dict[tuple[int, ...], dict[int, list[Node]]] = {}
    for rank, graph in enumerate(graphs):
        ranks_of = groups(graphs, recorded, rank)
        for node in graph.nodes:
            for name in named([node]):
                met.setdefault(ranks_of[name], {}).setdefault(rank, []).append(node)
    for issued in met.values():
        first, *others = issued.items()
        for rank, nodes in others:
            for theirs, ours in zip(first[1], nodes, strict=False):
                if theirs.target == ours.target and theirs.dtype != ours.dtype:
                    raise InvalidInput(
                        f"{ours.target} of {ours.dtype}, where rank {first[0]} has it of "
                        f"{theirs.dtype} ({theirs.name})",
                        f"rank {rank}, {ours.name}",
                    )
