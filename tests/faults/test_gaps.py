"""Gradients that are added up over the outer part of a range before the inner one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof import checker
from shardproof.engine.plan.ir import Body, Group, Op, Plan
from shardproof.frontends.zoo import build
from shardproof.frontends.zoo.layout import TP
from tests.faults.plans import edit_body, llama, verify

CP = Group(axes=("cp",))


def context_first() -> Plan:
    """Norms' gradients are partial over blocks of positions per context-parallel rank, and within
    each over tensor-parallel ranks: the blocks are added up first."""
    plan = llama(cp=2, tp=2, sequence_parallel=True)

    def exchanged(body: Body) -> Body:
        ops = list(body.ops)
        first = [i for i, op in enumerate(ops) if op.attrs.get("group") == TP]
        assert first
        for i in first:
            k = next(k for k, op in enumerate(ops) if op.inputs == ops[i].outputs)
            assert ops[k].attrs["group"] == CP
            ops[i], ops[k] = over(ops[i], CP), over(ops[k], TP)
        return replace(body, ops=tuple(ops))

    return edit_body(plan, 0, "reducer", exchanged)


def over(op: Op, group: Group) -> Op:
    return replace(op, attrs={**op.attrs, "group": group})


def twice(plan: Plan, group: Group, other: Group) -> Plan:
    """What is added up over ``other`` and then over ``group`` is added up over ``other`` twice."""

    def within(body: Body) -> Body:
        ops = list(body.ops)
        for i, op in enumerate(ops):
            before = [p for p in ops[:i] if p.outputs == op.inputs]
            if op.attrs.get("group") == group and before:
                ops[i] = over(op, other)
        assert ops != list(body.ops)
        return replace(body, ops=tuple(ops))

    return edit_body(plan, 0, "reducer", within)


def test_outer_blocks_first_is_proved_and_checked(tmp_path: Path) -> None:
    found = verify(context_first(), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert checker.check(tmp_path).ok


def test_gaps_that_nothing_fills_are_refuted() -> None:
    """The blocks of every cp rank are added up twice, and the gaps between them never filled."""
    assert verify(twice(context_first(), TP, CP)).verdict == "refuted"


MIXTURE = {
    "layers": 1,
    "hidden": 24,
    "heads": 2,
    "kv_heads": 1,
    "ffn": 14,
    "vocabulary": 38,
    "sequence": 10,
    "experts": 12,
    "dp": 4,
    "ep": 2,
    "microbatches": 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral-8x7b"])
def test_microbatches_between_experts_ranks_and_replicas(name: str) -> None:
    """Gradients are added up over microbatches first: the middle digit of a slice's number."""
    found = verify(build(name, **MIXTURE))
    assert found.verdict == "proved", found.reason


@pytest.mark.slow
@pytest.mark.parametrize("zero", [2, 3])
def test_replicas_before_microbatches(zero: int) -> None:
    """ZeRO divides the gradients of every microbatch: the outer digit first."""
    plan = build(
        "llama3-8b",
        dp=8,
        zero=zero,
        microbatches=3,
        layers=1,
        hidden=48,
        heads=6,
        kv_heads=2,
        ffn=28,
        vocabulary=94,
        sequence=20,
    )
    found = verify(plan)
    assert found.verdict == "proved", found.reason
