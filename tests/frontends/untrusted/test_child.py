"""The child gives back bytes or an error that says what happened, whatever happens to it."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.read import read_bounded
from shardproof.frontends.untrusted import forks
from shardproof.frontends.untrusted.child import (
    BoundedCall,
    BoundedCallError,
    Bounds,
    _not_handed_over,
    _outcome,
    run_bounded,
)
from tests.conftest import ROOT
from tests.frontends.pickles import frame, named, pickled, small_plan, text
from tests.frontends.untrusted.telling import told

CALLS = "tests.frontends.calls"
OUTLINE = "shardproof.frontends.nnscaler.read:outline"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are started, each by itself."""
    monkeypatch.setattr(forks, "_SHARED", forks._Shared())


def test_arguments_go_there_and_bytes_come_back() -> None:
    assert run_bounded(f"{CALLS}:joined", ["a b\n'é", 3]) == "a b\n'é3".encode()


def test_bytes_may_be_given_in_parts() -> None:
    assert run_bounded(f"{CALLS}:parts", ["one, ", "two"]) == b"one, two"


def test_a_start_loads_little() -> None:
    modules = run_bounded(f"{CALLS}:loaded", []).decode().split("\n")
    heavy = {"numpy", "pyarrow", "z3", "cvc5", "torch", "ray", "click", "rich"}
    assert "tests.frontends.calls" in modules
    assert heavy.isdisjoint(name.split(".")[0] for name in modules)


@pytest.mark.parametrize(
    ("function", "kind", "message", "where"),
    [
        ("unreadable", UnreadablePlan, "expected a plan", "byte 3"),
        ("invalid", InvalidInput, "another model", ""),
    ],
)
def test_errors_about_the_input_come_back(
    function: str, kind: type[InvalidInput], message: str, where: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        run_bounded(f"{CALLS}:{function}", [])
    assert (type(caught.value), caught.value.message, caught.value.where) == (kind, message, where)


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (f"{CALLS}:fault", "our own mistake"),
        (f"{CALLS}:not_bytes", "should return bytes"),
        (f"{CALLS}:nothing", "AttributeError"),
        ("tests.frontends.no_module:f", "ModuleNotFoundError"),
    ],
)
def test_our_own_faults_are_not_blamed_on_the_input(call: str, shown: str) -> None:
    with pytest.raises(BoundedCallError, match=shown):
        run_bounded(call, [])


def test_memory_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="needs more than 256 MiB of memory"):
        run_bounded(f"{CALLS}:zeros", [1 << 29], memory_bytes=256 << 20)


def test_processor_time_is_bounded() -> None:
    with pytest.raises(InvalidInput, match=r"more than 0\.9 seconds of processor time"):
        run_bounded(f"{CALLS}:spin", [], seconds=0.9)


def test_the_wall_clock_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="took longer than 2 seconds"):
        run_bounded(f"{CALLS}:tell_and_sleep", [str(tmp_path / "number"), 600], seconds=0.5)


def test_what_the_child_started_ends_with_it(tmp_path: Path) -> None:
    late = tmp_path / "late"
    with pytest.raises(InvalidInput):
        run_bounded(f"{CALLS}:sleep_with_a_child", [30, str(late)], seconds=0.5)
    time.sleep(3.2)
    assert not late.exists()


def test_the_result_is_bounded() -> None:
    assert run_bounded(f"{CALLS}:zeros", [1000], result_bytes=1000) == bytes(1000)
    with pytest.raises(InvalidInput, match="larger than 1000 bytes"):
        run_bounded(f"{CALLS}:zeros", [1001], result_bytes=1000)
    with pytest.raises(InvalidInput, match="could not be handed over"):
        run_bounded(f"{CALLS}:zeros", [1 << 20], result_bytes=1000)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGSEGV, r"crashed on it \(SIGSEGV\)"),
        (signal.SIGABRT, r"crashed on it \(SIGABRT\)"),
        (signal.SIGKILL, "needs more than"),
        (signal.SIGXCPU, "seconds of processor time"),
    ],
)
def test_deaths_are_explained(number: signal.Signals, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_bounded(f"{CALLS}:die", [int(number)])


def test_limits_are_set_before_the_function_runs() -> None:
    assert run_bounded(f"{CALLS}:limits", [], memory_bytes=300 << 20) == b"314572800"


def test_no_file_or_process_stays() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for seconds in (5, 0.05):
        for _ in range(3):
            with contextlib.suppress(InvalidInput):
                run_bounded(f"{CALLS}:zeros", [5], seconds=seconds)
    assert len(os.listdir("/proc/self/fd")) == before


def test_modules_of_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "struct", "frontends", "resource"):
        (tmp_path / f"{name}.py").write_text("open('trace', 'w')")
    monkeypatch.chdir(tmp_path)
    assert run_bounded(f"{CALLS}:joined", ["x", 1]) == b"x1"
    assert not (tmp_path / "trace").exists()


