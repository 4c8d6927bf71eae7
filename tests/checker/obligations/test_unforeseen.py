"""What no rule foresees is no proof, is counted, and is logged with where it came from."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.engine.errors import Unsupported

BUILD = "shardproof.checker.obligations.restate.build"


def failing(error: Exception) -> Any:
    def build(*_: Any, **__: Any) -> None:
        raise error

    return build


@pytest.mark.parametrize("error", [AssertionError("of ours"), KeyError("of ours")])
def test_a_fault_is_counted_and_logged(
    error: Exception,
    proved: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proved.copy().store(tmp_path)
    monkeypatch.setattr(BUILD, failing(error))
    with caplog.at_level(logging.INFO, "shardproof.checker.obligations.restate"):
        found = check(tmp_path)
    assert not found.ok
    assert found.counts["unforeseen"] == len(caplog.records) > 0
    assert all(record.exc_info for record in caplog.records)
    assert f"cannot be stated: {type(error).__name__}" in found.problems[0].message


def test_what_has_no_rule_is_foreseen(
    proved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved.copy().store(tmp_path)
    monkeypatch.setattr(BUILD, failing(Unsupported("no rule")))
    found = check(tmp_path)
    assert not found.ok
    assert found.counts["unforeseen"] == 0
    assert found.problems[0].message.endswith("cannot be stated: no rule")


def test_a_right_run_meets_nothing_unforeseen(proved: Any, tmp_path: Path) -> None:
    proved.copy().store(tmp_path)
    found = check(tmp_path)
    assert found.ok
    assert found.counts["unforeseen"] == 0
