"""A run that was killed goes on and ends as it would have; others can see where it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof import api, checker
from shardproof.cluster.verdicts.ledger import FILE, Ledger, read
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.frontends import zoo
from shardproof.partition.stages import worded
from shardproof.resume import resume
from shardproof.run import certificate, request, status
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.solvers import Query
from tests.engine import small_plans

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plan_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans") / "plan"
    store.save(small_plans.replicas(), folder)
    return folder


def verified(plan_dir: Path, out: Path, **options: Any) -> Result:
    chosen = {"executor": "local", "workers": 1, "cache": False} | options
    return api.run(plan_dir, None, api.Options(out=out, **chosen))


@pytest.fixture(scope="module")
def whole(plan_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupts."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert verified(plan_dir, out).verdict == "proved"
    return out


def keys(out: Path) -> list[str]:
    found: list[str] = read(out / FILE).column("key").to_pylist()
    return found


def dies_at(call: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The same function, but the process is interrupted instead of one of its calls."""
    count = 0

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            raise KeyboardInterrupt
        return call(*args, **kwargs)

    return stand_in


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (worded, "partition", 1),
        (Ledger, "append", 2),
        (Ledger, "append", 9),
        (certificate, "write_run", 1),
        (api, "_held_to", 1),
    ],
)
def test_a_run_interrupted_anywhere_ends_with_the_same_certificate(
    plan_dir: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    number: int,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies_at(getattr(owner, name), number))
        with pytest.raises(KeyboardInterrupt):
            verified(plan_dir, out)
    if name != "_held_to":
        assert status.look(out)["state"] in ("running", "stopped")
    before = keys(out) if (out / FILE).exists() else []
    result = resume(out)
    assert (result.verdict, result.run_dir) == ("proved", str(out))
    assert keys(out)[: len(before)] == before
    assert sorted(keys(out)) == sorted(keys(whole)), "none lost, none twice"
    for file in ("certificate.json", "stages.arrow", "templates.arrow", "conclusions.arrow"):
        assert (out / file).read_bytes() == (whole / file).read_bytes()
    assert checker.check(out).ok


