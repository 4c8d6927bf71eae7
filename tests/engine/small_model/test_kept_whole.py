"""Axes that are kept whole are named with their reasons, in every form of the report."""

from __future__ import annotations

import json

import pytest

from shardproof.engine.small_model.kept_whole import kept_whole
from shardproof.partition.stages.partition import partition
from shardproof.report.html.collect import collect
from tests.shardproof.faces import tiny


def test_a_dense_model_keeps_its_vocabulary_and_its_mask() -> None:
    found = kept_whole(partition(tiny()).nodes)
    assert found == (
        "10 numbered classes (rows of a table, experts): an index names one, so classes keep their "
        "numbers and every boundary between shards",
        "positions that a causal mask compares: they keep their order, and what is masked does not "
        "enter sums",
        "the constant table complex_product: it is small, and taken as it is",
    )


@pytest.mark.slow
def test_a_mixture_of_experts_keeps_its_choice() -> None:
    from shardproof.frontends.zoo import build

    plan = build("mixtral-8x7b", layers=1, dp=2, tp=1, pp=1, ep=2, microbatches=1)
    found = kept_whole(partition(plan).nodes)
    assert any(line.startswith("a row of 8 of which 2 are chosen: ") for line in found)


def test_a_report_has_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    import shardproof
    from shardproof.engine.plan_files import store

    folder = tmp_path_factory.mktemp("whole")
    store.save(tiny(dp=1, tp=1, microbatches=1), folder / "plan")
    result = shardproof.verify(folder / "plan", out=folder / "run", cache=False)
    assert result.kept_whole
    assert json.loads(result.to_json())["kept_whole"] == list(result.kept_whole)
    assert collect(folder / "run")["kept_whole"] == list(result.kept_whole)
