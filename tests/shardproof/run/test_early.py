"""A plan that contradicts its own records is run at its true size beside the partition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import shardproof
from shardproof.cluster import lower_claims as stating
from shardproof.cluster.settings import Settings
from shardproof.diagnosis.locate.divergences import divergences
from shardproof.diagnosis.search import CHUNK_POSITION, GRADIENT_NAME, ORDER
from shardproof.engine.findings import Finding
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.true_size import outright
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan
from shardproof.partition.stages import partition as stages
from shardproof.partition.stages.partition import partition
from shardproof.run import beside, early, pipeline
from shardproof.run.beside import Beside, BesideOneByOne
from tests.faults.plans import attrs, edit_op, llama, verify

SINGLE = "dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128"
PARALLEL = "dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128"

TOLD = Finding(CHUNK_POSITION, "rank 1 takes positions 4 to 8; the plan records another place")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is said to record its chunks elsewhere."""

    def elsewhere(programs: Sequence[Program], microbatches: int) -> Unrolled:
        unrolled = unroll(programs, microbatches)
        return replace(unrolled, findings=[*unrolled.findings, TOLD])

    monkeypatch.setattr(stages, "unroll", elsewhere)


@pytest.fixture(params=[True, False], ids=["forked", "alone"])
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(beside, "can_fork", lambda: bool(request.param))
    return bool(request.param)


