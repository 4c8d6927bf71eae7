"""What Linux gives, and what stands in for it where it is missing, held against each other."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardproof.engine.system import portable
from tests.test_architecture import ROOT, sources

#: What macOS does not have, or does otherwise.
LINUX_ONLY = ("memfd_create", "pidfd_open", "waitid", "sched_getaffinity")


@pytest.fixture(params=["linux", "elsewhere"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """This system, and the same without what others lack."""
    if request.param == "elsewhere":
        for name in LINUX_ONLY:
            monkeypatch.delattr(os, name)
        monkeypatch.setattr(portable, "PROC", tmp_path / "no proc")
        monkeypatch.setattr(portable, "bounds_memory", lambda: False)
    name: str = request.param
    return name


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)


def test_the_end_of_a_child_is_seen_and_it_is_not_reaped(system: str) -> None:
    with sleeper() as child:
        assert not portable.has_ended(child.pid)
        start = time.monotonic()
        assert not portable.ends_within(child.pid, 0.05)
        assert time.monotonic() - start >= 0.05
        assert child.stdin is not None
        child.stdin.close()
        assert portable.ends_within(child.pid, 30)
        assert portable.has_ended(child.pid)
        os.kill(child.pid, 0)  # its number is still its own
    assert portable.has_ended(child.pid)


def test_memory_of_a_process(system: str) -> None:
    held, peak = portable.resident_bytes()
    assert 10 << 20 < held <= peak
    with sleeper() as child:
        time.sleep(0.2)
        there, most = portable.resident_bytes(child.pid)
        assert 1 << 20 < there <= most
        child.kill()
        child.wait()
        with pytest.raises(ProcessLookupError if system == "elsewhere" else FileNotFoundError):
            portable.resident_bytes(child.pid)
    portable.reset_peak()


def test_a_nameless_file_is_a_file(system: str) -> None:
    file = portable.nameless_file("z3-stderr")
    try:
        os.write(file, b"out of memory")
        assert os.pread(file, 100, 0) == b"out of memory"
    finally:
        os.close(file)


def test_one_process_holds_a_lock(system: str, tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert portable.lock(first)
    assert not portable.lock(second)
    os.close(first)
    assert portable.lock(second)
    os.close(second)


def test_processors_and_address_space(system: str) -> None:
    assert 1 <= portable.cpus() <= (os.cpu_count() or 1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    undo = portable.widen_address_space(1 << 40)
    assert (undo is None) == (system == "elsewhere") == (portable.address_space() is None)
    portable.restore_address_space(undo)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


BOUND = """
import os, sys
from shardproof.engine.system import portable
lifeline = int(sys.argv[1])
if sys.argv[2] == "elsewhere":
    def refused(*args): raise OSError("inappropriate ioctl for device")
    portable.fcntl.fcntl = refused
portable.bind_to_parent(lifeline)
print("ready", flush=True)
import time; time.sleep(60)
"""


@pytest.mark.parametrize("where", ["linux", "elsewhere"])
def test_a_child_ends_with_its_parent(where: str) -> None:
    lifeline, ours = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", BOUND, str(lifeline), where],
        stdout=subprocess.PIPE, pass_fds=[lifeline], env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:  # fmt: skip
        os.close(lifeline)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.poll() is None
        os.close(ours)
        assert child.wait(30) != 0


def test_limits_hold() -> None:
    code = (
        "from shardproof.engine.system import portable as p, portable\n"
        "p.limit(memory_bytes=1 << 30, cpu_seconds=9, file_bytes=99, stack_bytes=8 << 20)\n"
        "import resource as r\n"
        "print([r.getrlimit(w)[0] for w in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_CORE)])\n"
        "try: bytearray(2 << 30)\n"
        "except MemoryError: print('bounded')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str([1 << 30, 9, 99, 0]), "bounded"]


def test_only_this_room_knows_the_system() -> None:
    wrong = []
    for module, path in sources(ROOT).items():
        if module.startswith("engine.system"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            match node:
                case ast.Import(names=found):
                    names = [alias.name for alias in found]
                case ast.ImportFrom(module=str(name)):
                    names = [name]
                case ast.Attribute(value=ast.Name(id="os"), attr=str(name)):
                    names = [name] if name in LINUX_ONLY else []
            wrong += [f"{module}: {n}" for n in names if n in ("fcntl", "resource", *LINUX_ONLY)]
    assert wrong == []
