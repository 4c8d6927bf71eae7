"""Every way to divide a model of the zoo is proved, and refuted with a fault put into it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Group, Op, Plan, Shard
from shardproof.engine.plan_files.wellformed import check
from shardproof.frontends.zoo import build
from shardproof.frontends.zoo.interleaved import Work, order
from tests.faults.plans import (
    assert_proved,
    assert_refuted,
    attrs,
    edit_op,
    edit_shard,
    identity,
    named,
    renamed,
    scaled_input,
    verify,
)

SIZES: dict[str, dict[str, int]] = {
    "gpt3-175b": {"heads": 4, "ffn": 24},
    "llama3-8b": {"heads": 4, "kv_heads": 2, "ffn": 24},
}
COMMON = {"layers": 2, "hidden": 16, "vocabulary": 32, "sequence": 8}


@functools.cache
def small(name: str, **settings: Any) -> Plan:
    return build(name, **{**COMMON, **SIZES[name], **settings})


def gpt(**settings: Any) -> Plan:
    return small("gpt3-175b", **settings)


def llama(**settings: Any) -> Plan:
    return small("llama3-8b", **settings)


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt3-175b", {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}),
    ("gpt3-175b", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("gpt3-175b", {"dp": 2, "pp": 2, "microbatches": 2, "zero": 1}),
    ("gpt3-175b", {"tp": 2, "pp": 2, "cp": 2, "sequence_parallel": True}),
    ("llama3-8b", {"dp": 2, "microbatches": 2, "loss": "mean", "layers": 1}),
    ("llama3-8b", {"dp": 2, "microbatches": 2, "loss": "sum", "layers": 1}),
    ("llama3-8b", {"dp": 2, "tp": 2, "cp": 2, "sequence_parallel": True, "layers": 1}),
    ("llama3-8b", {"dp": 2, "tp": 2, "microbatches": 2, "zero": 1, "layers": 1}),
    ("llama3-8b", {"dp": 2, "tp": 2, "microbatches": 2, "zero": 2, "layers": 1}),
    ("llama3-8b", {"dp": 2, "cp": 2, "microbatches": 2, "zero": 3, "layers": 1}),
    ("llama3-8b", {"pp": 2, "virtual_stages": 2, "microbatches": 2, "layers": 4}),
]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=str)
def test_every_layout_is_proved(name: str, layout: dict[str, Any]) -> None:
    found = assert_proved(small(name, **layout))
    assert found.counts.obligations > 0


@pytest.mark.slow
def test_three_interleaved_stages_are_proved() -> None:
    assert_proved(llama(pp=3, virtual_stages=2, microbatches=3, layers=7, dp=2))


@pytest.mark.slow
def test_everything_at_once_is_proved() -> None:
    assert_proved(
        llama(
            dp=2,
            tp=2,
            pp=2,
            cp=2,
            microbatches=2,
            layers=4,
            virtual_stages=2,
            zero=3,
            sequence_parallel=True,
        )
    )


# -- each with a fault -----------------------------------------------------------------------------


def reducers(
    plan: Plan, group: Group, change: Callable[[Op], Op], name: str = "all_reduce"
) -> Plan:
    """The first reduction over ``group`` of every program's reducer changed."""
    for program, held in enumerate(plan.programs):
        body = next(b for b in held.bodies if b.name == "reducer")
        for nth, op in enumerate(op for op in body.ops if op.name == name):
            if op.attrs["group"] == group:
                plan = edit_op(plan, name, change, nth=nth, body="reducer", program=program)
                break
    return plan


def chunk(op: Op) -> Op:
    """This rank's part of its own addend: the sum over the ranks is missing."""
    return replace(op, name="chunk")


def moved(plan: Plan, name: str, change: Callable[[Shard], Shard]) -> Plan:
    return edit_shard(plan, 0, name, change)


def at_start(shard: Shard) -> Shard:
    """Ranks hold the first part, whatever their position."""
    return replace(shard, offset=tuple(ZERO for _ in shard.offset))


TIED = Group(ranks=(0, 1))
GPT_TP, GPT_PP = {"tp": 2, "layers": 1}, {"pp": 2}
MEAN = {"dp": 2, "microbatches": 2, "loss": "mean", "layers": 1}
CP = {"cp": 2, "layers": 1}
ZERO_1, ZERO_2, ZERO_3 = ({"dp": 2, "zero": stage, "layers": 1} for stage in (1, 2, 3))
VIRTUAL = {"pp": 2, "virtual_stages": 2, "microbatches": 2, "layers": 4}

