"""Graphs evaluated by PyTorch beside their translation: what agrees, what does not, what is not
run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shardproof import sources
from shardproof.frontends.fx import read, replay
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.graphs.replayed import NOT_REPLAYED
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from tests.frontends.fx.graphs import Writer, argument, model, target, write


def graphs(ranks: int) -> tuple[Graph, list[Graph]]:
    alone = msgspec.convert(model(), Graph)
    return alone, [msgspec.convert(model(rank, ranks), Graph) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_translation_is_what_pytorch_computes(ranks: int) -> None:
    found = replay.validated(*graphs(ranks), Relations())
    assert (found.replayed, found.agrees) == (True, True), found
    assert found.compared == 2 * (ranks + 1)


def test_a_wrong_translation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, ranks = graphs(2)
    wrong = [model(rank, 2) for rank in range(2)]
    for graph in wrong:
        argument("scaled", 1, 0.25)(graph)
    other = read.paired(alone, [msgspec.convert(g, Graph) for g in wrong], Relations())[1]
    both, _ = read.paired(alone, ranks, Relations())
    monkeypatch.setattr(replay.read, "paired", lambda *_: (both, other))
    found = replay.validated(alone, ranks, Relations())
    assert (found.replayed, found.agrees) == (True, False)
    assert "on rank 0 differs by" in found.message


def test_what_pytorch_does_not_have_is_not_run() -> None:
    raw = model()
    target("gelu", "custom.gelu.default")(raw)
    alone = msgspec.convert(raw, Graph)
    found = replay.validated(alone, [alone], Relations())
    assert (found.replayed, found.agrees) == (False, True)
    assert "custom.gelu.default" in found.message


@pytest.mark.parametrize("asked", [True, False])
def test_the_verdict_says_whether_it_was_replayed(tmp_path: Path, asked: bool) -> None:
    single = write(tmp_path / "single", [model()])
    parallel = write(tmp_path / "parallel", [model(rank, 2) for rank in range(2)])
    options = Options(out=tmp_path / "run", cache=False)
    result = sources.run(single, parallel, options, Progress(), validated=asked)
    assert result.verdict == "proved"
    assert (NOT_REPLAYED in result.assumptions) is not asked
    told = "the translation was replayed: 6 tensors agree with PyTorch's"
    assert (told in result.assumptions) is asked


def test_types_are_given_by_name_among_arguments() -> None:
    from shardproof.frontends.torch import eager

    x = eager.tensor(np.array([1.5, -2.5]))
    assert eager.call("aten.to.dtype", (x, "int64"), {}).tolist() == [1, -2]
    assert eager.call("aten.to.dtype", (x, "bfloat16"), {}).dtype == x.dtype


def peaks(rank: int = 0, ranks: int = 1) -> Graph:
    """The largest of each column, over rows that ranks share."""
    w = Writer(rank)
    rows = 4 // ranks
    x = w.given("x", (rows, 3))
    top = w.call("top", "aten.amax.default", [x, [0]], (3,))
    if ranks > 1:
        top = w.call("all", "_c10d_functional.all_reduce.default", [top, "max", "0"], (3,))
    return msgspec.convert(w.output(top), Graph)


def test_maxima_over_ranks_are_replayed() -> None:
    found = replay.validated(peaks(), [peaks(rank, 2) for rank in range(2)], Relations())
    assert (found.replayed, found.agrees, found.compared) == (True, True, 3), found.message


def test_masks_and_views_of_what_is_turned_are_replayed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Seen(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, keep: Any) -> Any:
            given = torch.zeros(2, 4) + x.transpose(0, 1).reshape(2, 4)
            return torch.where(keep, given, 1.0).to(torch.float32)

    given = torch.ones(4, 2), torch.ones(2, 4, dtype=torch.bool)
    torch.export.save(torch.export.export(Seen(), given), tmp_path / "one.pt2")
    (graph,) = side(tmp_path / "one.pt2")
    found = replay.validated(graph, [graph], Relations())
    assert (found.replayed, found.agrees) == (True, True), found.message
