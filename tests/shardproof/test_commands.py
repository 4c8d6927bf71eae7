"""The commands beside `verify`, by the command line: plan, inspect, check; version and help."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from shardproof.checker import CheckResult
from shardproof.checker.result import Problem
from shardproof.engine.plan_files import store
from shardproof.frontends.zoo import MODELS
from tests.shardproof.faces import Run, only_document


def test_plan_writes_a_plan(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "plan",
        "llama3-8b",
        "--dp",
        "2",
        "--tp",
        "2",
        "--pp",
        "2",
        "--microbatches",
        "2",
        "--layers",
        "2",
        "--sequence-parallel",
        "-o",
        "plan",
    )
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout == "llama3-8b dp2 tp2 pp2 mb2 sp: 8 ranks, in plan\n"
    assert store.load(tmp_path / "plan").ranks == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["gpt-5"],
            f"no model gpt-5 (did you mean gpt3-175b?); known are {', '.join(MODELS)}, or the path of a .toml",
        ),
        (["llama3-8b", "--dp", "0"], "dp: expected an integer of at least 1, found 0"),
        (["llama3-8b", "--tp", "3"], "llama3-8b: heads 32 is not divisible by tp 3"),
        (["llama3-8b", "--pp", "64"], "llama3-8b: 32 layers cannot fill 64 pipeline stages"),
    ],
)
def test_plan_refuses(run: Run, args: list[str], message: str) -> None:
    outcome = run("plan", *args, "-o", "plan")
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"shardproof: {message}\n"


def test_plan_replaces_only_a_plan(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "thesis.txt").touch()
    outcome = run("plan", "llama3-8b", "--layers", "1", "-o", "plan")
    assert outcome.exit_code == 3
    assert outcome.stderr == (
        f"shardproof: {tmp_path / 'plan'}: exists and holds more than a plan: thesis.txt\n"
    )


def test_inspect(run: Run, plan_dir: Path) -> None:
    outcome = run("inspect", plan_dir)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("plan llama3-8b dp2 tp2 pp1 mb2\n")
    outcome = run("inspect", plan_dir, "--json")
    assert only_document(outcome)["kind"] == "plan"
    for args in (["none"], ["none", "--json"]):
        outcome = run("inspect", *args)
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert outcome.stderr == (
            "shardproof: 'none': expected a readable file, found: No such file or directory\n"
        )


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("proved", "the run holds: proved, and every template was proved again"),
        (
            "refuted",
            "the run holds: refuted, and this check finds no proof either "
            "(rank 0: the loss is not; all with --json)",
        ),
        (
            "inconclusive",
            "the run holds: inconclusive, and no proof where the run itself ends "
            "(rank 0: the loss is not; all with --json)",
        ),
        (
            "inconclusive ",
            "the run holds: inconclusive, though every template was proved again",
        ),
    ],
)
def test_a_run_that_holds_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, says: str
) -> None:
    problems = tuple(Problem("unproved", f"rank {n}: the loss is not") for n in range(9))
    problems = problems if verdict in ("refuted", "inconclusive") else ()
    found = CheckResult(True, verdict.strip(), problems, {}, {}, ("n",))
    monkeypatch.setattr("shardproof.checker.check", lambda run_dir, **options: found)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").touch()
    outcome = run("check", "run")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[-1] == says
    assert all(line.startswith("note: ") for line in lines[:-1])


@pytest.mark.parametrize(("problems", "code"), [((), 0), (("stage 3: not proved",), 1)])
def test_check(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: tuple[str, ...], code: int
) -> None:
    found = CheckResult(not problems, "proved", problems, {}, {"rows": 3})  # type: ignore[arg-type]
    monkeypatch.setattr("shardproof.checker.check", lambda run_dir, **options: found)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").touch()
    outcome = run("check", "run")
    assert (outcome.exit_code, outcome.stderr) == (code, "")
    says = "the run does not hold"
    if not problems:
        says = "the run holds: proved, and every template was proved again"
    note = "the input was not read again: the run does not say where it is"
    assert outcome.stdout.splitlines() == [*problems, f"note: {note}", says]
    outcome = run("check", "run", "--json")
    assert (outcome.exit_code, outcome.stderr) == (code, "")
    assert only_document(outcome) == {
        "ok": not problems,
        "problems": list(problems),
        "notes": [note],
        "counts": {"rows": 3},
        "compared": [],
        "run_dir": str(tmp_path / "run"),
    }


@pytest.mark.parametrize("path", ["none", "."])
def test_check_of_what_is_no_run(run: Run, path: str) -> None:
    outcome = run("check", path, "--json")
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"shardproof: {path}: expected the directory of a run\n"


def test_version_and_help(run: Run) -> None:
    assert run("--version").stdout == f"shardproof {metadata.version('shardproof')}\n"
    for args in (["--help"], ["verify", "-h"], ["plan", "-h"], ["inspect", "-h"], ["check", "-h"]):
        outcome = run(*args)
        assert outcome.exit_code == 0, outcome.output
        assert outcome.stdout.startswith("Usage: ")
    assert run("prove").exit_code == 3
    assert run().exit_code == 3