def test_work_is_done_beside_this_process(forks: bool) -> None:
    with Beside(os.getpid) as work:
        assert (work.outcome() != os.getpid()) == forks
    with Beside(lambda: list(range(1 << 18))) as work:
        assert work.outcome() == list(range(1 << 18))
    with Beside(lambda: 1 // 0) as work, pytest.raises(ZeroDivisionError):
        work.outcome()


def test_nobody_waits_for_what_is_left(forks: bool) -> None:
    start = time.monotonic()
    with Beside(lambda: time.sleep(20 if forks else 0)):
        pass
    assert time.monotonic() - start < 10


def wrong(plan: Plan) -> Plan:
    return edit_op(plan, "softmax", attrs(dim=-2))


def right(plan: Plan) -> Plan:
    return plan


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(("edit", "verdict"), [(wrong, "refuted"), (right, "proved")])
def test_such_a_plan_is_decided_by_its_true_size(
    edit: Callable[[Plan], Plan], verdict: str, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "LARGE", 0)
    plan = edit(llama())
    result = verify(plan)
    assert result.verdict == verdict
    if verdict == "refuted":
        state = partition(plan)
        itself = outright(plan, state.derived, state.parallel.unrolled)
        worst = itself.worst
        assert worst is not None
        assert f"{worst.worst.actual:.9g}" in "".join(f.actual for f in result.findings)


@pytest.mark.usefixtures("told")
def test_tables_that_are_written_beside_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = wrong(llama())
    tables = []
    for large in (0, 1 << 30):
        monkeypatch.setattr(early, "LARGE", large)
        folder = tmp_path / str(large)
        verify(plan, out=folder)
        tables.append({p.name: p.read_bytes() for p in folder.glob("*.arrow")})
        assert "lineages.arrow" in tables[-1]
        assert (folder / "certificate.json").exists()
    assert tables[0] == tables[1]


@pytest.mark.usefixtures("told", "forks")
@pytest.mark.parametrize(("edit", "verdict"), [(wrong, "refuted"), (right, "proved")])
def test_what_is_beside_the_verdict_is_found_beside_the_diagnosis(
    edit: Callable[[Plan], Plan], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Finding("metadata", "relu #3 is recorded as [0:4] here, as [4:8] elsewhere")
    plan = replace(edit(llama()), recorded=(noted,))
    findings = []
    for large in (1 << 30, 0):
        monkeypatch.setattr(early, "LARGE", large)
        result = verify(plan)
        assert result.verdict == verdict
        findings.append([(f.kind, f.message, f.group) for f in result.findings])
    assert any(message == noted.message for _, message, _ in findings[0])
    assert findings[0] == findings[1]


def test_claims_stated_in_two_processes_are_the_same(
    tmp_path: Path, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = llama()
    runs = []
    for many in (1 << 30, 0):
        monkeypatch.setattr(pipeline, "MANY", many)
        folder = tmp_path / str(many)
        result = verify(plan, out=folder)
        assert result.verdict == "proved"
        runs.append({p.name: p.read_bytes() for p in folder.glob("*.arrow")})
    names = {"templates.arrow", "stages.arrow", "nodes.arrow"}
    assert names <= runs[0].keys()
    assert all(runs[0][name] == runs[1][name] for name in names)


def test_each_claim_is_stated_by_one_of_two(forks: bool) -> None:
    result = partition(llama())
    alone = stating.texts(result, Settings())
    every = range(len(result.templates))
    # The other one states nothing, the last half, all, and a claim that this one has stated too.
    assert [n for n, _ in stating.from_the_end(result)] == [*reversed(every)]
    texts = dict(stating.from_the_end(result))
    for first in (len(every), len(every) // 2, 0):
        given: list[stating.Texts] = []
        meanwhile = [[(n, texts[n]) for n in reversed(every) if n >= first]]
        other = partial(lambda left: left.pop() if left else [], meanwhile)
        assert stating.texts(result, Settings(), give=given.append, meanwhile=other) == alone
        assert sorted(given) == sorted(alone)
    with BesideOneByOne(lambda: stating.from_the_end(result)) as other_process:
        arrived = other_process.arrived
        assert stating.texts(result, Settings(), meanwhile=arrived) == alone


def test_what_another_process_cannot_state_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "a sum that has no end"
    result = partition(llama())
    before = len(result.templates)
    stating.texts(result, Settings(), meanwhile=lambda: [(before - 1, problem)])
    assert len(result.templates) == before - 1
    assert problem in {stage.problem for stage in result.stages}


def test_what_a_fork_gives_one_by_one_arrives(forks: bool) -> None:
    def made() -> Iterator[tuple[int, str]]:
        for number in range(3):
            yield number, str(number) * (1 << 17)
        raise MemoryError

    arrived: list[tuple[int, str]] = []
    with BesideOneByOne(made) as work:
        until = time.monotonic() + 60
        while forks and len(arrived) < 3 and time.monotonic() < until:
            arrived += work.arrived()
    assert [number for number, _ in arrived] == ([0, 1, 2] if forks else [])
    with BesideOneByOne(lambda: map(time.sleep, [20] if forks else [])) as work:
        start = time.monotonic()
    assert time.monotonic() - start < 10
    assert work.arrived() == []


@pytest.fixture
def files(shared_plans: Path) -> list[Path]:
    """A plan whose ranks cut and join by rank, where its records have another order."""
    return [shared_plans / f"llama3_default_{name}.pkl" for name in (SINGLE, PARALLEL)]


def both(one: stages.Side, other: stages.Side) -> Iterable[tuple[Lineage | None, Lineage | None]]:
    return zip(one.lineages, other.lineages, strict=True)


@pytest.mark.parametrize("groups", ["by rank", "as recorded"])
def test_behind_a_stray_nothing_is_read(groups: str, files: Sequence[Path]) -> None:
    plan = load_plan(*files, Assumptions(groups=groups))
    whole = partition(plan)
    until = partition(plan, begun=lambda single, parallel: True)
    gaps = [x is None and y is not None for x, y in both(until.parallel, whole.parallel)]
    assert until.unread == any(gaps) == (groups == "by rank")
    # What is read is read alike, and faults begin where they did.
    assert all(str(x) == str(y) for x, y in both(until.parallel, whole.parallel) if x is not None)
    assert divergences(until) == divergences(whole)
    assert bool(divergences(whole)) == (groups == "by rank")


@pytest.mark.parametrize("explained", [True, False])
def test_behind_strays_is_read_where_the_records_do_not_explain_them(
    explained: bool, files: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not explained:
        monkeypatch.setattr(pipeline, "_is_explained", lambda decision: False)
    found: list[tuple[object, ...]] = []
    for large in (0, 1 << 30):
        monkeypatch.setattr(early, "LARGE", large)
        result = shardproof.verify(*files, out=tmp_path / str(large))
        first = result.findings[0]
        assert (result.verdict, first.cause) == ("refuted", ORDER)
        failing = [c.message for c in result.conclusions if not c.holds]
        found.append((first.message, first.ranks, first.repair, len(failing)))
        assert any("was not read" in m for m in failing) == (explained and large == 0)
    assert found[0] == found[1]


def test_such_a_plan_is_proved_as_recorded(
    files: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "LARGE", 0)
    proved = shardproof.verify(*files, out=tmp_path / "run", nnscaler_groups="as-recorded")
    assert proved.verdict == "proved"


def test_a_plan_that_keeps_to_its_records_is_not_run_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(early, "LARGE", 0)
    monkeypatch.setattr(early, "Beside", run)  # nothing is begun beside the partition
    monkeypatch.setattr(early.EarlySimulation, "go_on", lambda *_: None)  # what is begun behind it
    named = Finding(GRADIENT_NAME, "a gradient arrives for another value than its name says")
    for recorded in ((), (named,)):
        assert verify(replace(wrong(llama()), recorded=recorded)).verdict == "refuted"