# -- the life of the child -----------------------------------------------------------------------

HOLDS = """
import sys
from shardproof.frontends.untrusted.child import BoundedCall, Bounds
with BoundedCall("tests.frontends.calls:tell_and_sleep", [sys.argv[1], 60], Bounds()) as call:
    call.result()
"""


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    there = tmp_path / "process"
    parent = subprocess.Popen([sys.executable, "-c", HOLDS, str(there)], cwd=ROOT)
    try:
        child = told(there)
        assert child.is_running()
    finally:
        parent.kill()
        parent.wait()
    child.wait(5)


def test_a_call_that_nobody_waits_for_ends_with_its_block(tmp_path: Path) -> None:
    there = tmp_path / "process"
    with BoundedCall(f"{CALLS}:tell_and_sleep", [str(there), 60], Bounds()):
        child = told(there)
    assert not child.is_running()


def test_calls_do_not_end_each_other() -> None:
    """One ends with its block; the other's result is its own."""
    with BoundedCall(f"{CALLS}:nap", [1, "here"], Bounds()) as other:
        with BoundedCall(f"{CALLS}:spin", [], Bounds()):
            pass
        assert other.result() == b"here"


def test_the_clock_runs_from_the_start_also_where_nobody_waits_yet() -> None:
    with BoundedCall(f"{CALLS}:nap", [0, "early"], Bounds(seconds=5)) as done:
        time.sleep(1)
        assert done.result() == b"early"


def test_a_full_disk_is_no_fault_of_the_input() -> None:
    """The child has no room for what it read: the parent raises what the system said."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as caught:
        _outcome(io.BytesIO(json.dumps(_not_handed_over(full)).encode() + b"\n"), 100)
    assert caught.value.errno == errno.ENOSPC
    large = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with pytest.raises(InvalidInput, match="could not be handed over: File too large"):
        _outcome(io.BytesIO(json.dumps(_not_handed_over(large)).encode() + b"\n"), 100)


# -- hostile plans that need the child ---------------------------------------------------------


def hostile(tmp_path: Path, opcodes: bytes) -> str:
    root = named("nnscaler.codegen.module.module", "ModuleCodeGen")
    path = tmp_path / "plan.pkl"
    path.write_bytes(frame(root + b")\x81}" + text("comm_groups") + opcodes + b"sb."))
    with pytest.raises(InvalidInput) as caught:
        read_bounded(str(path), OUTLINE, memory_bytes=256 << 20, seconds=20)
    shown = str(caught.value)
    assert str(path) in shown
    assert "\n" not in shown
    return shown


def test_a_good_plan_is_outlined(tmp_path: Path) -> None:
    path = tmp_path / "plan.pkl"
    path.write_bytes(pickled(small_plan()["root"]))
    assert b'"ForwardOp": 1' in read_bounded(str(path), OUTLINE)


def test_an_index_of_the_memo_of_gigabytes(tmp_path: Path) -> None:
    shown = hostile(tmp_path, b"]r" + struct.pack("<I", 1 << 30))
    assert "memory" in shown


def test_a_key_nested_too_deep_to_hash(tmp_path: Path) -> None:
    hostile(tmp_path, b"}" + b")" + b"\x85" * 1_000_000 + b"Ns")


def test_containers_that_multiply(tmp_path: Path) -> None:
    # Each round builds a set of a list of 100,000: five bytes of file for megabytes of memory.
    numbers = b"](" + b"".join(b"M" + struct.pack("<H", n) for n in range(60_000)) + b"eq\x000"
    many = (named("builtins", "frozenset") + b"h\x00\x85R") * 1000
    assert "memory" in hostile(tmp_path, b"(" + numbers + many + b"l")


@pytest.mark.parametrize("depth", [7, 30])
def test_tuples_that_spell_a_tree_of_any_size(tmp_path: Path, depth: int) -> None:
    parts = small_plan()
    parts["op"].state["_kwargs"] = {"size": "laughs"}
    # Ten references to ten references to ...: a byte of file for each, ten times the items.
    laughs = b"(" * depth + text("ha") + (b"2" * 9 + b"t") * depth
    data = pickled(parts["root"])[11:].replace(text("laughs"), laughs)
    path = tmp_path / "plan.pkl"
    path.write_bytes(b"\x80\x04" + data)
    with pytest.raises(UnreadablePlan, match="at most 16384 items nested 8 deep"):
        read_bounded(str(path), OUTLINE, memory_bytes=256 << 20, seconds=20)
