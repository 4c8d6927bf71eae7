"""The Ray executor: the same verdicts as locally, and none lost with a worker.

One local Ray serves the tests of this file, as a cluster that was there before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from cluster.ledger import Ledger
from cluster.local import LocalExecutor
from cluster.ray_executor import ClusterError, RayExecutor, _Work
from cluster.settings import Settings
from solvers import Query, Solved, SolverUnavailable
from tests.cluster.work import endless, expected, mixed, said

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pool() as running:
        running.close_workers()
        yield


def solved_by(executor: RayExecutor | LocalExecutor, queries: list[Query]) -> dict[str, Solved]:
    found: dict[str, Solved] = {}

    def on_solved(key: str, solved: Solved) -> None:
        assert key not in found
        found[key] = solved

    executor.solve(queries, on_solved)
    return found


def verdicts(found: dict[str, Solved]) -> dict[str, str]:
    return {key: solved.verdict for key, solved in found.items()}


def pool(**changes: Any) -> RayExecutor:
    settings: dict[str, Any] = {"executor": "ray", "workers": 2, "memory_limit_bytes": 512 << 20}
    return RayExecutor(Settings(**settings | changes))


@pytest.mark.ray
def test_ray_and_local_give_the_same_verdicts(cluster: None) -> None:
    with LocalExecutor(Settings(workers=1)) as local:
        here = solved_by(local, mixed(30))
    with pool() as executor:
        there = solved_by(executor, mixed(30))
        assert solved_by(executor, []) == {}
        assert 10 < max(executor.peaks.values()) < 500
    assert verdicts(there) == verdicts(here) == expected(30)
    for key, solved in there.items():
        assert (solved.rung, solved.model.keys()) == (here[key].rung, here[key].model.keys())
    answers = [a for found in (here, there) for solved in found.values() for a in solved.answers]
    versions = {(a.solver, a.version) for a in answers}
    assert len(versions) == len({solver for solver, _ in versions})


def processes(sign: str, least_cpu: float = 0.0) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            if sign in " ".join(process.cmdline()) and times.user + times.system >= least_cpu:
                found.append(process)
        except psutil.Error:
            continue
    return found


def when(find: Callable[[], list[psutil.Process]], count: int = 1) -> threading.Thread:
    """Kill, ``count`` times, the first process that is found and was not killed before."""

    def kill() -> None:
        killed: set[int] = set()
        until = time.perf_counter() + 30
        while len(killed) < count and time.perf_counter() < until:
            for process in find()[:1]:
                if process.pid not in killed:
                    killed.add(process.pid)
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def busy_actors() -> list[psutil.Process]:
    """Workers whose solver has been at work for longer than small queries take."""
    actors = {process.pid: process for process in processes("ray::SolverActor")}
    solvers = processes("solvers/worker.py", least_cpu=1.0)
    return [actors[solver.ppid()] for solver in solvers if solver.ppid() in actors]


@pytest.mark.ray
def test_a_killed_solver_loses_nothing(cluster: None) -> None:
    with pool() as executor:
        killer = when(lambda: processes("solvers/worker.py"))
        assert verdicts(solved_by(executor, mixed(40))) == expected(40)
        killer.join()


@pytest.mark.ray
def test_a_killed_worker_loses_nothing(cluster: None) -> None:
    queries = mixed(40)
    queries.insert(20, endless())
    with pool(workers=1, mode="z3", timeout=3) as executor:
        killer = when(busy_actors)
        found = solved_by(executor, queries)
        killer.join()
    assert verdicts(found) == expected(40) | {"endless": "timeout"}


@pytest.mark.ray
def test_a_query_that_ends_two_workers_is_crashed(cluster: None) -> None:
    with pool(workers=1, mode="z3", timeout=20) as executor:
        killer = when(busy_actors, count=2)
        found = solved_by(executor, [*mixed(5), endless()])
        killer.join()
    assert verdicts(found) == expected(5) | {"endless": "crashed"}
    assert found["endless"].reason.startswith("z3: two workers died of it; the last, worker ")
    until = time.perf_counter() + 5
    while processes("solvers/worker.py") and time.perf_counter() < until:
        time.sleep(0.1)
    assert processes("solvers/worker.py") == [], "solvers must end with their worker"


@pytest.mark.ray
def test_a_limit_that_fits_nowhere_is_said_so(cluster: None) -> None:
    with pytest.raises(
        ClusterError, match="no node of the Ray cluster has room for a worker: each"
    ):
        solved_by(pool(mode="z3", memory_limit_bytes=1 << 50), mixed(1))


@pytest.mark.ray
def test_a_solver_that_does_not_start_is_said_so(cluster: None) -> None:
    with (
        pool(mode="z3", workers=1, memory_limit_bytes=40 << 20) as starved,
        pytest.raises(SolverUnavailable, match="z3 did not start under a memory limit of 40"),
    ):
        solved_by(starved, mixed(1))


@pytest.mark.ray
def test_an_error_of_the_caller_ends_the_pool_and_the_next_call_begins_another(
    cluster: None,
) -> None:
    def full(key: str, solved: Solved) -> None:
        raise OSError(28, "No space left on device")

    with pool() as executor:
        with pytest.raises(OSError, match="No space left"):
            executor.solve(mixed(30), full)
        assert verdicts(solved_by(executor, mixed(9))) == expected(9)


JOIN = """
import sys
from pathlib import Path
import ray
from cluster.execute import execute
from cluster.ledger import Ledger
from cluster.settings import Settings
from tests.cluster.work import expected, mixed
address = sys.argv[2] or None
settings = Settings(executor="ray", address=address, workers=1, memory_limit_bytes=512 << 20)
with Ledger(Path(sys.argv[1])) as ledger:
    done = execute(mixed(9), settings, ledger)