def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    out, plan_dir, whole = (tmp_path / name for name in ("run", "plan", "whole"))
    store.save(zoo.build("llama3-8b", tp=2, layers=1), plan_dir)
    assert verified(plan_dir, whole).verdict == "proved"
    command = [sys.executable, "-m", "shardproof"]
    run = subprocess.Popen(
        [*command, "verify", str(plan_dir), "--out", str(out), "--no-cache", "--executor", "local"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while run.poll() is None and not ((out / FILE).exists() and len(keys(out)) >= 10):
        time.sleep(0.005)
    seen = status.look(out)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    assert (seen["state"], seen["result"]) == ("running", "")
    assert seen["verdicts"].keys() == {"unsat"}
    assert status.look(out)["state"] == "stopped"
    shown = subprocess.run(
        [*command, "status", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 2
    assert shown.stdout.startswith("stopped; go on with shardproof resume\nphase ")
    again = subprocess.run(
        [*command, "resume", str(out), "--json"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (again.returncode, json.loads(again.stdout)["verdict"]) == (0, "proved")
    assert sorted(keys(out)) == sorted(keys(whole))
    assert (out / "certificate.json").read_bytes() == (whole / "certificate.json").read_bytes()
    finished = status.look(out)
    assert (finished["state"], finished["result"]) == ("finished", "proved")
    assert finished["verdicts"] == {"unsat": len(keys(whole))}


def test_what_came_from_the_cache_counts_as_cached_again(
    plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"cache": True, "cache_dir": tmp_path / "cache"}
    first = verified(plan_dir, tmp_path / "first", **cache)
    assert first.counts.cached == 0
    second = verified(plan_dir, tmp_path / "second", **cache)
    assert second.counts.cached == second.counts.templates
    with monkeypatch.context() as patch:
        patch.setattr(certificate, "write_run", dies_at(certificate.write_run, 1))
        with pytest.raises(KeyboardInterrupt):
            verified(plan_dir, tmp_path / "third", **cache)
    assert resume(tmp_path / "third").counts == second.counts
    one, other = (tmp_path / name / "certificate.json" for name in ("second", "third"))
    assert one.read_bytes() == other.read_bytes()


def test_a_finished_run_is_only_shown(whole: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    assert resume(whole).verdict == "proved"
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir()} == before


def stopped(whole: Path, tmp_path: Path) -> Path:
    """A run without its end."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "certificate.json").unlink()
    (out / "result.json").unlink()
    return out


def test_two_drivers_on_one_run_are_refused(whole: Path, tmp_path: Path) -> None:
    out = stopped(whole, tmp_path)
    before = {path.name for path in out.iterdir()}
    with Ledger(out):
        with pytest.raises(InvalidInput, match=f"is being written by process {os.getpid()} on "):
            resume(out)
        # One that comes later than this look is refused too, and leaves the other's run alone.
        question, plan = request.read(out)
        progress = Progress()
        late = api.measured(
            question.settings,
            progress,
            lambda: api.prove(plan, out, question, question.settings, progress, 0.0),
            lambda: out,
        )
    assert (late.verdict, late.run_dir) == ("invalid input", "")
    assert "a ledger has one writer" in late.reason
    assert {path.name for path in out.iterdir()} == before
    assert resume(out).verdict == "proved"


def test_what_cannot_go_on_is_said(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected the directory of a run that can go on"):
        resume(tmp_path)
    out = stopped(whole, tmp_path)
    text = (out / request.NAME).read_text()
    for damage, message in [
        (text[:-20], "expected what a run was asked"),
        (text.replace('"mode": "portfolio"', '"mode": "best"'), "Invalid enum value 'best'"),
        (text.replace('"format": 2', '"format": 3'), "expected format 2, found 3"),
        (
            text.replace('"cache": false', '"cache": "no"'),
            "option cache: expected bool, found 'no'",
        ),
        (text.replace('"cache": false', '"crash": false'), "unknown option 'crash'"),
        (text.replace('"plan": "', '"plan": "0'), "expected the plan that run.json names"),
    ]:
        (out / request.NAME).write_text(damage)
        with pytest.raises(InvalidInput, match=message):
            resume(out)
    (out / request.NAME).write_text(text)
    with pytest.raises(InvalidInput, match="the local executor has no use for the address"):
        resume(out, address="10.0.0.1:6379")
    with pytest.raises(InvalidInput, match="expected the directory of a run"):
        status.look(tmp_path / "nothing")


def test_a_poisoned_template_ends_inconclusive_with_its_text_saved(
    plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that no solver survives: the run comes to its end all the same."""
    emit = Query.of
    hurt: list[Query] = []

    def poisoned(key: str, goals: Any, hypotheses: Any = ()) -> Query:
        query = emit(key, goals, hypotheses)
        if not hurt or query.linear_text == hurt[0].linear_text:
            hurt.append(query)
            return Query(key, "(set-logic QF_UFLRA)\n(assert\n(check-sat)\n", "")
        return query

    monkeypatch.setattr(Query, "of", poisoned)
    result = verified(plan_dir, tmp_path / "run", timeout=5)
    assert result.verdict == "inconclusive"
    assert "is not proved (crashed: " in result.reason
    (saved,) = (tmp_path / "run" / "poisoned").iterdir()
    assert saved.read_text() == "(set-logic QF_UFLRA)\n(assert\n(check-sat)\n"
    table = read(tmp_path / "run" / FILE)
    verdicts = table.column("verdict").to_pylist()
    assert verdicts.count("crashed") == 1
    assert verdicts.count("unsat") == len(verdicts) - 1 > 5
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    (crash,) = [e for e in map(json.loads, events) if e["event"] == "crashed"]
    assert crash["templates"][0].startswith(saved.name.removesuffix("-linear.smt2"))
