"""Mixtures of experts: every way to divide them is proved, and refuted with a fault put into it.

No two axes of these small models have the same size by chance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Group, Op, Plan
from shardproof.engine.plan_files.wellformed import check
from shardproof.frontends.zoo import build
from tests.faults.plans import assert_proved, edit_op, identity, scaled_input, verify

COMMON = {"hidden": 48, "vocabulary": 94, "sequence": 20}
LATENT = {"heads": 6, "kv_rank": 22, "nope": 14, "rope": 8, "value": 18, "dense_layers": 1}
DEEPSEEK = {**LATENT, "layers": 2, "ffn": 36, "experts": 12, "chosen": 3, "expert_ffn": 26}
GROUPS = {"q_rank": 34, "groups": 3, "kept_groups": 2}
SIZES: dict[str, dict[str, int]] = {
    "mixtral-8x7b": {"layers": 1, "heads": 6, "kv_heads": 2, "ffn": 28, "experts": 10},
    "deepseek-16b": DEEPSEEK,
    "deepseek-236b": {**DEEPSEEK, **GROUPS},
    "deepseek-v3-671b": {**DEEPSEEK, **GROUPS},
}


@functools.cache
def small(name: str, **settings: Any) -> Plan:
    return build(name, **{**COMMON, **SIZES[name], **settings})


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("mixtral-8x7b", {"tp": 2, "sequence_parallel": True}),
    ("mixtral-8x7b", {"dp": 4, "ep": 2, "microbatches": 2}),
    ("deepseek-236b", {"dp": 2, "zero": 1, "balance_loss": False, "layers": 1}),
    # Every rank of a replica has experts of its own, whose gradients nobody divides.
    ("mixtral-8x7b", {"dp": 2, "ep": 2, "zero": 1, "balance_loss": False}),
]
MORE: list[tuple[str, dict[str, Any]]] = [
    ("mixtral-8x7b", {"tp": 2}),
    ("mixtral-8x7b", {"dp": 2, "microbatches": 2, "balance_loss": False}),
    ("mixtral-8x7b", {"dp": 2, "ep": 2, "balance_loss": False}),
    ("mixtral-8x7b", {"dp": 2, "ep": 2, "microbatches": 2, "loss": "mean"}),
    ("mixtral-8x7b", {"cp": 2, "dp": 2}),
    ("deepseek-16b", {"pp": 2, "microbatches": 2}),
    ("deepseek-v3-671b", {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}),
]


def assert_holds(name: str, layout: dict[str, Any]) -> None:
    plan = small(name, **layout)
    check(plan)
    assert any("dense dispatch, no drops" in note for note in plan.notes)
    assert assert_proved(plan).counts.obligations > 0


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=str)
def test_layouts_are_proved(name: str, layout: dict[str, Any]) -> None:
    assert_holds(name, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), MORE, ids=str)
def test_every_layout_is_proved(name: str, layout: dict[str, Any]) -> None:
    assert_holds(name, layout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-236b", "deepseek-v3-671b"])
def test_everything_at_once_is_proved(name: str) -> None:
    layout = {"dp": 4, "tp": 2, "pp": 2, "ep": 2, "microbatches": 2}
    assert_proved(small(name, **layout, layers=3, sequence_parallel=True))


# -- each with a fault -----------------------------------------------------------------------------

EP = {"dp": 2, "ep": 2, "balance_loss": False}
EDP = {"dp": 4, "ep": 2, "balance_loss": False}
BALANCED = {"dp": 2, "microbatches": 2}
SEQUENCE = {"tp": 2, "sequence_parallel": True, "balance_loss": False}


def mixtral(**settings: Any) -> Plan:
    return small("mixtral-8x7b", **settings)


def exchanged(op: Op) -> Op:
    """Tokens divided and experts joined where it should be the other way round."""
    attrs = {**op.attrs, "split_dim": op.attrs["concat_dim"], "concat_dim": op.attrs["split_dim"]}
    return replace(op, attrs=attrs)


def over(*axes: str) -> Callable[[Op], Op]:
    return lambda op: replace(op, attrs={**op.attrs, "group": Group(axes=axes)})


def reducer_of(plan: Plan, name: str, axes: tuple[str, ...], change: Callable[[Op], Op]) -> Plan:
    """The reduction over ``axes`` of the gradient of parameter ``name`` changed."""
    body = next(b for b in plan.programs[0].bodies if b.name == "reducer")
    found = [op for op in body.ops if op.name == "all_reduce"]
    nth = next(
        i
        for i, op in enumerate(found)
        if op.source.module == name and op.attrs["group"] == Group(axes=axes)
    )
    return edit_op(plan, "all_reduce", change, nth=nth, body="reducer")


EXPERT = "layers.0.feed_forward.experts.w1"
GATE = "layers.0.feed_forward.gate.weight"

FAULTS: dict[str, Callable[[], Plan]] = {
    "dispatch: the dimensions of the all-to-all exchanged": lambda: edit_op(
        mixtral(**EP), "all_to_all", exchanged, nth=0
    ),
    "dispatch: no exchange": lambda: edit_op(
        edit_op(mixtral(**EP, experts=2), "all_to_all", identity, nth=0),
        "all_to_all",
        identity,
        nth=0,
    ),
    "experts: gradients reduced over ep instead of edp": lambda: reducer_of(
        mixtral(**EDP), EXPERT, ("edp",), over("ep")
    ),
    "experts: gradients not reduced": lambda: reducer_of(
        mixtral(**EDP), EXPERT, ("edp",), identity
    ),
    "gate: gradient not reduced over the sequence's parts": lambda: reducer_of(
        mixtral(**SEQUENCE), GATE, ("tp",), identity
    ),
    "gate: gradient reduced over edp only": lambda: reducer_of(
        mixtral(**EDP), GATE, ("edp", "ep"), over("edp")
    ),
    "gate: one more expert is chosen": lambda: edit_op(
        mixtral(**EP), "choose_experts", lambda op: replace(op, attrs={**op.attrs, "topk": 3})
    ),
    "experts: no sum over the parts of an expert": lambda: edit_op(
        mixtral(tp=2, balance_loss=False),
        "all_reduce",
        identity,
        layer="layers.0.feed_forward.experts",
    ),
    "balance: twice the coefficient": lambda: scaled_input(
        mixtral(**BALANCED), "add", Fraction(2), nth=-1
    ),
    "balance: counts of the own part of the sequence only": lambda: edit_op(
        mixtral(tp=2, sequence_parallel=True),
        "all_reduce",
        identity,
        layer="layers.0.feed_forward.gate",
    ),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_refuted(fault: str) -> None:
    found = verify(FAULTS[fault]())
    assert found.verdict == "refuted", found.reason


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ep": 2}, "dp 1 is not divisible by ep 2"),
        ({"dp": 3, "ep": 3}, "experts 10 is not divisible by ep 3"),
        ({"chosen": 11}, "11 experts are chosen among 10"),
    ],
    ids=str,
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        mixtral(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring": "tanh"}, "scoring 'tanh', expected 'softmax' or 'sigmoid'"),
        ({"groups": 5}, "12 experts are not divisible into 5 groups"),
        ({"kept_groups": 4}, "4 of 3 groups are kept"),
        ({"rope": 7}, "rope 7 is not even"),
    ],
    ids=str,
)
def test_a_gate_that_cannot_choose_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        small("deepseek-v3-671b", **changes)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 46.70),
        ("deepseek-16b", 15.71),
        ("deepseek-236b", 235.74),
        ("deepseek-v3-671b", 671.03),
    ],
)
def test_models_have_their_true_number_of_parameters(name: str, billions: float) -> None:
    count = 0
    for shard in build(name).single.shards:
        if shard.trainable:
            size = 1
            for n in shard.full_shape:
                size *= n
            count += size
    assert round(count / 1e9, 2) == billions
