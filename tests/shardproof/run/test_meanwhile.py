"""The tables of a proof are written while solvers are at work, once, and are those that the
certificate names; those of what is not proved are written when that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof import checker
from shardproof.engine.plan.ir import Plan
from shardproof.engine.records import run as records
from shardproof.run import certificate
from shardproof.run.solve import Solving
from tests.faults.plans import attrs, edit_op, llama, verify


def events(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When tables were written, and when verdicts were awaited."""
    noted: list[str] = []

    def noting(what: str, module: Any, name: str) -> None:
        before = getattr(module, name)

        def then(*args: Any, **kwargs: Any) -> Any:
            noted.append(what)
            return before(*args, **kwargs)

        monkeypatch.setattr(module, name, then)

    noting("tables", certificate, "write_tables")
    noting("tables", records, "write_tables")
    noting("verdicts", Solving, "_execute")
    noted.append(verify(plan, out=out).verdict)
    return noted


def test_the_tables_of_a_proof_are_written_before_its_verdicts_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events(llama(tp=2), tmp_path, monkeypatch) == ["tables", "verdicts", "proved"]
    assert checker.check(tmp_path).ok


def test_the_tables_of_what_is_refuted_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = edit_op(llama(tp=2), "softmax", attrs(dim=-2))
    assert events(plan, tmp_path, monkeypatch) == ["verdicts", "tables", "refuted"]
