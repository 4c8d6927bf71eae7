"""The command as a process: what it imports, how it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardproof.engine.plan_files import store
from tests.shardproof.faces import ROOT, tiny

COMMAND = [sys.executable, "-m", "shardproof"]

#: The command line with a pipeline that waits, or tells what has been imported.
STUBBED = """
import json, sys, time
from types import ModuleType
from shardproof.run.result import Result
stub = ModuleType("shardproof.run.pipeline")
def run(plan, **options):
    if "{act}" == "wait":
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    return Result("inconclusive", reason=",".join(sorted({{m.split(".")[0] for m in sys.modules}})))
stub.run = run
sys.modules["shardproof.run.pipeline"] = stub
from shardproof.cli import main
main(sys.argv[1:])
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


HELP = """
import json, sys
from shardproof.cli import main
try:
    main(["--help"])
finally:
    print(json.dumps(sorted({m.split(".")[0] for m in sys.modules})), file=sys.stderr)
"""


def listens() -> None:
    """A child of what runs in the background is born deaf to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:6]) == (0, "Usage:")
    imported = set(json.loads(done.stderr))
    assert {"shardproof", "click"} <= imported
    heavy = {"numpy", "pyarrow", "ray", "z3", "cvc5", "torch", "yaml", "jinja2", "matplotlib"}
    assert not imported & heavy


def test_verify_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    done = subprocess.run(
        [sys.executable, "-c", STUBBED.format(act="tell"), "verify", "plan", "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "")
    imported = set(json.loads(done.stdout)["reason"].split(","))
    assert {"shardproof", "pyarrow"} <= imported
    assert not imported & {"ray", "torch", "z3", "cvc5"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_works(tmp_path: Path, number: signal.Signals) -> None:
    store.save(tiny(), tmp_path / "plan")
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBED.format(act="wait"), "verify", "plan", "--json"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listens,
    )
    assert child.stderr is not None
    assert child.stderr.readline() == "ready\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    (run,) = (tmp_path / "shardproof-runs").iterdir()
    assert err.strip() == f"shardproof: interrupted; go on with: shardproof resume {run}"


def loading(shared_plans: Path, folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A command that reads two large plans, and its readers."""
    plans = sorted((shared_plans / "large").glob("*gbs2048_ly126*"))
    if len(plans) < 2:
        pytest.skip("the large plans are not here")
    child = subprocess.Popen(
        [*COMMAND, "verify", *map(str, plans)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listens,
    )
    readers: list[psutil.Process] = []
    deadline = time.monotonic() + 20
    while len(readers) < 2 and time.monotonic() < deadline:
        readers = psutil.Process(child.pid).children()
        time.sleep(0.05)
    assert len(readers) == 2
    return child, readers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_loads_leaves_nobody_behind(
    shared_plans: Path, tmp_path: Path, number: signal.Signals
) -> None:
    child, readers = loading(shared_plans, tmp_path)
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    assert err.strip() == "shardproof: interrupted"
    assert not any(reader.is_running() for reader in readers)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_it_loads_leaves_nobody_behind(shared_plans: Path, tmp_path: Path) -> None:
    """Nothing of ours runs any more: it is the kernel that ends the readers."""
    child, readers = loading(shared_plans, tmp_path)
    child.kill()
    child.communicate(timeout=20)
    gone, alive = psutil.wait_procs(readers, timeout=5)
    assert (len(gone), alive) == (2, [])


def test_the_reader_of_a_pipe_may_go(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -m shardproof inspect plan | true'],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 141)
    assert done.stderr == ""
