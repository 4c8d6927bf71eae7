"""Limits and accidents: every one is the verdict of its own query and of no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.terms import TermTable
from solvers.answers import Query, SolverName, SolverUnavailable
from solvers.child import Child
from solvers.configurations import CONFIGURATIONS, Configuration
from solvers.portfolio import Portfolio
from solvers.smtlib import emit

ROOT = Path(__file__).resolve().parents[2]
SOLVERS: tuple[SolverName, SolverName] = ("z3", "cvc5")


def easy() -> Query:
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    return Query.of("easy", [(x * y + x, x + y * x)])


def endless() -> Query:
    """Twelve coupled cubics, far beyond what either solver does in a second."""
    table = TermTable()
    x = [table.symbol(f"x{i}") for i in range(12)]
    cubics = [
        (x[i] * x[i] * x[(i + 1) % 12] + x[(i + 3) % 12] * x[(i + 5) % 12] * x[(i + 7) % 12], i + 2)
        for i in range(12)
    ]
    hypotheses = [(cubic, table.const(value)) for cubic, value in cubics]
    return Query("endless", emit([(x[0], x[0] + 1)], hypotheses, "nonlinear"), "")


def undecided() -> Query:
    """Open on the linear rung, and endless on the other."""
    x = TermTable().symbol("x")
    return Query("undecided", emit([(x, x + 1)], [], "linear"), endless().linear_text)


def large() -> Query:
    """Eighty thousand products: parsing alone takes more than 100 MiB of address space."""
    table = TermTable()
    x = [table.symbol(f"activation_of_layer_{i}") for i in range(400)]
    total = table.add(*(a * b for a in x for b in x[::2]))
    return Query("large", emit([(total, total + x[0])], [], "nonlinear"), "")


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_text_that_takes_too_long_costs_only_itself(solver: SolverName) -> None:
    with Portfolio(solver, timeout=0.4) as portfolio:
        start = time.perf_counter()
        solved = portfolio.solve_batch([endless(), easy()])
        assert time.perf_counter() - start < 5
    assert solved["endless"].verdict == "timeout"
    assert solved["endless"].reason == f"{solver}: wall clock of 0.4 s reached"
    assert solved["endless"].answers[0].rss_mib > 10
    assert solved["easy"].verdict == "unsat"


def test_a_timeout_shorter_than_a_start_costs_no_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is killed sooner than it takes to start, and none is started for one text alone."""
    started: list[str] = []

    class Counted(Child):
        def __init__(self, configuration: Configuration, *rest: int) -> None:
            started.append(configuration.name)
            super().__init__(configuration, *rest)

    monkeypatch.setattr("solvers.portfolio.Child", Counted)
    with Portfolio(timeout=1e-6) as portfolio:
        for number in range(20):
            solved = portfolio.solve(replace(undecided(), key=str(number)))
            assert solved.verdict in ("timeout", "unknown", "unsat")
    assert sorted(set(started)) == ["cvc5", "z3"]
    assert len(started) <= 4
    started.clear()
    with Portfolio(timeout=3) as portfolio:
        portfolio.solve(undecided())
    assert {"z3 nlsat", "cvc5 coverings"} <= set(started), "with more time all of them are tried"


