"""The far end of the Ray executor, here without Ray: what it does of a batch, and its log."""

from __future__ import annotations

import json

import pytest

from shardproof.cluster.on_ray.assignments import texts_of
from shardproof.cluster.on_ray.worker import SolverActor
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.ledger import from_batch
from tests.cluster.work import expected, mixed

OPTIONS = Settings(mode="z3").options


def test_a_worker_says_what_it_does_by_run_and_template(
    capfd: pytest.CaptureFixture[str],
) -> None:
    worker = SolverActor(OPTIONS, 512 << 20, last=True, run="night", number=7)
    returned = worker.solve(texts_of(mixed(4)), (1, 3), 60.0)
    found = {key: solved.verdict for key, solved in from_batch(returned.rows)}
    assert found == {key: expected(4)[key] for key in ("q1", "q3")}
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {(one["run"], one["worker"]) for one in lines} == {("night", 7)}
    assert [one["event"] for one in lines] == ["worker began", "batch", "query", "batch done"]
    assert lines[1]["templates"] == ["q1", "q3"]
    assert (lines[2]["templates"], lines[2]["verdict"]) == (["q3"], "sat")
    assert lines[3]["solved"] == 2


def test_a_batch_ends_when_its_time_is_over() -> None:
    worker = SolverActor(OPTIONS, 512 << 20, last=True)
    returned = worker.solve(texts_of(mixed(4)), (0, 1, 2, 3), 0.0)
    assert [key for key, _ in from_batch(returned.rows)] == ["q0"], "at least one, and no other"
