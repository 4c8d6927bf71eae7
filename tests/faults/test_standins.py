"""A difference that is seen where a stand-in's values stand for a program's own refutes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Op, Plan
from tests.faults.plans import assert_proved, edit_op, verify
from tests.faults.small import replicas


def wrong() -> Plan:
    """Replicas whose gradients are not added up."""

    def alone(op: Op) -> Op:
        return replace(op, name="identity", attrs={})

    return edit_op(replicas(), "all_reduce", alone, body="reducer")


@pytest.mark.parametrize(("kind", "verdict"), [("stand-in", "inconclusive"), ("stated", "refuted")])
def test_a_stand_in_refutes_nothing(kind: str, verdict: str) -> None:
    assumed = (Assumption(kind, "positions", "", "positions are any numbers"),)  # type: ignore[arg-type]
    found = verify(replace(wrong(), assumed=assumed))
    assert found.verdict == verdict, found.reason
    assert ("positions are any numbers" in found.reason) == (kind == "stand-in")
    assert_proved(replace(replicas(), assumed=assumed))
