"""Without Ray everything runs here, and what needs a cluster says what to type; without matplotlib
a sweep has no plots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardproof.campaigns.sweep import page, plots
from shardproof.campaigns.sweep.run import Swept
from shardproof.campaigns.sweep.spec import Sweep
from shardproof.cluster import execute
from shardproof.cluster.local import LocalExecutor
from shardproof.cluster.settings import Settings
from shardproof.engine.plan_files import store
from tests.shardproof.faces import ROOT, tiny

#: The command line where Ray is not installed.
WITHOUT = """
import sys
from shardproof.engine.system import extras
find = extras.find_spec
extras.find_spec = lambda name: None if name == "ray" else find(name)
from shardproof.cli import main
main(sys.argv[1:])
"""

LINE = "a Ray cluster needs ray, which is not installed: pip install 'shardproof[ray]'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("without")
    store.save(tiny(), made / "plan")
    return made


def command(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *args], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_auto_is_this_machine(folder: Path) -> None:
    args = ("verify", "plan", "--out", "run", "--no-cache", "--json")
    done = command(folder, *args, RAY_ADDRESS="10.0.0.1:6379")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "proved"
    done = command(folder, "check", "run", "--executor", "ray")
    assert (done.returncode, done.stderr) == (3, f"shardproof: {LINE}\n")


@pytest.mark.parametrize(
    "where", [("--executor", "ray"), ("--address", "10.0.0.1:6379")], ids=lambda args: args[0]
)
def test_a_cluster_that_is_asked_for_is_refused_with_the_line_to_type(
    folder: Path, where: tuple[str, ...]
) -> None:
    done = command(folder, "verify", "plan", *where, "--json")
    assert (done.returncode, done.stderr) == (3, f"shardproof: {LINE}\n")
    document = json.loads(done.stdout)
    assert (document["verdict"], document["reason"]) == ("invalid input", LINE)


def test_a_job_is_refused_with_the_line_to_type(folder: Path) -> None:
    done = command(folder, "submit", "--installed", "--", "verify", "plan")
    assert (done.returncode, done.stderr) == (3, f"shardproof: {LINE}\n")


def test_much_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "has", lambda package: False)
    chosen = execute.choose_executor(Settings(), 10 * execute.LARGE)
    assert isinstance(chosen, LocalExecutor)


def test_a_page_without_plots_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept((Sweep("s", (), (), 1, {}, {}),), ((),), ((),), tmp_path)
    assert "No plots" not in page.write(swept).read_text()
    monkeypatch.setattr(plots, "has", lambda package: False)
    assert plots.draw([plots.Panel("point", [1], [{}])], tmp_path, "s") == {}
    text = page.write(swept).read_text()
    assert "No plots: matplotlib is not installed" in text
    assert "pip install &#39;shardproof[plots]&#39;" in text


def test_what_was_recorded_is_decided_without_torch() -> None:
    """It takes a second to import, and hundreds of MiB."""
    code = "import sys; sys.modules['torch'] = None; import shardproof.recorded"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
