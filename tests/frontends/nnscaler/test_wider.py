"""Complex numbers and rows that are not trained, in plans beside the runtime; each with a twin that
differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.operators import declared
from tests.faults.plans import verify
from tests.frontends.nnscaler.test_registry import record, turns
from tests.frontends.plan_generator import Plans, placed, plans
from tests.frontends.plan_judge import judged, paired
from tests.frontends.plan_records import viewed
from tests.frontends.plan_values import Model, Value
from tests.frontends.plan_wider import Wider


def plan(block: str, seed: int, kind: type[Wider] = Wider) -> Plans:
    """A block between two linear layers, and the sum of it all."""
    made = kind(random.Random(3), 2)
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    grown = getattr(made, block)(x)
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(grown, made.h), shapes=(1,))
    made.operations[-1].output.loss = True
    of = Model(made.batches, made.operations, made.weights, 1)
    return placed(random.Random(seed), of, [2], 1, 1)


def test_a_single_chosen_expert_weighs_one_where_the_single_device_divides(tmp_path: Path) -> None:
    """Its weight is s / s, of which the laws of quotients leave nothing: ``check`` said that the
    single device does not divide by s."""
    made = plans(210018, "wider")
    gates = [op for (op, *_) in made.operators if op.state["signature"].endswith("gate_fw")]
    assert any(gate.state["_kwargs"]["topk"] == 1 for gate in gates)
    one, many = (viewed(x, tmp_path, k) for k, x in (("one", made.single), ("two", made.parallel)))
    found = verify(paired(one, many), out=tmp_path / "run")
    assert found.verdict == "proved", found.reason
    assert check(tmp_path / "run").problems == ()


def squared(made: Plans) -> None:
    """The pairs are multiplied by themselves instead of by their turns."""
    for op in made.operators[[x[0].state["signature"] for x in made.operators].index("torch.mul")]:
        op.state["_inputs"][1] = op.state["_inputs"][0]


def another_row(made: Plans) -> None:
    name = "nnscaler.runtime.function.embedding"
    for op in made.operators[[x[0].state["signature"] for x in made.operators].index(name)]:
        op.state["_kwargs"] = {**op.state["_kwargs"], "padding_idx": 0}


def another_place(made: Plans) -> None:
    """The first of two that are written is another column."""
    name = "nnscaler.runtime.function.setitem"
    for op in made.operators[[x[0].state["signature"] for x in made.operators].index(name)]:
        op.state["_inputs"][2] = slice(1, 2)


def another_number(made: Plans) -> None:
    """Another position is written over."""
    name = "nnscaler.runtime.function.setitem"
    for op in made.operators[[x[0].state["signature"] for x in made.operators].index(name)]:
        op.state["_inputs"][2] = 1


@pytest.mark.parametrize(
    ("block", "alter"),
    [
        ("rotary", squared),
        ("padding_row", another_row),
        ("written", another_place),
        ("written_over", another_number),
    ],
    ids=["rotary", "padding_row", "written", "written_over"],
)
@pytest.mark.parametrize("right", [True, False])
def test_a_block_beside_the_runtime(
    block: str, alter: Callable[[Plans], None], right: bool, tmp_path: Path
) -> None:
    made = plan(block, 5)
    if not right:
        alter(made)
    judgement = judged(made, 1, tmp_path)
    assert bool(judgement.different) != right
    assert judgement.verdict == ("proved" if right else "refuted"), judgement.reason


@pytest.mark.parametrize(
    ("signature", "operands", "kwargs"),
    [
        ("torch.pow", (2,), {}),
        ("torch.sum", (), {"dim": (0,)}),
        ("torch.mul", (2,), {}),
        ("torch.abs", (), {}),
        ("torch.Tensor.float", (), {}),
    ],
)
def test_what_is_another_thing_for_pairs_is_refused(
    signature: str, operands: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    x = record(turns(2, 3)(), 1)
    op = cells.ForwardOp(1, "f", signature, (x, *operands), (), kwargs, (), "", None)
    assert "with" in declared(op).name


def picked_pairs(made: Wider, x: Value) -> Value:
    """Columns in another order, turned as pairs: their gradient lies in every other column."""
    return made.rotary(made.chosen(x))


def turned_pairs(made: Wider, x: Value) -> Value:
    """Columns that are turned as pairs, in another order."""
    return made.chosen(made.rotary(x))


@pytest.mark.parametrize("grown", [picked_pairs, turned_pairs])
@pytest.mark.parametrize("right", [True, False])
def test_known_columns_of_numbers_that_are_pairs(
    grown: Callable[[Wider, Value], Value], right: bool, tmp_path: Path
) -> None:
    """The product with a one-hot, whose classes have no end, over every other column: it was a
    tensor that is no view of a value, on the single device too, and no claim could be stated."""
    made = Wider(random.Random(3), 2)
    made.b = 4
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(grown(made, x), made.h), shapes=(1,))
    made.operations[-1].output.loss = True
    of = Model(made.batches, made.operations, made.weights, 1)
    plans = placed(random.Random(5), of, [2], 2, 1)
    if not right:
        columns = next(x for x in plans.operators if x[0].state["signature"].endswith("arange"))
        for op in columns:
            more = {"start": 0, "end": made.h, "step": 1}
            op.state["_kwargs"] = {**op.state["_kwargs"], **more}
    one, many = (
        viewed(x, tmp_path, k) for k, x in (("one", plans.single), ("two", plans.parallel))
    )
    assert bool(judged(plans, 1, tmp_path).different) != right
    found = verify(paired(one, many), out=tmp_path / "run")
    assert found.verdict == ("proved" if right else "refuted"), found.reason
    if right:
        assert check(tmp_path / "run").problems == ()


def test_a_table_in_parts_has_a_padding_row_in_each(tmp_path: Path) -> None:
    """So has nnScaler's function: a rank does not train its own row of that number."""
    made = Wider(random.Random(3), 2)
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    made.op("torch.sum", "a+ b+ c+ -> 1", made.padding_row(x), shapes=(1,))
    made.operations[-1].output.loss = True
    table = next(x for x in made.operations if x.signature.endswith("embedding"))
    table.anno, table.local = "a b, n+ e -> a b e", "rows"
    of = Model(made.batches, made.operations, made.weights, 1)
    for seed in range(20):
        plans = placed(random.Random(seed), of, [2], 1, 1)
        ops = next(x for x in plans.operators if x[0].state["signature"].endswith("embedding"))
        if ops[1].state["_kwargs"]["start"]:
            break
    judgement = judged(plans, 1, tmp_path)
    assert judgement.different
    assert judgement.verdict == "refuted", judgement.reason
