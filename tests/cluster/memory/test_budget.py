"""A budget bounds the process tree: what is planned follows from it, what is not is ended."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest

from shardproof.cluster.memory import budget
from shardproof.cluster.memory.budget import (
    LEAST_CHILD_BYTES,
    OverBudget,
    batch_instances,
    bounded,
    ceiling,
    within,
)
from shardproof.cluster.memory.usage import MemorySampler
from shardproof.cluster.settings import Settings

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize("size", [128 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 64 * GIB])
@pytest.mark.parametrize("mode", ["portfolio", "z3"])
def test_solvers_take_their_share_and_no_more(size: int, mode: str) -> None:
    given = Settings(workers=8, mode=mode)  # type: ignore[arg-type]
    kept = within(given, size)
    assert kept.memory_budget_bytes == size
    assert kept.workers is not None
    assert 1 <= kept.workers <= 8
    assert kept.memory_limit_bytes is not None
    assert LEAST_CHILD_BYTES <= kept.memory_limit_bytes <= given.first_limit_bytes
    children = kept.solvers_per_worker
    assert children == (4 if mode == "portfolio" else 2)
    together = kept.workers * children * kept.memory_limit_bytes
    least = children * LEAST_CHILD_BYTES
    assert together <= max(size // 2, least)


def test_workers_and_limits_grow_with_the_budget() -> None:
    found = [within(Settings(workers=8), size * GIB) for size in (1, 4, 16, 64)]
    assert [one.workers for one in found] == [1, 1, 5, 8]
    assert [(one.memory_limit_bytes or 0) // MIB for one in found] == [384, 512, 409, 1024]


def test_batches_follow_the_budget() -> None:
    assert batch_instances(None) == batch_instances(64 * GIB) == 1 << 14
    assert batch_instances(256 * MIB) == 2048
    assert batch_instances(1) == 256


@pytest.mark.parametrize("size", [1000, 100 * MIB, 256 * MIB, GIB, 8 * GIB])
def test_a_reserve_is_kept(size: int) -> None:
    assert size * 3 // 4 <= ceiling(size) < size


def test_what_is_too_large_is_not_begun() -> None:
    budget.admit(1 << 60)  # There is no budget: nothing is refused.
    size = held() + 512 * MIB
    with bounded(size):
        budget.admit(64 * MIB)
        with pytest.raises(OverBudget, match="1024 MiB more were needed; a memory budget of"):
            budget.admit(GIB)


def held() -> int:
    return int(MemorySampler().sample() * MIB)


def fill(blocks: list[bytes]) -> None:
    for _ in range(1000):
        blocks.append(b"x" * MIB)
        time.sleep(0.01)  # Slower than samples are taken, on a busy machine too.


def test_a_tree_that_grows_is_ended_and_one_that_does_not_is_left_alone() -> None:
    size = held() + 256 * MIB
    with bounded(size) as sampler:
        block = bytearray(16 * MIB)
        time.sleep(0.2)
    assert sampler.peak_mib * MIB < ceiling(size)
    del block
    blocks: list[bytes] = []
    with pytest.raises(OverBudget) as told, bounded(size):
        fill(blocks)
    blocks.clear()
    assert ceiling(size) < told.value.used_mib * MIB <= size
    assert str(told.value) == (
        f"the process tree held {told.value.used_mib:.0f} MiB; a memory budget of "
        f"{size / MIB:.0f} MiB allows {ceiling(size) / MIB:.0f} MiB and a reserve"
    )
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def wait_carelessly() -> None:
    with contextlib.suppress(Exception):
        threading.Event().wait(30)


def test_waiting_is_interrupted_and_errors_do_not_swallow_it() -> None:
    with pytest.raises(OverBudget), bounded(1 * MIB):
        wait_carelessly()


def wait_stubbornly(times: int) -> None:
    for _ in range(times):
        with contextlib.suppress(OverBudget):
            time.sleep(5)
    time.sleep(5)


def test_a_run_that_does_not_end_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "AGAIN_SECONDS", 0.0)
    with pytest.raises(OverBudget), bounded(1 * MIB):
        wait_stubbornly(2)


def test_only_the_main_thread_can_be_bounded() -> None:
    errors: list[str] = []

    def run() -> None:
        try:
            with bounded(GIB):
                pass
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == ["a memory budget needs the main thread of the process"]
