"""The command line: options, exit codes, one document on stdout, one line for what is wrong."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click
import pytest

import shardproof
from shardproof import api, cli
from shardproof.cluster.settings import ExecutorName, Settings
from shardproof.commands import capture, ci
from shardproof.inputs.assume import Assumptions
from shardproof.run.options import EXECUTORS, SOLVERS
from shardproof.run.result import Conclusion, Result
from shardproof.solvers import Mode
from tests.shardproof.faces import Run, only_document, proved, refuted, stub_pipeline, tiny

# -- verify: verdicts ----------------------------------------------------------------------------

INCONCLUSIVE = Result("inconclusive", reason="no declaration of operator gate_fw")


@pytest.mark.parametrize(("result", "code"), [(proved(), 0), (refuted(), 1), (INCONCLUSIVE, 2)])
def test_a_verdict_is_an_exit_code(
    run: Run, plan_dir: Path, monkeypatch: pytest.MonkeyPatch, result: Result, code: int
) -> None:
    stub_pipeline(monkeypatch, result)
    outcome = run("verify", plan_dir)
    assert (outcome.exit_code, outcome.stderr) == (code, "")
    assert outcome.stdout.startswith(f"{result.verdict}: ")
    outcome = run("verify", plan_dir, "--json")
    assert (outcome.exit_code, outcome.stderr) == (code, "")
    document = only_document(outcome)
    expected = result.to_dict()
    for measured in ("seconds", "peak_rss_mib", "run_dir"):
        assert document.pop(measured)
        del expected[measured]
    assert document == expected


def test_the_whole_run_is_measured_and_kept(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_pipeline(monkeypatch, Result("proved"))
    outcome = run("verify", plan_dir, "--json", "--out", tmp_path / "run")
    document = only_document(outcome)
    assert document["run_dir"] == str(tmp_path / "run")
    assert document["seconds"]["total"] >= stub.calls[0][1]["load_seconds"] > 0
    assert document["peak_rss_mib"] > 20
    assert (tmp_path / "run" / "result.json").read_text() == outcome.stdout


def test_options_reach_the_pipeline(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_pipeline(monkeypatch, proved())
    (tmp_path / "a.toml").write_text("[loss]\ncombine = 'mean'\n")
    outcome = run(
        "verify",
        plan_dir,
        "--out",
        "out",
        "--executor",
        "ray",
        "--address",
        "10.0.0.1:6379",
        "--workers",
        "3",
        "--solver",
        "both",
        "--timeout",
        "2.5",
        "--memory-limit",
        "512MiB",
        "--exhaustive",
        "--no-cache",
        "--seed",
        "7",
        "--assume",
        "a.toml",
    )
    assert outcome.exit_code == 0
    plan, options = stub.calls[0]
    assert plan == replace(tiny(), loss="mean")
    assert options["settings"] == Settings(
        executor="ray",
        address="10.0.0.1:6379",
        workers=3,
        mode="both",
        timeout=2.5,
        memory_limit_bytes=512 << 20,
        seed=7,
    )
    assert options["out"] == tmp_path / "out"
    chosen = options["options"]
    assert (chosen.exhaustive, chosen.cache) == (True, False)
    assert options["assumptions"] == Assumptions(loss="mean")


def test_defaults_reach_the_pipeline(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_pipeline(monkeypatch, proved())
    run("verify", plan_dir)
    shardproof.verify(plan_dir)
    for plan, options in stub.calls:
        assert plan == tiny()
        assert options["settings"] == Settings()
        assert options["out"].parent == tmp_path / "shardproof-runs"
        assert options["options"] == api.Options()
        assert options["assumptions"] == Assumptions()


def test_the_command_line_and_python_have_the_same_options() -> None:
    command = cli.main.commands["verify"]
    # A command keeps the help option that its first context gives it.
    parent = click.Context(cli.main, **cli.main.context_settings)
    given = {**command.make_context("verify", ["plan"], parent=parent).params}
    shown = {
        p.name: given[p.name] for p in command.params if isinstance(p, click.Option) and p.name
    }
    for name in ("as_json", *ci.NAMES, *capture.NAMES):
        del shown[name]
    python = inspect.signature(shardproof.verify).parameters
    keywords = {n: p.default for n, p in python.items() if p.kind is p.KEYWORD_ONLY}
    del keywords["progress"]
    assert keywords.keys() == shown.keys()
    options = api.Options()
    for name, default in keywords.items():
        assert getattr(options, name) == default
        assert shown[name] == default, name
    assert get_args(ExecutorName) == EXECUTORS
    assert get_args(Mode) == SOLVERS


def test_an_expected_gradient_that_is_not_concluded_is_no_proof(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded = Result("proved", conclusions=(Conclusion("gradient", "norm.weight", (0,)),))
    stub_pipeline(monkeypatch, concluded)
    (tmp_path / "a.toml").write_text("[expect]\nparameters = ['norm.weight']\n")
    assert run("verify", plan_dir, "--assume", "a.toml").exit_code == 0
    (tmp_path / "a.toml").write_text("[expect]\nparameters = ['norm.weight', 'output.weight']\n")
    outcome = run("verify", plan_dir, "--assume", "a.toml", "--json")
    assert outcome.exit_code == 2
    assert only_document(outcome)["reason"] == (
        "not among the conclusions, though expected (--assume): the gradient of output.weight"
    )


# -- verify: input -------------------------------------------------------------------------------


def assert_invalid(run: Run, message: str, *args: object) -> None:
    """``shardproof verify ARGS`` is refused with ``message``, with and without ``--json``."""
    outcome = run("verify", *args)
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"shardproof: {message}\n"
    outcome = run("verify", *args, "--json")
    assert (outcome.exit_code, outcome.stderr) == (3, f"shardproof: {message}\n")
    document = only_document(outcome)
    assert (document["verdict"], document["reason"]) == ("invalid input", message)
    assert document["run_dir"] == ""


def test_garbage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"# no pickle")
    assert_invalid(
        run,
        "'a.pkl', byte 0: expected a pickled nnScaler plan, found "
        "\"UnpicklingError: invalid load key, '#'.\"",
        "a.pkl",
        "a.pkl",
    )
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a.pkl"]


def test_missing_files(run: Run) -> None:
    assert_invalid(run, "none: expected a plan folder, found nothing", "none")
    found = "expected a readable file, found: No such file or directory"
    assert_invalid(run, f"'none': {found}", "none", "none")


def test_names_that_could_steer_a_terminal(run: Run) -> None:
    name = "a\x1b[31m\nb"
    outcome = run("verify", name)
    assert outcome.exit_code == 3
    assert outcome.stderr == "shardproof: a\\x1b[31m b: expected a plan folder, found nothing\n"


def test_a_used_run_directory(run: Run, plan_dir: Path) -> None:
    message = (
        f"{plan_dir}: expected a new or empty directory for the run, found one with files in it"
    )
    outcome = run("verify", plan_dir, "--out", plan_dir)
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"shardproof: {message}\n"


def test_a_wrong_file_of_assumptions(run: Run, plan_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[loss]\nmode = 'sum'\n")
    message = "a.toml, loss.mode: not a key here; known are combine"
    assert_invalid(run, message, plan_dir, "--assume", "a.toml")


# -- verify: wrong use, and faults ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument 'SINGLE'."),
        (["a", "b", "c"], "Got unexpected extra argument (c)"),
        (["a", "--solver", "yices"], "Invalid value for '--solver': 'yices' is not one of "),
        (["a", "--workers", "0"], "at least one worker is needed, not 0"),
        (["a", "--timeout", "0"], "the timeout must be a positive number of seconds: 0.0"),
        (["a", "--timeout", "nan"], "the timeout must be a positive number of seconds: nan"),
        (["a", "--timeout", "1e30"], "the timeout must be at most 1000000000 seconds, not 1e+30"),
        (["a", "--out", ""], "Invalid value for '--out': expected a path, found an empty text"),
        ([""], "Invalid value for 'SINGLE': expected a path, found an empty text"),
        (["a", "--memory-limit", "2 apples"], "'2 apples' is not a size: "),
        (["a", "--memory-limit", "1MiB"], "the memory limit of a solver must be from 384 MiB "),
        (["a", "--memory-limit", "99999999999GiB"], "the memory limit of a solver must be from "),
        (["a", "--memory-limit", f"{'9' * 400}G"], "the memory limit of a solver must be from "),
        (["a\udcff"], "Invalid value for 'SINGLE': expected a path in UTF-8, found 'a\\xff'"),
        (["a", "--out", "\udcff"], "Invalid value for '--out': expected a path in UTF-8, found "),
        (["a", "--seed", "-1"], "the seed must be at least 0 and below 2^31, not -1"),
        (
            ["a", "--executor", "local", "--address", "b"],
            "the local executor has no use for the address 'b'",
        ),
    ],
)
def test_a_wrong_use_is_no_verdict(run: Run, args: list[str], message: str) -> None:
    for more in ([], ["--json"]):
        outcome = run("verify", *args, *more)
        assert outcome.exit_code == 3
        assert outcome.stderr.startswith("Usage: ")
        assert f"\n\nError: {message}" in outcome.stderr
        if not more:
            assert outcome.stdout == ""
            continue
        document = only_document(outcome)
        assert document["verdict"] == "invalid input"
        assert document["reason"].startswith(f"usage: {message}")


def test_an_unknown_command_has_a_document_too(run: Run) -> None:
    outcome = run("prove", "--json")
    assert outcome.exit_code == 3
    assert only_document(outcome)["reason"] == "usage: No such command 'prove'."


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--combine", "mean"], "--combine is about two folders of traces (shardproof capture)"),
        (["--junit", "/proc/nothing"], "/proc/nothing: cannot be written: "),
    ],
)
def test_what_is_refused_beside_a_result_has_a_document(
    run: Run, plan_dir: Path, more: list[str], message: str
) -> None:
    for args in ([], ["--json"]):
        outcome = run("verify", plan_dir, *more, *args)
        assert (outcome.exit_code, message in outcome.stderr) == (3, True)
        if args:
            document = only_document(outcome)
            assert document["verdict"] == "invalid input"
            assert document["reason"].startswith(message)
        else:
            assert outcome.stdout == ""


@pytest.mark.parametrize("limit", ["384MiB", "128TiB", 1 << 30])
def test_a_limit_that_can_be(limit: str | int) -> None:
    assert (api.Options(memory_limit=limit).settings().memory_limit_bytes or 0) >= 384 << 20


@pytest.mark.parametrize(
    "command", ["check", "inspect", "report", "status", "resume", "nightly", "sweep", "mutate"]
)
def test_a_path_that_is_no_text_is_a_wrong_use_everywhere(run: Run, command: str) -> None:
    outcome = run(command, "runs\udcff")
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert "expected a path in UTF-8, found 'runs\\xff'" in outcome.stderr


def test_a_path_that_is_no_text_in_python(plan_dir: Path) -> None:
    result = shardproof.verify(plan_dir, out=plan_dir.parent / "\udcff")
    assert (result.verdict, result.run_dir) == ("invalid input", "")
    assert result.reason.endswith("\\xff': expected a path in UTF-8, found another")
    json.loads(result.to_json())


def test_paths_in_other_scripts_are_texts(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_pipeline(monkeypatch, proved())
    outcome = run("verify", plan_dir, "--out", "план-計画", "--json")
    assert outcome.exit_code == 0
    assert only_document(outcome)["run_dir"] == str(tmp_path / "план-計画")


def test_what_the_machine_does_not_give_is_one_line(
    run: Run, plan_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_pipeline(monkeypatch, proved())
    assert run("verify", plan_dir, "--timeout", "1", "--workers", "1").stderr == ""
    outcome = run("verify", plan_dir, "--timeout", "1e-6", "--workers", "1000")
    assert outcome.exit_code == 0
    workers, timeout = outcome.stderr.splitlines()
    assert re.fullmatch(
        r"shardproof: 1000 workers are more than this machine has use for, with \d+ CPUs: \d+ solve",
        workers,
    )
    assert timeout.startswith("shardproof: a timeout of 1e-06 s is shorter than the start of a ")


def test_python_says_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"^executor 'cloud' is none of auto, local, ray$"):
        shardproof.verify("a", executor="cloud")


def test_an_address_without_a_cluster_is_invalid_input(run: Run, plan_dir: Path) -> None:
    """It is the user's, and the run can go on with another one."""
    outcome = run("verify", plan_dir, "--executor", "ray", "--address", "127.0.0.1:1", "--out", "r",
                  "--no-cache", "--json")  # fmt: skip
    assert outcome.exit_code == 3
    assert "Ray cannot be used at '127.0.0.1:1'" in outcome.stderr
    assert only_document(outcome)["verdict"] == "invalid input"
    again = run("resume", "r", "--executor", "local", "--json")
    assert (again.exit_code, only_document(again)["verdict"]) == (0, "proved")


