"""Forms of a plan with its ranks written out are tried before more inputs are: a family whose ranks
hold different values is proved without them, and a wrong one is refuted by them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.random_programs.programs import make
from shardproof import verify
from shardproof.diagnosis import search
from shardproof.diagnosis.repair.trial import Trials
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import worst
from shardproof.partition.stages.partition import Partition
from shardproof.run import early, pipeline

#: A seed whose ranks along tp hold different values: its family has no lineage.
UNLIKE = 6012
#: How many repairs may be tried of its wrong twin.
MOST = 3


def plan_of(mistake: int) -> Plan:
    made = make(UNLIKE, mistake)
    assert made is not None
    return made.plan


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """On how many inputs at most both programs were run, each time that they were."""
    most: list[int | None] = []
    simulated = pipeline.simulated

    def noting(*args: Any, **kwargs: Any) -> Any:
        most.append(kwargs["most"])
        return simulated(*args, **kwargs)

    monkeypatch.setattr(pipeline, "simulated", noting)
    return most


def test_a_family_that_is_proved_written_out_is_run_on_few_inputs(runs: list[int | None]) -> None:
    assert verify(plan_of(-1)).verdict == "proved"
    assert runs == [pipeline.FIRST_DRAWS]


def test_a_large_one_is_not_run(runs: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MOST_RUN_FIRST", 0)
    assert verify(plan_of(-1)).verdict == "proved"
    assert runs == []


@pytest.mark.parametrize(("bound", "most"), [(20_000, pipeline.FIRST_DRAWS), (0, None)])
def test_a_wrong_one_is_refuted(
    bound: int, most: int | None, runs: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MOST_RUN_FIRST", bound)
    plan = plan_of(1)
    assert worst(plan, 1)[0] > 1e-6
    assert verify(plan).verdict == "refuted"
    assert runs == [most]


def test_repairs_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were tried beside a run that showed nothing are not tried again when the plan is
    run on more inputs, and none of a form that is written out to be proved: of a large plan with
    one constant wrong this was half of the time."""
    tried: list[Plan] = []

    class Noted(Trials):
        def trial(self, plan: Plan, *others: Any) -> Partition | None:
            tried.append(plan)
            return super().trial(plan, *others)

    monkeypatch.setattr(search, "Trials", Noted)
    monkeypatch.setattr(search, "MOST_TRIES", MOST)
    monkeypatch.setattr(pipeline, "MOST_RUN_FIRST", 0)
    monkeypatch.setattr(early, "LARGE", 0)
    monkeypatch.setattr(early.EarlySimulation, "simulation", lambda self, result: None)
    assert verify(plan_of(1)).verdict == "refuted"
    assert len(tried) == MOST
