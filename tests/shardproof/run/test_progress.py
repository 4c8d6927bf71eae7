"""Progress: sparse lines where nobody can rewrite one, one line on a terminal."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from io import StringIO

import pytest

from shardproof.run import progress
from shardproof.run.progress import EVERY_SECONDS, FIRST_SECONDS, Sparse, on_stderr, waiting


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("shardproof.run.progress.time.monotonic", lambda: self.now)


def test_a_short_run_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), StringIO()
    shown = Sparse(stream)
    clock.now += FIRST_SECONDS - 0.1
    shown.phase("load")
    shown.update(3, 4)
    assert stream.getvalue() == ""


def test_a_long_run_says_where_it_is_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), StringIO()
    shown = Sparse(stream)
    shown.memory = lambda: 210.4
    clock.now += FIRST_SECONDS
    shown.phase("partition")
    for done in range(100):
        clock.now += EVERY_SECONDS / 50
        shown.update(done, 100, "300 of 1200 obligations")
    assert stream.getvalue().splitlines() == [
        "shardproof: partition, 210 MiB, 3 s",
        "shardproof: partition, 49 of 100, 300 of 1200 obligations, 210 MiB, 13 s",
        "shardproof: partition, 99 of 100, 300 of 1200 obligations, 210 MiB, 23 s",
    ]


def test_a_new_phase_forgets_the_counts_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    shown = Sparse(StringIO())
    shown.phase("solve")
    shown.update(1, 2, "all")
    shown.phase("compose")
    assert shown.line() == "compose, 0 s"


def test_a_terminal_gets_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with on_stderr() as shown:
        shown.phase("solve")
        shown.update(12, 40)
    assert "solve, 12 of 40" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_what_tells_nothing_itself_is_told_of_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    stream = StringIO()
    shown = Sparse(stream)
    shown.phase("load")
    with waiting(shown, "reading one.pkl and many.pkl, 48 MiB"):
        until = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert stream.getvalue() == "shardproof: load, reading one.pkl and many.pkl, 48 MiB, 0 s\n"
    shown.phase("partition")
    assert "reading" not in shown.line()


def test_a_run_goes_on_where_whoever_read_its_progress_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    clock = Clock(monkeypatch)
    stream = open(writing, "w")  # noqa: SIM115 - it cannot be closed without an error
    shown = Sparse(stream)
    clock.now += FIRST_SECONDS
    shown.phase("partition")
    shown.note("capturing 4 ranks")
    shown.update(3, 4)
    assert shown.counts == (3, 4)
    with suppress(BrokenPipeError):
        stream.close()
