"""`--memory-budget`: a run within it is as ever, one that would exceed it ends by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.plan_files import store
from tests.shardproof.faces import ROOT, tiny


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans") / "plan"
    store.save(tiny(layers=2), folder)
    return folder


def verify(*args: object, cwd: Path = ROOT) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "shardproof", "verify", *map(str, args)]
    done = subprocess.run(
        [*command, "--json", "--no-cache", "--executor", "local"],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_budget_that_suffices_changes_nothing(plan: Path, tmp_path: Path) -> None:
    code, document = verify(plan, "--out", tmp_path / "run", "--memory-budget", "1GiB")
    assert (code, document["verdict"]) == (0, "proved")
    assert 0 < document["peak_rss_mib"] < 1024


@pytest.mark.parametrize("exhaustive", [[], ["--exhaustive"]])
def test_a_budget_too_small_is_inconclusive_with_the_figures(
    plan: Path, tmp_path: Path, exhaustive: list[str]
) -> None:
    code, document = verify(
        plan, "--out", tmp_path / "run", "--memory-budget", "96MiB", *exhaustive
    )
    assert (code, document["verdict"]) == (2, "inconclusive")
    # Stopped while it grows, or before solvers are started for which there is no room.
    assert re.fullmatch(
        r"memory: in phase (load|partition|solve), the process tree held \d+ MiB"
        r"(, 96 MiB more were needed)?; a memory budget of 96 MiB allows 72 MiB and a reserve",
        document["reason"],
    )
    assert 20 < document["peak_rss_mib"] < 96
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == document


def test_a_budget_too_small_to_load_is_kept_as_a_result_too(plan: Path, tmp_path: Path) -> None:
    for out in (["--out", str(tmp_path / "run")], []):
        code, document = verify(plan, "--memory-budget", "8MiB", *out, cwd=tmp_path)
        assert (code, document["verdict"]) == (2, "inconclusive")
        # It may be stopped before it looks at the plan, and while it reads it.
        assert re.match(r"memory: in phase (start|load), the process tree", document["reason"])
        run = Path(document["run_dir"])
        assert run.parent == (tmp_path if out else tmp_path / "shardproof-runs")
        assert json.loads((run / "result.json").read_text()) == document


def test_a_budget_that_loading_exceeds_leaves_a_used_folder_alone(plan: Path) -> None:
    code, document = verify(plan, "--memory-budget", "8MiB", "--out", plan)
    assert (code, document["verdict"]) == (3, "invalid input")
    assert "expected a new or empty directory for the run" in document["reason"]
    assert not (plan / "result.json").exists()


def test_a_budget_that_is_no_size_is_a_wrong_use(plan: Path) -> None:
    command = [sys.executable, "-m", "shardproof", "verify", str(plan)]
    done = subprocess.run(
        [*command, "--memory-budget", "lots"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "'lots' is not a size" in done.stderr
