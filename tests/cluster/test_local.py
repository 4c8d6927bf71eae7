"""The local executor: every query gets its verdict, in this process, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardproof.cluster import local
from shardproof.cluster.local import LocalExecutor
from shardproof.cluster.settings import FIRST_LIMIT_BYTES, Options, Settings
from shardproof.solvers import Portfolio, Query, Solved, SolverDisagreement, SolverUnavailable
from tests.cluster.work import Counting, endless, expected, mixed, said

ROOT = Path(__file__).resolve().parents[2]


def solved_by(executor: LocalExecutor, queries: list[Query]) -> dict[str, str]:
    verdicts: dict[str, str] = {}

    def on_solved(key: str, solved: Solved) -> None:
        assert key not in verdicts
        verdicts[key] = solved.verdict

    executor.solve(queries, on_solved)
    return verdicts


@pytest.mark.parametrize("workers", [1, 2])
def test_every_query_is_solved_once(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SMALL", 2)
    with LocalExecutor(Settings(workers=workers)) as executor:
        assert solved_by(executor, mixed(30)) == expected(30)
        assert solved_by(executor, []) == {}
        assert {worker for worker, _ in executor.peaks} == set(range(workers))
        assert all(peak > 10 for peak in executor.peaks.values())


def test_little_work_stays_with_one_worker() -> None:
    opened: list[str] = []

    def portfolio(options: Options) -> Portfolio:
        opened.append(options.mode)
        return Counting(options, [])

    with LocalExecutor(Settings(workers=3), portfolio) as executor:
        solved_by(executor, mixed(local.SMALL - 1))
        assert len(opened) == 1
        solved_by(executor, mixed(local.SMALL))
        assert len(opened) == 3


def child_at_work(executor: LocalExecutor) -> int:
    """The process that has been busy for a tenth of a second."""
    while True:
        for portfolio in list(executor._portfolios):
            for child in list(portfolio._children.values()):
                if child.busy and child.version and time.perf_counter() - child._asked_at > 0.1:
                    return child.pid
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_solver_loses_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SMALL", 2)
    queries = mixed(30)
    queries.insert(12, endless())
    with LocalExecutor(Settings(workers=workers, mode="z3", timeout=0.8)) as executor:
        killer = threading.Thread(target=lambda: os.kill(child_at_work(executor), signal.SIGKILL))
        killer.start()
        verdicts = solved_by(executor, queries)
        killer.join()
    assert verdicts == expected(30) | {"endless": "timeout"}


def test_a_death_that_repeats_is_the_verdict() -> None:
    asked: list[str] = []
    settings = Settings(workers=1)
    with LocalExecutor(settings, lambda options: Counting(options, asked, "crashed")) as executor:
        assert solved_by(executor, mixed(2)) == {"q0": "crashed", "q1": "crashed"}
    assert asked == ["q0", "q0", "q0", "q1", "q1", "q1"]


class Fitting(Counting):
    """Runs out of memory on some keys below so many bytes each."""

    def __init__(self, options: Options, asked: list[str], needs: dict[str, int]) -> None:
        super().__init__(options, asked)
        self.needs = needs
        self.limit = options.memory_limit_bytes or FIRST_LIMIT_BYTES

    def solve(self, query: Query) -> Solved:
        fits = self.needs.get(query.key, 0) <= self.limit
        self.verdict = "unsat" if fits else "memory"
        super().solve(query)
        self.asked[-1] += f" {self.limit >> 30}"
        return said(self.verdict, reason="" if fits else "full")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_does_not_fit_is_tried_alone_with_what_the_machine_has(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SMALL", 2)
    monkeypatch.setattr(local, "machine_bytes", lambda: 20 << 30)
    needs = {"q1": 3 << 30, "q3": 64 << 30}
    asked: list[str] = []
    found: dict[str, Solved] = {}
    settings = Settings(workers=workers, mode="z3")
    with LocalExecutor(settings, lambda options: Fitting(options, asked, needs)) as executor:
        executor.solve(mixed(5), lambda key, solved: found.update({key: solved}))
    assert {key: one.verdict for key, one in found.items()} == {
        "q0": "unsat", "q1": "unsat", "q2": "unsat", "q3": "memory", "q4": "unsat",
    }  # fmt: skip
    assert found["q3"].reason == "z3: full; tried with 2048, 4096, 8192, 10240 MiB, held 20 MiB"
    assert asked[-6:] == ["q1 4", "q3 4", "q3 8", "q3 10", "q3 10", "q3 10"], "last, and alone"


def test_a_limit_of_the_user_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "machine_bytes", lambda: 20 << 30)
    asked: list[str] = []
    found: dict[str, Solved] = {}
    settings = Settings(workers=1, mode="z3", memory_limit_bytes=2 << 30)
    needs = {"q1": 3 << 30}
    with LocalExecutor(settings, lambda options: Fitting(options, asked, needs)) as executor:
        executor.solve(mixed(2), lambda key, solved: found.update({key: solved}))
    assert asked == ["q0 2", "q1 2", "q1 2", "q1 2"]
    assert (found["q0"].verdict, found["q1"].verdict) == ("unsat", "memory")
    assert "tried with 2048 MiB, held 20 MiB" in found["q1"].reason


class Starting(Counting):
    """Fails to start as often as there are ``failures``."""

    def __init__(self, options: Options, failures: list[str]) -> None:
        super().__init__(options, [])
        self.failures = failures

    def solve(self, query: Query) -> Solved:
        if self.failures:
            raise SolverUnavailable(self.failures.pop())
        return super().solve(query)


def test_a_solver_killed_while_it_starts_is_started_again() -> None:
    settings = Settings(workers=1)
    with LocalExecutor(settings, lambda options: Starting(options, ["killed"])) as executor:
        assert solved_by(executor, mixed(2)) == {"q0": "unsat", "q1": "unsat"}
    with (
        LocalExecutor(settings, lambda options: Starting(options, ["missing"] * 3)) as executor,
        pytest.raises(SolverUnavailable, match="missing"),
    ):
        solved_by(executor, mixed(2))


class Disagreeing(Counting):
    """Finds a disagreement in the query ``q7``, while other workers take their time."""

    def solve(self, query: Query) -> Solved:
        if query.key == "q7":
            raise SolverDisagreement(query.key, "linear", [])
        time.sleep(0.05)
        return super().solve(query)

    def close(self) -> None:
        self.asked.append("closed")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disagreement_stops_the_run(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SMALL", 2)
    asked: list[str] = []
    settings = Settings(workers=workers)
    with LocalExecutor(settings, lambda options: Disagreeing(options, asked)) as executor:
        with pytest.raises(SolverDisagreement, match="the solvers disagree on q7"):
            solved_by(executor, mixed(30))
        solved_by(executor, mixed(3))
    until = time.perf_counter() + 5
    while asked.count("closed") < workers and time.perf_counter() < until:
        time.sleep(0.01)
    assert len(set(asked) - {"closed"}) < 12
    assert asked.count("closed") >= workers


def test_an_error_of_the_caller_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SMALL", 2)

    def full(key: str, solved: Solved) -> None:
        raise OSError(28, "No space left on device")

    with (
        LocalExecutor(Settings(workers=2), lambda options: Counting(options, [])) as executor,
        pytest.raises(OSError, match="No space left"),
    ):
        executor.solve(mixed(30), full)


LOCAL = """
import sys
from pathlib import Path
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.execute import execute
from shardproof.cluster.verdicts.ledger import Ledger
from shardproof.cluster.settings import Settings
from tests.cluster.work import mixed
with Ledger(Path(sys.argv[1])) as ledger:
    done = execute(mixed(60), Settings(workers=2), ledger, VerdictCache(Path(sys.argv[1])))
assert done.counts.solved == 60
sys.exit("ray" in sys.modules or "z3" in sys.modules or "cvc5" in sys.modules)
"""


def test_a_local_run_imports_neither_ray_nor_a_solver_and_prints_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    run = subprocess.run(
        [sys.executable, "-c", LOCAL, str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
