"""The command as a process: how fast it starts, what it imports, how it is interrupted."""

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

from engine import store
from tests.shardproof.faces import ROOT, tiny

COMMAND = [sys.executable, "-m", "shardproof"]

#: The command line with a pipeline that waits, or tells what has been imported.
STUBBED = """
import json, sys, time
from types import ModuleType
from shardproof.result import Result
stub = ModuleType("shardproof.pipeline")
def run(plan, **options):
    if "{act}" == "wait":
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    return Result("inconclusive", reason=",".join(sorted({{m.split(".")[0] for m in sys.modules}})))
stub.run = run
sys.modules["shardproof.pipeline"] = stub
from shardproof.cli import main
main(sys.argv[1:])
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def test_help_comes_at_once() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True, env=environment())
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


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
    assert {"shardproof", "engine", "pyarrow"} <= imported
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
    )
    assert child.stderr is not None
    assert child.stderr.readline() == "ready\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    assert err.strip() == "shardproof: interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_loads_leaves_nobody_behind(
    shared_plans: Path, tmp_path: Path, number: signal.Signals
) -> None:
    plans = sorted((shared_plans / "large").glob("*gbs2048_ly126*"))
    if len(plans) < 2:
        pytest.skip("the large plans are not here")
    child = subprocess.Popen(
        [*COMMAND, "verify", *map(str, plans)],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    readers: list[psutil.Process] = []
    deadline = time.monotonic() + 20
    while len(readers) < 2 and time.monotonic() < deadline:
        readers = psutil.Process(child.pid).children()
        time.sleep(0.05)
    assert len(readers) == 2
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    assert err.strip() == "shardproof: interrupted"
    assert not any(reader.is_running() for reader in readers)
    assert list(tmp_path.iterdir()) == []


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