FAULTS: dict[str, Callable[[], Plan]] = {
    "gpt: another activation": lambda: edit_op(gpt(**GPT_TP), "gelu", named("silu")),
    "gpt: another epsilon of a norm": lambda: edit_op(
        gpt(**GPT_TP), "layernorm", attrs(eps=Fraction(2))
    ),
    "gpt: no all-reduce after attention": lambda: edit_op(
        gpt(**GPT_TP), "all_reduce", identity, layer="h.0.attn"
    ),
    "gpt: a bias added on every tensor-parallel rank before the sum": lambda: edit_op(
        gpt(**GPT_TP), "add", attrs(alpha=Fraction(2)), layer="h.0.attn"
    ),
    "tied: no sum over the stages": lambda: reducers(gpt(**GPT_PP), TIED, identity),
    "mean: taken for a sum": lambda: replace(llama(**MEAN), loss="sum"),
    "mean: over too many tokens": lambda: scaled_input(llama(**MEAN), "sum", Fraction(1, 2), nth=0),
    "cp: every rank has the first positions": lambda: moved(llama(**CP), "freqs_cis", at_start),
    "cp: every rank masks the first rows": lambda: edit_op(
        llama(**CP), "chunk", lambda op: replace(op, name="slice", attrs=FIRST_ROWS), nth=2
    ),
    "cp: gradients of gathered keys not added": lambda: edit_op(
        llama(**CP), "reduce_scatter", chunk, body="backward"
    ),
    "cp: a gradient not added up": lambda: reducers(llama(**CP), Group(axes=("cp",)), identity),
    "zero 1: gradients divided, not added": lambda: reducers(
        llama(**ZERO_1), Group(axes=("dp",)), chunk, "reduce_scatter"
    ),
    "zero 2: gradients divided, not added": lambda: edit_op(
        llama(**ZERO_2), "reduce_scatter", chunk, body="backward"
    ),
    "zero 3: gradients divided, not added": lambda: edit_op(
        llama(**ZERO_3), "reduce_scatter", chunk, body="backward"
    ),
    "virtual stages: the parts of a stage exchanged": lambda: renamed(
        llama(**VIRTUAL),
        "layers.0.attention.wq.weight",
        "layers.2.attention.wq.weight",
    ),
}
FIRST_ROWS: dict[str, Any] = {"dim": 2, "start": 0, "size": 4}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_refuted(fault: str) -> None:
    found = verify(FAULTS[fault]())
    assert found.verdict == "refuted", found.reason


def test_a_fault_is_found_where_it_is() -> None:
    assert_refuted(
        FAULTS["cp: every rank masks the first rows"](), kind="mismatch", says="apply_mask"
    )


def test_an_owned_part_that_is_another_ranks_is_refuted() -> None:
    """Every rank claims to update the first part: half of the parameter is updated by nobody."""
    plan = llama(**ZERO_1)
    number = next(
        i
        for i, shard in enumerate(plan.programs[0].shards)
        if shard.name == "norm.weight" and shard.updated_as < 0
    )

    def first(shard: Shard) -> Shard:
        return at_start(shard) if shard is plan.programs[0].shards[number] else shard

    found = verify(moved(plan, "norm.weight", first))
    assert found.verdict == "refuted", found.reason
    assert any(
        c.message == "the shards of norm.weight do not cover its [16] elements"
        for c in found.conclusions
    )


def test_a_part_outside_of_its_shard_is_no_plan() -> None:
    plan = llama(**{**ZERO_1, "tp": 2})

    def other(shard: Shard) -> Shard:
        return replace(shard, offset=(affine(8), ZERO)) if shard.updated_as < 0 else shard

    with pytest.raises(InvalidInput, match=r"is updated as \[8, \+8\), outside of it"):
        check(moved(plan, "layers.0.attention.wq.weight", other))


# -- what is in them -------------------------------------------------------------------------------


def names(plan: Plan, body: str, program: int = 0) -> list[str]:
    held = next(b for b in plan.programs[program].bodies if b.name == body)
    return [op.name for op in held.ops if "group" in op.attrs]


def test_zero_divides_what_it_says() -> None:
    programs = [llama(**z, microbatches=2).programs[0] for z in (ZERO_1, ZERO_2, ZERO_3)]
    parameters = 12
    for program in programs[:2]:
        whole = [s for s in program.shards if s.updated_as >= 0]
        assert len(whole) == parameters
        assert all(s.shape == s.full_shape for s in whole)
    plans = [llama(**z, microbatches=2) for z in (ZERO_1, ZERO_2, ZERO_3)]
    assert names(plans[0], "reducer") == ["reduce_scatter"] * parameters
    assert names(plans[0], "backward") == []
    assert names(plans[1], "backward") == ["reduce_scatter"] * parameters
    assert names(plans[2], "forward") == ["all_gather"] * parameters
    # Backward gathers again whatever it reads.
    again = names(plans[2], "backward")
    assert again.count("all_gather") == parameters
    assert again.count("reduce_scatter") == parameters
    assert all(s.shape != s.full_shape for s in programs[2].shards if s.trainable)
    assert all(b.name != "reducer" for p in programs[1:] for b in p.bodies)


