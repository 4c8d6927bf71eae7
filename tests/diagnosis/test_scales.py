"""Repairs that multiply a result, at communications that several programs share."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from shardproof.diagnosis.repair import values
from shardproof.diagnosis.repair.edits import Site


def test_a_message_has_the_outputs_of_all_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second result is that of an operator with one output: there is nothing to multiply."""
    instance: Any = SimpleNamespace(outputs=(0, 1))
    single = SimpleNamespace(unrolled=SimpleNamespace(instances=[instance]), lineages=[None, None])
    fault: Any = SimpleNamespace(
        divergence=SimpleNamespace(counterpart=0),
        result=SimpleNamespace(single=single),
        instances=[instance],
        lineage=lambda value: None,
        sites=[Site(0, 0, 0)],
        programs=[0],
        plan=SimpleNamespace(programs=[SimpleNamespace(base=0)]),
    )
    places: list[int] = []

    def edited(cause: str, says: str, plan: Any, edits: Any) -> str:
        places.extend(edit.after for edit in edits)
        return cause

    monkeypatch.setattr(values, "_ratio", lambda mine, theirs: Fraction(2))
    monkeypatch.setattr(values, "op_at", lambda plan, site: SimpleNamespace(outputs=(7,)))
    monkeypatch.setattr(values, "named", lambda plan, site: "recv")
    monkeypatch.setattr(values, "edited", edited)
    assert list(values.scales(fault)) == ["wrong scale"]
    assert places == [0]
