"""Executing: on record before it counts, never asked twice, and by the texts alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shardproof.cluster import execute as module
from shardproof.cluster.execute import Counts, choose_executor, execute
from shardproof.cluster.local import LocalExecutor
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.ledger import FILE, Ledger, from_batch, read, text_key
from shardproof.solvers import Query, Solved, SolverDisagreement
from tests.cluster.work import Counting, endless, expected, mixed, said

LOCAL = Settings(executor="local", workers=1)


def counting(asked: list[str], settings: Settings = LOCAL) -> LocalExecutor:
    return LocalExecutor(settings, lambda options: Counting(options, asked))


def keys(queries: Sequence[Query]) -> list[str]:
    return [text_key(query) for query in queries]


def test_verdicts_come_under_the_callers_keys(tmp_path: Path) -> None:
    seen: list[Counts] = []
    with Ledger(tmp_path) as ledger:
        done = execute(mixed(12), LOCAL, ledger, progress=seen.append)
    assert {key: solved.verdict for key, solved in done.solved.items()} == expected(12)
    assert done.counts == Counts(12, solved=12)
    assert [counts.done for counts in seen] == list(range(13))
    assert 10 < done.solver_peak_mib <= done.solvers_peak_mib
    on_record = dict(from_batch(read(tmp_path / FILE)))
    assert on_record == {text_key(q): done.solved[q.key] for q in mixed(12)}


def test_equal_texts_are_solved_once(tmp_path: Path) -> None:
    asked: list[str] = []
    queries = mixed(4)
    renamed = [dataclasses.replace(query, key=f"again {query.key}") for query in queries]
    with Ledger(tmp_path) as ledger:
        done = execute([*queries, *renamed, *queries], LOCAL, ledger, executor=counting(asked))
    assert asked == keys(queries)
    assert len(done.solved) == 8
    assert done.counts == Counts(4, solved=4)


def test_one_key_for_two_texts_is_refused(tmp_path: Path) -> None:
    one, two = mixed(2)
    with (
        Ledger(tmp_path) as ledger,
        pytest.raises(ValueError, match="two queries with different texts have the key 'q0'"),
    ):
        execute([one, dataclasses.replace(two, key=one.key)], LOCAL, ledger)


class Stopping(Counting):
    """Dies, as a run does, instead of solving its eighth query."""

    def solve(self, query: Query) -> Solved:
        if len(self.asked) == 7:
            raise KeyboardInterrupt
        return super().solve(query)


@pytest.mark.parametrize("verdict", ["unsat", "timeout", "crashed"])
def test_a_resumed_run_asks_nothing_twice(tmp_path: Path, verdict: str) -> None:
    asked: list[str] = []
    queries = mixed(20)
    stopping = LocalExecutor(LOCAL, lambda options: Stopping(options, asked))
    with Ledger(tmp_path) as ledger:
        ledger.append({text_key(queries[3]): said(verdict)}, LOCAL.options)
        with pytest.raises(KeyboardInterrupt):
            execute(queries, LOCAL, ledger, executor=stopping)
    with Ledger(tmp_path) as ledger:
        done = execute(queries, LOCAL, ledger, executor=counting(asked))
        assert done.counts == Counts(20, solved=12, resumed=8)
        again = execute(queries, LOCAL, ledger, executor=counting(asked))
        assert again.counts == Counts(20, resumed=20)
    assert sorted(asked) == sorted(set(keys(queries)) - {text_key(queries[3])})
    assert again.solved == done.solved
    assert done.solved["q3"].verdict == verdict


def test_other_options_are_solved_anew(tmp_path: Path) -> None:
    asked: list[str] = []
    longer = dataclasses.replace(LOCAL, timeout=60)
    with Ledger(tmp_path) as ledger:
        execute(mixed(3), LOCAL, ledger, executor=counting(asked))
        done = execute(mixed(3), longer, ledger, executor=counting(asked, longer))
    assert done.counts == Counts(3, solved=3)
    assert len(asked) == 6


def test_an_executor_with_other_options_is_refused(tmp_path: Path) -> None:
    other = counting([], dataclasses.replace(LOCAL, seed=7))
    with Ledger(tmp_path) as ledger, pytest.raises(ValueError, match="the executor has Options"):
        execute(mixed(3), LOCAL, ledger, executor=other)


def test_another_run_takes_decisions_from_the_cache(tmp_path: Path) -> None:
    asked: list[str] = []
    cache = VerdictCache(tmp_path / "cache")
    with Ledger(tmp_path / "first") as ledger:
        execute(mixed(6), LOCAL, ledger, cache, executor=counting(asked))
    with Ledger(tmp_path / "second") as ledger:
        done = execute(mixed(8), LOCAL, ledger, cache, executor=counting(asked))
    assert done.counts == Counts(8, solved=2, cached=6)
    assert asked == keys(mixed(8))
    table = read(tmp_path / "second" / FILE)
    assert table.column("cached").to_pylist() == [True] * 6 + [False] * 2


def test_a_damaged_cache_costs_time_only(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "cache")
    with Ledger(tmp_path / "first") as ledger:
        first = execute(mixed(6), LOCAL, ledger, cache)
    for entry in cache.folder.glob("??/*"):
        entry.write_bytes(entry.read_bytes().replace(b"unsat", b"sat").replace(b"sat", b"unsat"))
    with Ledger(tmp_path / "second") as ledger:
        second = execute(mixed(6), LOCAL, ledger, cache)
    assert second.counts == Counts(6, solved=6)
    assert cache.damaged == 4
    assert {key: one.verdict for key, one in second.solved.items()} == {
        key: one.verdict for key, one in first.solved.items()
    }


def test_a_verdict_that_cannot_be_recorded_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Counts] = []
    with Ledger(tmp_path) as ledger:
        monkeypatch.setattr(os, "pwrite", no_space)
        with pytest.raises(OSError, match="No space left"):
            execute(mixed(3), LOCAL, ledger, progress=seen.append, executor=counting([]))
    assert seen[-1].done == 0


def no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


class Disagreeing(Counting):
    def solve(self, query: Query) -> Solved:
        if len(self.asked) == 4:
            raise SolverDisagreement(query.key, "linear", [])
        return super().solve(query)


def test_a_disagreement_is_an_error_after_what_was_there_is_recorded(tmp_path: Path) -> None:
    executor = LocalExecutor(LOCAL, lambda options: Disagreeing(options, []))
    with Ledger(tmp_path) as ledger, pytest.raises(SolverDisagreement):
        execute(mixed(9), LOCAL, ledger, executor=executor)
    assert read(tmp_path / FILE).num_rows == 4


def test_a_timeout_is_a_verdict_like_others(tmp_path: Path) -> None:
    settings = dataclasses.replace(LOCAL, timeout=0.3, mode="z3")
    with Ledger(tmp_path) as ledger:
        done = execute([endless(), *mixed(2)], settings, ledger)
    assert {key: one.verdict for key, one in done.solved.items()} == expected(2) | {
        "endless": "timeout"
    }


@pytest.mark.parametrize(
    ("settings", "queries", "environment", "chosen"),
    [
        (Settings(), 10, "", "LocalExecutor"),
        (Settings(), module.LARGE, "", "LocalExecutor"),
        (Settings(), module.LARGE + 1, "", "RayExecutor"),
        (Settings(), 10, "head:6379", "RayExecutor"),
        (Settings(address="auto"), 10, "", "RayExecutor"),
        (Settings(executor="local"), module.LARGE + 1, "head:6379", "LocalExecutor"),
        (Settings(executor="ray"), 10, "", "RayExecutor"),
    ],
)
def test_auto_goes_by_work_and_cluster(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    queries: int,
    environment: str,
    chosen: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", environment)
    assert type(choose_executor(settings, queries)).__name__ == chosen


def test_nothing_to_solve_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(settings: Settings, queries: int) -> Callable[[], None]:
        raise AssertionError("an executor was chosen")

    monkeypatch.setattr(module, "choose_executor", refuse)
    with Ledger(tmp_path) as ledger:
        assert execute([], LOCAL, ledger).counts == Counts(0)
