"""A plan is stored, and what was asked about it, whoever stores it and whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.cluster.settings import Settings
from shardproof.engine.plan_files import store
from shardproof.engine.records.run import PLAN
from shardproof.inputs.assume import Assumptions
from shardproof.run import request
from tests.shardproof.faces import tiny

QUESTION = request.Request(plan="", settings=Settings(), assumptions=Assumptions(), inputs={})


@pytest.mark.parametrize("large", [0, 10_000])
def test_a_plan_is_stored_by_a_fork_as_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(request, "LARGE", large)
    plan = tiny(layers=1)
    with request.storing(tmp_path, QUESTION, plan) as saved:
        assert saved() == saved() == store.digest(plan)
    question, stored = request.read(tmp_path)
    assert question.plan == store.digest(plan)
    assert stored == plan


def test_it_is_there_where_the_work_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "LARGE", 0)
    with pytest.raises(ValueError, match="of ours"), request.storing(tmp_path, QUESTION, tiny()):
        raise ValueError("a fault of ours")
    assert store.load(tmp_path / PLAN) == tiny()
    assert (tmp_path / request.NAME).is_file()
