"""What a proof rests on, for machines: kinds of assumptions, and proofs that may rest on few."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import shardproof
from shardproof.checker import check
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import KINDS, STRICT, Assumption, Kind, texts
from shardproof.engine.plan.assumptions import statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.run.result import Result
from shardproof.run.verdict import Decision, strictly
from tests.shardproof.faces import tiny


def assuming(kind: Kind) -> Plan:
    """A plan that is proved, whose reader assumed something of this kind."""
    assumed = Assumption(kind, "my.softmax", "gate.py:12", f"my.softmax is softmax ({kind})")
    return replace(tiny(dp=1, tp=1, microbatches=1), assumed=(assumed,))


def verified(plan: Plan, folder: Path, *, strict: bool) -> Result:
    store.save(plan, folder / "plan")
    return shardproof.verify(
        folder / "plan", out=folder / "run", executor="local", cache=False, strict=strict
    )


def test_every_assumption_of_a_run_is_described(tmp_path: Path) -> None:
    plan = assuming("user's word")
    result = verified(plan, tmp_path, strict=False)
    assert result.verdict == "proved"
    data = json.loads(result.to_json())
    assert [one["text"] for one in data["assumption_details"]] == data["assumptions"]
    assert data["assumption_details"][-1] == {
        "kind": "user's word",
        "about": "my.softmax",
        "where": "gate.py:12",
        "text": "my.softmax is softmax (user's word)",
    }
    assert {one["kind"] for one in data["assumption_details"]} == {
        "default",
        "stated",
        "user's word",
    }
    assert Result.from_json(result.to_json()).assumption_details == result.assumption_details
    assert check(tmp_path / "run").ok


@pytest.mark.parametrize("kind", ["inferred", "framework"])
def test_a_strict_proof_rests_on_few_kinds(kind: Kind, tmp_path: Path) -> None:
    result = verified(assuming(kind), tmp_path, strict=True)
    if kind in STRICT:
        assert (result.verdict, result.reason) == ("proved", "")
    else:
        assert result.verdict == "inconclusive"
        assert result.reason == (
            "--strict: the proof rests on what is inferred: my.softmax is softmax (inferred) "
            "(gate.py:12)"
        )
    found = check(tmp_path / "run")
    assert found.ok, found.problems
    assert found.verdict == result.verdict


@pytest.mark.parametrize("kind", KINDS)
def test_which_kinds_a_strict_proof_may_rest_on(kind: Kind) -> None:
    assumed = assuming(kind).assumed
    decided = strictly(Decision("proved", "", ()), (*statements(tiny()), *assumed, *assumed))
    assert decided.verdict == ("proved" if kind in STRICT else "inconclusive")
    assert (kind in decided.reason and decided.reason.endswith(", and 1 more")) is (
        kind not in STRICT
    )
    refuted = Decision("refuted", "", ())
    assert strictly(refuted, assumed) is refuted


def test_an_assumption_of_a_plan_is_stored_with_it(tmp_path: Path) -> None:
    for kind in KINDS:
        plan = assuming(kind)  # type: ignore[arg-type]  # they are kinds
        store.save(plan, tmp_path / kind)
        assert store.load(tmp_path / kind) == plan
        assert texts(statements(plan))[-1] == plan.assumed[0].text
    strange = replace(plan.assumed[0], kind="a guess")  # type: ignore[arg-type]
    store.save(replace(plan, assumed=(strange,)), tmp_path / "strange")
    with pytest.raises(InvalidInput, match="assumed is"):
        store.load(tmp_path / "strange")
    assert asdict(strange)["kind"] == "a guess"
