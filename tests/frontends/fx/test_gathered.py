"""Messages on graphs: rows that ids read, brought together where other ids say, by sum or mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, verified

NODES, EDGES, WIDTH = 5, 7, 4


def messages(
    rank: int = 0, ranks: int = 1, reduce: str = "mean", include: bool = False
) -> dict[str, Any]:
    """What a node gets from its neighbours, of which a rank has some features, times a matrix."""
    w = Writer(rank)
    own = WIDTH // ranks
    x, weight = w.given("x", (NODES, own)), w.given("weight", (own, 3))
    source = w.given("source", (EDGES,), "int64")
    target = w.given("target", (EDGES,), "int64")
    rows = w.call("rows", "aten.index.Tensor", [x, [source]], (EDGES, own))
    column = w.call("column", "aten.unsqueeze.default", [target, 1], (EDGES, 1), "int64")
    wide = w.call("wide", "aten.expand.default", [column, [EDGES, own]], (EDGES, own), "int64")
    args = [x, 0, wide, rows, reduce]
    name = "aten.scatter_reduce.two"
    y = w.call("y", name, args, (NODES, own), include_self=include)
    z = w.call("z", "aten.mm.default", [y, weight], (NODES, 3))
    if ranks > 1:
        reduced = "_c10d_functional.all_reduce.default"
        z = w.call("all", reduced, [z, "sum", "tp"], (NODES, 3))
    return w.output(z)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_what_nodes_get_is_what_pytorch_says(reduce: str, include: bool) -> None:
    graph = msgspec.convert(messages(reduce=reduce, include=include), Graph)
    domains = {"source": (0, NODES), "target": (0, NODES)}
    replayed = replay.validated(graph, [graph], Relations(domains=domains))
    assert (replayed.replayed, replayed.agrees) == (True, True), replayed


@pytest.mark.parametrize(("include", "verdict"), [(False, "proved"), (True, "refuted")])
def test_ranks_have_features_of_nodes(include: bool, verdict: str, tmp_path: Path) -> None:
    ranks = [messages(rank, 2, include=include) for rank in range(2)]
    result = verified(tmp_path, messages(), ranks)
    assert result.verdict == verdict, result.reason
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok


def test_another_reduction_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("single", "parallel"):
        (tmp_path / f"{name}.json").write_text(json.dumps(messages(reduce="amax")))
    result = shardproof.verify(
        tmp_path / "single.json", tmp_path / "parallel.json", out=tmp_path / "run"
    )
    assert result.verdict == "inconclusive"
    assert any("by amax" in text for text in result.assumptions), result.assumptions
