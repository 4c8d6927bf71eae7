"""Calls that a fork server's children make end as those of children that are started do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.untrusted import forks
from shardproof.frontends.untrusted.child import (
    MEMORY_BYTES,
    BoundedCall,
    BoundedCallError,
    Bounds,
    run_bounded,
)
from tests.conftest import ROOT
from tests.frontends.untrusted.telling import told

CALLS = "tests.frontends.calls"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[forks.ForkServer]:
    """A server of this test's own."""
    monkeypatch.setattr(forks, "_SHARED", forks._Shared())
    with forks.forked_readers():
        forks.warm()
        found = forks.running()
        assert found is not None
        yield found


@pytest.fixture
def number(server: forks.ForkServer) -> int:
    return server._process.pid


def test_calls_are_forked_and_bytes_come_back(number: int) -> None:
    assert int(run_bounded(f"{CALLS}:parent", [])) == number
    assert run_bounded(f"{CALLS}:joined", ["a b\n'é", 3]) == "a b\n'é3".encode()
    assert run_bounded(f"{CALLS}:parts", ["one, ", "two"]) == b"one, two"


def test_outside_of_the_context_a_call_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_SHARED", forks._Shared())
    assert int(run_bounded(f"{CALLS}:parent", [])) == os.getpid()


def test_a_call_with_a_tight_bound_is_started(number: int) -> None:
    """The server's forks have what it imported for others."""
    assert int(run_bounded(f"{CALLS}:parent", [], memory_bytes=300 << 20)) == os.getpid()


def test_the_server_imports_our_modules_only_and_once(server: forks.ForkServer) -> None:
    module = "shardproof.frontends.plans.frontend"
    with contextlib.suppress(InvalidInput):
        run_bounded(f"{module}:read_text", ["no such file"])
    modules = run_bounded(f"{CALLS}:loaded_before", []).decode().split("\n")
    assert module in modules
    assert CALLS not in modules


@pytest.mark.usefixtures("server")
def test_bounds_are_those_of_the_call() -> None:
    assert run_bounded(f"{CALLS}:limits", []) == str(MEMORY_BYTES).encode()
    with pytest.raises(InvalidInput, match="needs more than 4096 MiB of memory"):
        run_bounded(f"{CALLS}:zeros", [5 << 30])
    with pytest.raises(InvalidInput, match=r"more than 0\.9 seconds of processor time"):
        run_bounded(f"{CALLS}:spin", [], seconds=0.9)
    with pytest.raises(InvalidInput, match="larger than 1000 bytes"):
        run_bounded(f"{CALLS}:zeros", [1001], result_bytes=1000)


@pytest.mark.usefixtures("server")
def test_errors_come_back() -> None:
    with pytest.raises(UnreadablePlan, match="expected a plan"):
        run_bounded(f"{CALLS}:unreadable", [])
    with pytest.raises(BoundedCallError, match="our own mistake"):
        run_bounded(f"{CALLS}:fault", [])
    for missing in ("tests.frontends.no_module:f", "shardproof.no_module:f"):
        with pytest.raises(BoundedCallError, match="ModuleNotFoundError"):
            run_bounded(missing, [])
    with pytest.raises(InvalidInput, match=r"crashed on it \(SIGSEGV\)"):
        run_bounded(f"{CALLS}:die", [int(signal.SIGSEGV)])


@pytest.mark.usefixtures("server")
def test_the_wall_clock_ends_all_that_was_started(tmp_path: Path) -> None:
    late = tmp_path / "late"
    with pytest.raises(InvalidInput, match="took longer than 1 seconds"):
        run_bounded(f"{CALLS}:sleep_with_a_child", [30, str(late)], seconds=0.25)
    time.sleep(3.2)
    assert not late.exists()


@pytest.mark.usefixtures("server")
def test_calls_do_not_end_each_other(tmp_path: Path) -> None:
    there = tmp_path / "process"
    with BoundedCall(f"{CALLS}:nap", [1, "here"], Bounds()) as other:
        with BoundedCall(f"{CALLS}:tell_and_sleep", [str(there), 60], Bounds()):
            child = told(there)
        assert not child.is_running()
        assert other.result() == b"here"


@pytest.mark.usefixtures("server")
def test_the_working_folder_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_bounded(f"{CALLS}:folder", []).decode() == str(tmp_path.resolve())


def test_no_file_or_process_stays(number: int) -> None:
    run_bounded(f"{CALLS}:zeros", [5])
    ours, its = (len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), number))
    for seconds in (5, 0.05):
        for _ in range(3):
            with contextlib.suppress(InvalidInput):
                run_bounded(f"{CALLS}:zeros", [5], seconds=seconds)
    assert len(os.listdir(f"/proc/{os.getpid()}/fd")) == ours
    assert len(os.listdir(f"/proc/{number}/fd")) == its
    assert psutil.Process(number).children() == []


def test_a_fork_has_no_descriptor_of_others(server: forks.ForkServer) -> None:
    alone = run_bounded(f"{CALLS}:descriptors", [])
    with BoundedCall(f"{CALLS}:nap", [1, "here"], Bounds()):
        assert run_bounded(f"{CALLS}:descriptors", []) == alone


def test_a_server_that_was_killed_is_our_fault_and_started_anew(number: int) -> None:
    with BoundedCall(f"{CALLS}:nap", [30, "never"], Bounds()) as call:
        os.kill(number, signal.SIGKILL)
        with pytest.raises(BoundedCallError):
            call.result()
    assert int(run_bounded(f"{CALLS}:parent", [])) not in (number, os.getpid())


def test_a_call_is_started_where_the_server_ends_meanwhile(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    psutil.Process(number).kill()
    while psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    monkeypatch.setattr(forks.ForkServer, "alive", True)
    assert int(run_bounded(f"{CALLS}:parent", [])) == os.getpid()


def test_the_server_ends_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_SHARED", forks._Shared())
    with forks.forked_readers():
        with forks.forked_readers():
            number = int(run_bounded(f"{CALLS}:parent", []))
        assert int(run_bounded(f"{CALLS}:parent", [])) == number
    assert not psutil.pid_exists(number)


HOLDS = """
import sys
from shardproof.frontends.untrusted.child import run_bounded
from shardproof.frontends.untrusted.forks import forked_readers
with forked_readers():
    run_bounded("tests.frontends.calls:tell_and_sleep", [sys.argv[1], 60])
"""


def test_forks_and_server_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    there = tmp_path / "process"
    parent = subprocess.Popen([sys.executable, "-c", HOLDS, str(there)], cwd=ROOT)
    try:
        child = told(there)
        server = child.parent()
        assert server is not None
        assert server.pid != parent.pid
    finally:
        parent.kill()
        parent.wait()
    for process in (child, server):
        process.wait(5)