assert {key: one.verdict for key, one in done.solved.items()} == expected(9)
assert done.counts.solved == 9 and done.solver_peak_mib > 10
assert not ray.is_initialized()
"""


def joined(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-c", JOIN, str(folder), address],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.ray
def test_another_driver_joins_by_address_and_leaves_the_cluster_running(
    cluster: None, tmp_path: Path
) -> None:
    run = joined(tmp_path, ray.get_runtime_context().gcs_address)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    with pool(workers=1) as executor:
        assert verdicts(solved_by(executor, mixed(3))) == expected(3)
    assert ray.is_initialized()


@pytest.mark.ray
def test_a_ray_of_its_own_is_silent_and_ends_with_the_run(tmp_path: Path) -> None:
    run = joined(tmp_path, "")
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    with Ledger(tmp_path) as ledger:
        assert ledger.dropped_bytes == 0


# The driver's bookkeeping, without a cluster.


def test_nobody_listening_is_said_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(ClusterError, match=r"Ray cannot be used at '127\.0\.0\.1:1': .*refused"):
        RayExecutor(Settings(executor="ray", address="127.0.0.1:1")).__enter__()
    assert time.perf_counter() - start < 5


def test_only_what_a_dead_worker_was_at_work_on_is_suspected() -> None:
    queries = mixed(8)
    work = _Work(queries)
    current, waiting = work.take(3, 1), work.take(3, 1)
    assert work.lost([current, waiting]) == []
    assert [q.key for q in work.take(9, 1)] == ["q6", "q7", "q3", "q4", "q5"]
    assert [q.key for _ in range(4) for q in work.take(9, 1)] == ["q0", "q1", "q2"]
    assert work.left == 8
    poisoned, innocent = queries[0:1], queries[1:2]
    assert work.lost([poisoned, innocent]) == poisoned
    assert work.left == 7
    assert work.take(9, 1) == innocent


def test_what_a_worker_had_no_time_for_comes_first_again() -> None:
    work = _Work(mixed(6))
    batch = work.take(4, 1)
    work.returned(batch, {"q0": said("unsat"), "q1": said("unsat")})
    assert work.left == 4
    assert [q.key for q in work.take(9, 1)] == ["q2", "q3", "q4", "q5"]


def test_batches_are_fair_shares_of_what_is_left() -> None:
    work = _Work(mixed(10))
    assert [len(work.take(256, 4)) for _ in range(6)] == [3, 2, 2, 1, 1, 1]
    assert work.take(256, 4) == []