def test_tied_embeddings_are_one_parameter_on_two_stages() -> None:
    plan = gpt(dp=2, pp=2)
    assert [sum(s.name == "wte.weight" for s in p.shards) for p in plan.programs] == [1, 1]
    for program in plan.programs:
        body = next(b for b in program.bodies if b.name == "reducer")
        groups = [op.attrs["group"] for op in body.ops[:2]]
        assert groups == [Group(ranks=(0, 2)), Group(axes=("dp",))]
    one = gpt(dp=2)
    assert sum(s.name == "wte.weight" for s in one.programs[0].shards) == 1


def test_expert_ranks_are_a_part_of_the_replicas() -> None:
    plan = build("mixtral-8x7b", layers=1, dp=4, ep=2, tp=2, cp=2)
    # Neighbours along ep read one microbatch together, so the batch is divided along edp alone.
    assert plan.replica_axes == ("edp",)
    assert plan.programs[0].axes == (("edp", 2, 8), ("ep", 2, 4), ("cp", 2, 2), ("tp", 2, 1))


@pytest.mark.parametrize(("stages", "parts", "microbatches"), [(2, 2, 2), (2, 3, 6), (4, 2, 8)])
def test_an_interleaved_stage_does_everything_once_forward_before_backward(
    stages: int, parts: int, microbatches: int
) -> None:
    for stage in range(stages):
        done = order(stage, stages, parts, microbatches)
        mine = range(stage, stages * parts, stages)
        assert sorted(done) == sorted(
            Work(forward, part, microbatch)
            for forward in (True, False)
            for part in mine
            for microbatch in range(microbatches)
        )
        place = {work: i for i, work in enumerate(done)}
        assert all(
            place[work._replace(forward=True)] < place[work] for work in done if not work.forward
        )
    # The last stage warms up with all its parts but one, then alternates.
    last = [work.forward for work in order(stages - 1, stages, parts, microbatches)]
    assert last[: (parts - 1) * stages + 3] == [True] * ((parts - 1) * stages + 1) + [False, True]


def test_an_interleaved_stage_keeps_its_layers_apart() -> None:
    plan = llama(**VIRTUAL)
    layers = [
        sorted({s.name.split(".")[1] for s in p.shards if s.name.startswith("layers.")})
        for p in plan.programs
    ]
    assert layers == [["0", "2"], ["1", "3"]]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero": 4}, "zero: expected one of 0, 1, 2, 3, found 4"),
        (
            {"zero": 1},
            "zero 1 divides over replicas, but dp and cp are 1: expected dp or cp of at least 2",
        ),
        (
            {"dp": 3, "ep": 2},
            "dp 3 is not divisible by ep 2: experts are divided over data-parallel ranks",
        ),
        (
            {"dp": 2, "ep": 2},
            "llama3-8b: ep is 2, but this architecture has no experts: expected ep 1",
        ),
        ({"virtual_stages": 2}, "virtual_stages is 2 with pp 1, expected pp of at least 2"),
        (
            {"virtual_stages": 2, "pp": 2, "microbatches": 3},
            "with virtual stages microbatches go through in rounds of pp: expected a multiple of 2 "
            "microbatches, found 3",
        ),
        (
            {"virtual_stages": 2, "pp": 2, "microbatches": 2},
            "llama3-8b: 2 layers cannot fill 2 pipeline stages of 2 parts each",
        ),
        (
            {"pp": 2, "microbatches": 500_001},
            "llama3-8b: 2 layers in 2 parts with 500001 microbatches each: a plan lists at most "
            "1000000 of both",
        ),
        (
            {"layers": 10**12},
            "llama3-8b: 1000000000000 layers in 1 parts with 1 microbatches each: a plan lists at "
            "most 1000000 of both",
        ),
        ({"cp": 3}, "llama3-8b: sequence 8 is not divisible by cp 3"),
        (
            {"cp": 4, "tp": 4, "kv_heads": 4, "sequence_parallel": True},
            "llama3-8b: sequence 8 is not divisible by cp 4 times tp 4",
        ),
        ({"loss": "max"}, "loss: expected one of mean, sum, token-mean, found 'max'"),
        ({"sequence_parallel": 1}, "sequence_parallel: expected true or false, found 1"),
        (
            {"zero": 1, "dp": 3},
            "llama3-8b: zero 1 divides tok_embeddings.weight, of which a rank holds [32, 16], over "
            "3 ranks: expected a dimension that they divide",
        ),
    ],
)
def test_what_cannot_be_divided_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        build("llama3-8b", **{**COMMON, **SIZES["llama3-8b"], **settings})
    assert str(error.value) == message
