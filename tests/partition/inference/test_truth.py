"""Lineages are true of right plans and of wrong ones: inference claims nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.plan.ir import Body, Plan
from shardproof.frontends.zoo import build
from shardproof.mutation import campaign
from shardproof.mutation.inserted import split_and_joined
from shardproof.mutation.order import ORDER
from shardproof.partition.inference.interpreter import LineageInterpreter
from tests.faults.plans import edit_body, llama
from tests.partition.truth import Contradiction, truth

SMALL: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 4, "kv_heads": 4, "vocabulary": 8}
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("llama3-8b", {"tp": 2, "cp": 2, "sequence_parallel": True}),
    ("llama3-8b", {"dp": 2, "zero": 3, "microbatches": 2}),
    ("llama3-8b", {"dp": 4, "tp": 2, "zero": 1, "microbatches": 4, "loss": "mean"}),
    ("llama3-8b", {"dp": 2, "zero": 2, "microbatches": 3}),
    ("llama3-8b", {"pp": 2, "virtual_stages": 2, "microbatches": 2, "layers": 4}),
    ("gpt3-175b", {"tp": 2, "cp": 2, "sequence_parallel": True}),
    ("mixtral-8x7b", {"dp": 4, "ep": 2, "microbatches": 2, "experts": 4, "chosen": 2}),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*layout, marks=pytest.mark.slow if i > 1 else ())
        for i, layout in enumerate(LAYOUTS)
    ],
)
def test_lineages_of_a_right_plan_are_true(name: str, settings: dict[str, Any]) -> None:
    size = {**SMALL, "ffn": 8, "sequence": 8}
    if name == "gpt3-175b":
        del size["kv_heads"]
    found = truth(build(name, **{**size, **settings}))
    assert found.wrong == ()
    assert found.compared > 300


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lineages_of_mutants_are_true(seed: int) -> None:
    """What a wrong plan computes is said as truly as what a right one does."""
    plan, count = llama(tp=2), 0
    step = 12 if seed == 1 else 1
    skipped = {mutator.name for mutator in ORDER}
    for number, mutator in enumerate(campaign.MUTATORS[::step]):
        made = mutator.apply(plan, Random(f"{seed}/{number}"))
        if made is None or mutator.name in skipped:
            continue
        try:
            found = truth(made.plan)
        except (InvalidInput, ShapeMismatch, Unsupported, Contradiction):
            continue  # it cannot be run: there is nothing to compare
        assert found.wrong == (), made.what
        count += 1
    assert count > 3


def test_a_lineage_that_is_not_true_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that all begin one position too early."""
    plan = _sliced(llama(tp=2))
    assert truth(plan).wrong == ()
    right = LineageInterpreter.slice

    def early(self: LineageInterpreter, x: Lineage, dim: int, start: Any, size: int) -> Lineage:
        return right(self, x, dim, affine(0) if start == affine(1) else start, size)

    monkeypatch.setattr(LineageInterpreter, "slice", early)
    assert any("slice" in row for row in truth(plan).wrong)


def _sliced(plan: Plan) -> Plan:
    """The input of the first norm in two parts, joined again."""

    def change(body: Body) -> Body:
        number = next(i for i, op in enumerate(body.ops) if op.name == "rms_norm")
        made = split_and_joined(body, number, Random(0))
        assert made is not None
        ops = list(made.body.ops)
        assert any(op.name == "slice" for op in ops)
        return replace(made.body, ops=tuple(ops))

    return edit_body(plan, 0, "forward", change)
