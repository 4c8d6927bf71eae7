"""The sampler sees what this process and its descendants hold, and costs little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from shardproof.cluster.memory import usage as memory
from shardproof.cluster.memory.usage import MemorySampler, borrows, family, memory_bytes

HOLD = "import sys; held = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
NEST = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


def holder(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("program", [HOLD, NEST])
def test_children_and_their_children_count(program: str) -> None:
    with MemorySampler() as sampler:
        before = sampler.sample()
        with holder(program):
            deadline = time.perf_counter() + 5
            while sampler.peak_mib < before + 60 and time.perf_counter() < deadline:
                time.sleep(0.02)
            held = sampler.sample()
        after = sampler.sample()
    # What this process has in memory may shrink meanwhile, by less than a few megabytes.
    assert held >= before + 60
    assert after < held - 32
    assert sampler.peak_mib >= held


def without_task_lists(path: Path) -> list[Path]:
    raise FileNotFoundError(path)


def test_without_the_kernels_lists_it_goes_by_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(NEST) as process:
        pids = set(family(os.getpid()))
        assert {os.getpid(), process.pid} < pids
        monkeypatch.setattr(Path, "iterdir", without_task_lists)
        assert pids - set(family(os.getpid())) == set()


def test_without_proportional_sizes_it_goes_by_resident_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "open", no_rollup, raising=False)
    resident = psutil.Process().memory_info().rss
    assert memory_bytes(os.getpid()) == pytest.approx(resident, rel=0.1)


def no_rollup(*_: object) -> None:
    raise PermissionError


def test_a_process_that_is_gone_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_bytes(process.pid) == 0
    assert list(family(process.pid)) == [process.pid]


def test_sampling_takes_little_time() -> None:
    with MemorySampler():
        start = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - start < 0.1


class Counted:
    """How often sizes are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.known = 0
        monkeypatch.setattr(memory, "family", lambda root: iter([root]))
        monkeypatch.setattr(memory, "memory_bytes", self.proportional)
        monkeypatch.setattr(memory, "resident_bytes", self.resident)

    def proportional(self, _pid: int) -> int:
        self.read += 1
        return 60 << 20

    def resident(self, _pid: int) -> int:
        self.known += 1
        # Once, while it is looked at, there is more than was seen before.
        return (80 if self.known == 5 else 50) << 20


def looked(counted: Counted, sampler: MemorySampler) -> None:
    with sampler:
        deadline = time.perf_counter() + 5
        while counted.known + counted.read < 20 and time.perf_counter() < deadline:
            time.sleep(0.01)


def test_proportional_sizes_are_read_where_resident_ones_are_more_than_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    looked(counted, MemorySampler(every_seconds=0.002))
    assert counted.known >= 17
    # When it opens, when there was more, and when it closes.
    assert counted.read == 3


def test_who_watches_is_told_proportional_sizes_at_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, seen = Counted(monkeypatch), list[float]()
    looked(counted, MemorySampler(watch=seen.append, every_seconds=0.002))
    assert counted.known == 0
    assert set(seen) == {60.0}
    assert counted.read == len(seen) + 2


def test_resident_sizes_are_no_less_than_proportional_ones() -> None:
    assert memory.resident_bytes(os.getpid()) >= 0.99 * memory_bytes(os.getpid())


def test_a_child_that_has_no_program_yet_is_not_counted_twice() -> None:
    held = bytearray(b"x" * (96 << 20))
    with MemorySampler() as sampler:
        before = sampler.sample()
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                sampler.sample()

        looking = threading.Thread(target=look)
        looking.start()
        for _ in range(30):
            subprocess.run(["/bin/true"], check=True)
        ended.set()
        looking.join()
    assert len(held) == 96 << 20
    assert sampler.peak_mib < before + 64


def test_a_fork_has_memory_of_its_own() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        assert not borrows(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not borrows(os.getpid())