@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_a_fault_of_ours_is_one_line_and_a_file(
    run: Run, plan_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_: list[str]
) -> None:
    stub_pipeline(monkeypatch, RuntimeError("two\nlines"))
    outcome = run("verify", plan_dir, "--out", "run", *json_)
    kept = tmp_path / "run" / "internal-error.txt"
    assert (outcome.exit_code, outcome.stdout) == (4, "")
    assert outcome.stderr == (
        f"shardproof: internal error: RuntimeError: two lines; the traceback is in {kept}\n"
    )
    assert kept.read_text().startswith("Traceback (most recent call last):\n")


def test_a_fault_without_a_run_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardproof.report.inspection.look", lambda path: {"name": ""}["kind"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = run("inspect", "plan")
    (kept,) = tmp_path.glob("shardproof-error-*.txt")
    assert (outcome.exit_code, outcome.stdout) == (4, "")
    assert outcome.stderr == (
        f"shardproof: internal error: KeyError: 'kind'; the traceback is in {kept}\n"
    )


def test_an_interrupt_is_no_verdict(
    run: Run, plan_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_pipeline(monkeypatch, KeyboardInterrupt())
    outcome = run("verify", plan_dir, "--json")
    assert (outcome.exit_code, outcome.stdout) == (130, "")
    (kept,) = (plan_dir.parent / "shardproof-runs").iterdir()
    said = f"shardproof: interrupted; go on with: shardproof resume {kept}"
    assert outcome.stderr.strip() == said


def test_nobody_reads(run: Run, plan_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_pipeline(monkeypatch, BrokenPipeError())
    monkeypatch.setattr(cli, "_forget_stdout", lambda: None)
    outcome = run("verify", plan_dir)
    assert (outcome.exit_code, outcome.output) == (141, "")
