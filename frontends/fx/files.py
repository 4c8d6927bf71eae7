"""The files of two sides: a graph of a single device, and one for each rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import archived, pt2, records, waits
from shardproof.frontends.fx.dispatched import in_order
from shardproof.frontends.fx.functional import functional
from shardproof.frontends.fx.kept import kept_rows
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.fx.words import whole_rows
from shardproof.frontends.graphs import relations
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.untrusted.inert import printable


def sides(single: str, parallel: str, relations_file: str) -> tuple[Graph, list[Graph], Relations]:
    """The graph of a single device, those of ranks, and what a relations file (empty: none) says;
    for example of ``single.pt2`` and a folder ``ranks``."""
    user_relations = relations.read(Path(relations_file)) if relations_file else Relations()
    alone, ranks = side(Path(single)), side(Path(parallel))
    if len(alone) != 1:
        raise InvalidInput(
            f"expected one graph of a single device, found {len(alone)}", printable(single, 400)
        )
    # Groups that are given may have another order than that of ranks.
    return alone[0], ranks if user_relations.groups else whole_rows(ranks), user_relations


def side(path: Path) -> list[Graph]:
    """The graphs of a side in order of ranks: of a folder, for example, those of ``r0.pt2``,
    ``r1.pt2``."""
    files = records.ranks(path)
    graphs = [records.read(file, partial(_exported, n)) for n, file in enumerate(files)]
    for number, graph in enumerate(graphs):
        try:
            waits.check(graph)
            graphs[number] = archived.with_tables(kept_rows(in_order(functional(graph))))
        except InvalidInput as error:
            raise error.within(printable(str(files[number]), 400)) from None
        if len(graphs) > 1 and graph.rank != number:
            raise InvalidInput(
                f"expected the graph of rank {number}, found that of rank {graph.rank}",
                printable(str(path), 400),
            )
    return graphs


def _exported(rank: int, path: Path) -> Graph | None:
    """The graph of an archive of `torch.export` (None: it is none)."""
    with path.open("rb") as file:
        head = file.read(pt2.HEAD_BYTES)
    return archived.read(path, rank) if pt2.is_archive(head) else None
