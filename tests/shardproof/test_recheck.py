"""What a check compares with, and what a finished run's result is worth by itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof import api
from shardproof.cli import main
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.resume import finished, resume
from shardproof.run.options import Options
from shardproof.run.result import Result
from tests.engine import small_plans


def verified(plan: Plan, folder: Path) -> Result:
    store.save(plan, folder / "plan")
    options = Options(out=folder / "run", executor="local", workers=1, cache=False)
    return api.run(folder / "plan", None, options)


def wrong() -> Plan:
    """Replicas whose gradients are not added up."""
    plan = small_plans.replicas()
    programs = tuple(
        replace(p, calls=tuple(c for c in p.calls if not p.bodies[c.body].reduced))
        for p in plan.programs
    )
    return replace(plan, programs=programs)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("right")
    assert verified(small_plans.replicas(), folder).verdict == "proved"
    return folder


@pytest.fixture(scope="module")
def refuted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refuted")
    assert verified(wrong(), folder).verdict == "refuted"
    return folder


def checked(run: Path, *arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(main, ["check", str(run), *arguments])
    return outcome.exit_code, outcome.stdout


def test_a_check_says_what_it_compared_with(right: Path) -> None:
    code, said = checked(right / "run")
    assert code == 0
    assert f"compared with {right / 'plan'}" in said.splitlines()
    _, said = checked(right / "run", "--json")
    assert json.loads(said)["compared"] == [str(right / "plan")]


def test_an_input_that_is_gone_is_compared_with_nothing(right: Path, tmp_path: Path) -> None:
    shutil.copytree(right / "run", tmp_path / "run")
    asked = json.loads((tmp_path / "run" / "run.json").read_bytes())
    asked["files"] = [str(tmp_path / "nowhere")]
    (tmp_path / "run" / "run.json").write_text(json.dumps(asked))
    code, said = checked(tmp_path / "run", "--json")
    found = json.loads(said)
    assert (code, found["compared"]) == (0, [])
    assert any("is not there any more" in note for note in found["notes"])


def test_an_input_that_is_there_and_refused_fails(right: Path, tmp_path: Path) -> None:
    shutil.copytree(right / "run", tmp_path / "run")
    shutil.copytree(right / "plan", tmp_path / "plan")
    asked = json.loads((tmp_path / "run" / "run.json").read_bytes())
    asked["files"] = [str(tmp_path / "plan")]
    (tmp_path / "run" / "run.json").write_text(json.dumps(asked))
    assert checked(tmp_path / "run")[0] == 0
    (tmp_path / "plan" / "programs.arrow").write_bytes(b"no table")
    code, said = checked(tmp_path / "run")
    assert code == 1
    assert "input: the input is there, and is refused: " in said
    assert said.endswith("the run does not hold\n")


def edited(run: Path, name: str, **changes: object) -> None:
    document = json.loads((run / name).read_bytes())
    (run / name).write_text(json.dumps({**document, **changes}))


@pytest.mark.parametrize("certified", [False, True])
def test_a_result_that_was_edited_is_found_again(
    refuted: Path, tmp_path: Path, certified: bool
) -> None:
    run = tmp_path / "run"
    shutil.copytree(refuted / "run", run)
    assert finished(run) is not None
    edited(run, "result.json", verdict="proved", findings=[], reason="")
    if certified:
        edited(run, "certificate.json", verdict="proved", reasons=[])
    assert finished(run) is None
    assert resume(run).verdict == "refuted"
    assert finished(run) is not None


def test_a_result_that_was_not_edited_is_shown(right: Path) -> None:
    before = (right / "run" / "result.json").read_bytes()
    assert resume(right / "run").verdict == "proved"
    assert (right / "run" / "result.json").read_bytes() == before