@pytest.mark.parametrize("solver", SOLVERS)
def test_resource_limits_end_a_text_without_ending_the_child(
    solver: SolverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.portfolio.RESOURCES_PER_SECOND", {"z3": 2000, "cvc5": 200})
    with Portfolio(solver, timeout=30) as portfolio:
        solved = portfolio.solve(endless())
        pid = portfolio._children[solver].pid
        portfolio.solve(easy())
        assert portfolio._children[solver].pid == pid
    assert solved.verdict == "timeout"
    assert "resource limit" in solved.reason


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_text_that_takes_too_much_memory_costs_only_itself(solver: SolverName) -> None:
    with Portfolio(solver, timeout=30, memory_limit_bytes=100 << 20) as portfolio:
        solved = portfolio.solve_batch([easy(), large(), Query("again", easy().linear_text, "")])
    assert [s.verdict for s in solved.values()] == ["unsat", "memory", "unsat"]
    assert solved["large"].reason


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with (set-logic"),
        ("garbage (", "does not begin with (set-logic"),
        ("(set-logic QF_UFLRA)\n(check-sat", "exactly one (check-sat)"),
        ("(set-logic QF_UFLRA)\n(assert (= 1.0 2.0))\n", "exactly one (check-sat)"),
        ("(set-logic QF_UFLRA)\n(assert (= q 1.0))\n(check-sat)\n", "q"),
        (
            "(set-logic QF_UFLRA)\n(declare-fun x () Real)\n(assert (= (* x x) 2.0))\n(check-sat)\n",
            "linear",
        ),
    ],
)
def test_a_text_that_cannot_be_read_is_a_crash_with_its_reason(
    solver: SolverName, text: str, reason: str
) -> None:
    with Portfolio(solver) as portfolio:
        solved = portfolio.solve_batch([Query("bad", text, ""), easy()])
    assert solved["bad"].verdict == "crashed"
    assert reason in solved["bad"].reason
    assert solved["easy"].verdict == "unsat"


def test_a_child_killed_while_idle_is_replaced_unseen() -> None:
    with Portfolio("z3") as portfolio:
        assert portfolio.solve(easy()).verdict == "unsat"
        os.kill(portfolio._children["z3"].pid, signal.SIGKILL)
        time.sleep(0.1)
        assert portfolio.solve(easy()).verdict == "unsat"


@pytest.mark.parametrize(
    ("sign", "verdict"), [(signal.SIGKILL, "memory"), (signal.SIGSEGV, "crashed")]
)
def test_a_child_that_dies_at_work_answers_by_how_it_died(sign: int, verdict: str) -> None:
    child = Child(CONFIGURATIONS[0], 1, 2 << 30)
    child.ask(endless().linear_text, 0, 60.0)
    answer = None
    killed = False
    while answer is None:
        answer = child.receive()
        child.transmit()
        if child.version and not child.wants_write and not killed:
            time.sleep(0.1)
            os.kill(child.pid, sign)
            killed = True
        time.sleep(0.01)
    child.kill()
    assert answer.verdict == verdict
    assert f"signal {int(sign)}" in answer.reason


def test_a_heavy_child_is_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.portfolio.RETIRE_SHARE", 0.001)
    with Portfolio("z3") as portfolio:
        assert portfolio.solve(easy()).verdict == "unsat"
        assert not portfolio._children


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_too_small_to_start_under_is_said_so(solver: SolverName) -> None:
    with (
        Portfolio(solver, memory_limit_bytes=40 << 20) as portfolio,
        pytest.raises(
            SolverUnavailable, match=f"{solver} did not start under a memory limit of 40"
        ),
    ):
        portfolio.solve(easy())


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.perf_counter() + 10
    while not condition() and time.perf_counter() < end:
        time.sleep(0.02)
    return condition()


def test_children_die_with_a_parent_that_is_killed_while_they_work() -> None:
    program = (
        "import sys, threading, time\n"
        "from solvers import Portfolio, Query\n"
        f"query = Query('q', {endless().linear_text!r}, '')\n"
        "p = Portfolio('z3', timeout=60).__enter__()\n"
        "threading.Thread(target=p.solve, args=[query], daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "print(p._children['z3'].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    state = Path(f"/proc/{pid}/stat")
    assert state.exists()
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not state.exists() or ") Z " in state.read_text())


def test_neither_solver_is_imported_here() -> None:
    program = (
        "import sys, solvers\n"
        "with solvers.Portfolio() as p: pass\n"
        "sys.exit(int('z3' in sys.modules or 'cvc5' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
