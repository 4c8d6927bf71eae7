"""Shards, vocabulary ranges and tensor-parallel communication: faults on one rank are found there.

The plan is a tiny Llama over two tensor-parallel ranks with a program each.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Group, Plan, Shard
from tests.faults.plans import (
    OpEdit,
    apart_llama,
    assert_proved,
    assert_refuted,
    attrs,
    edit_body,
    edit_op,
    edit_shard,
    identity,
    llama,
    named,
    scaled_input,
    twice,
    verify,
)

ATTENTION, FEED_FORWARD = "layers.0.attention", "layers.0.feed_forward"


def on(rank: int, name: str, change: OpEdit, nth: int = 0, body: str = "forward") -> Plan:
    return edit_op(apart_llama(), name, change, nth=nth, body=body, program=rank)


def on_both(name: str, change: OpEdit, nth: int = 0, body: str = "forward") -> Plan:
    return edit_op(on(0, name, change, nth, body), name, change, nth=nth, body=body, program=1)


def moved(plan: Plan, rank: int, name: str, *offset: int) -> Plan:
    """A shard that claims to be another part of its parameter."""

    def change(shard: Shard) -> Shard:
        return replace(shard, offset=tuple(affine(start) for start in offset))

    return edit_shard(plan, rank, name, change)


def test_ranks_apart_are_proved_as_the_family_is() -> None:
    found, family = assert_proved(apart_llama()), assert_proved(llama(tp=2))
    assert found.counts.ranks == family.counts.ranks == 2
    assert found.counts.parallel_operators == family.counts.parallel_operators


# -- one rank at fault -----------------------------------------------------------------------------

ON_RANK_1 = {
    "embedding starts one row early": (
        on(1, "embedding", attrs(start=15)),
        "embedding",
        "tok_embeddings",
    ),
    "embedding has the other range": (
        on(1, "embedding", attrs(start=0)),
        "embedding",
        "tok_embeddings",
    ),
    "target picked from the other range": (on(1, "pick", attrs(start=0)), None, "loss"),
    "a sigmoid for a silu": (on(1, "silu", named("sigmoid")), None, FEED_FORWARD),
    "another epsilon": (on(1, "rms_norm", attrs(eps=Fraction(2))), "rms_norm", "layers.0"),
    "another scale": (on(1, "div", attrs(other=Fraction(4))), "div", ATTENTION),
    "a gradient halved": (
        scaled_input(apart_llama(), "silu", Fraction(1, 2), body="backward", program=1),
        None,
        FEED_FORWARD,
    ),
    "targets' gradient in the other range": (
        on(1, "cross_entropy_grad", attrs(start=0), body="backward"),
        None,
        None,
    ),
}


@pytest.mark.parametrize("name", ON_RANK_1)
def test_a_fault_on_one_rank_is_found_on_that_rank(name: str) -> None:
    plan, operator, layer = ON_RANK_1[name]
    found = assert_refuted(plan, kind="mismatch", operator=operator, layer=layer)
    assert 1 in found.findings[0].ranks
    assert operator is None or found.findings[0].ranks == (1,)


def test_a_gradient_that_one_rank_drops_is_found_there() -> None:
    plan = edit_body(apart_llama(), 1, "backward", lambda b: replace(b, gradients=b.gradients[1:]))
    assert_refuted(
        plan,
        kind="conclusion",
        operator="gradient of tok_embeddings.weight",
        ranks=(1,),
        says="never computed",
    )


def test_gradients_of_two_parameters_exchanged_are_refuted() -> None:
    """wk and wv have one shape: 4 and 5 are their shards."""
    other = {4: 5, 5: 4}
    plan = edit_body(
        apart_llama(),
        1,
        "backward",
        lambda b: replace(b, gradients=tuple((v, other.get(s, s)) for v, s in b.gradients)),
    )
    assert_refuted(
        plan, kind="conclusion", operator=f"gradient of {ATTENTION}.wk.weight", ranks=(1,)
    )


# -- shards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operator", "layer", "first", "second"),
    [
        (f"{ATTENTION}.wo.weight", "linear", ATTENTION, (0, 8), (0, 0)),
        pytest.param(
            *(f"{FEED_FORWARD}.w2.weight", "linear", FEED_FORWARD, (0, 12), (0, 0)),
            marks=pytest.mark.slow,
        ),
        ("output.weight", None, "loss", (16, 0), (0, 0)),
    ],
)
def test_swapped_shards_are_refuted_and_located(
    name: str, operator: str | None, layer: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    plan = moved(moved(apart_llama(), 0, name, *first), 1, name, *second)
    assert_refuted(plan, kind="mismatch", operator=operator, ranks=(0, 1), layer=layer)


def test_vocabulary_shards_swapped_together_with_their_ranges_are_proved() -> None:
    plan = moved(moved(apart_llama(), 0, "output.weight", 16, 0), 1, "output.weight", 0, 0)
    for rank, start in ((0, 16), (1, 0)):
        plan = edit_op(plan, "pick", attrs(start=start), program=rank)
        plan = edit_op(
            plan, "cross_entropy_grad", attrs(start=start), program=rank, body="backward"
        )
    assert_proved(plan)


def test_shards_that_overlap_are_refuted() -> None:
    """Both ranks hold the first half: values and coverage are wrong."""
    found = assert_refuted(moved(apart_llama(), 1, f"{ATTENTION}.wq.weight", 0, 0), kind="mismatch")
    assert [c.name for c in found.conclusions if c.kind == "coverage" and not c.holds] == [
        f"{ATTENTION}.wq.weight"
    ]


def test_a_shard_off_by_one_is_refuted_and_one_outside_is_invalid() -> None:
    assert_refuted(moved(apart_llama(), 1, f"{FEED_FORWARD}.w1.weight", 11, 0), kind="mismatch")
    with pytest.raises(InvalidInput, match=r"w1\.weight"):
        verify(moved(apart_llama(), 1, f"{FEED_FORWARD}.w1.weight", 13, 0))


# -- tensor-parallel communication -----------------------------------------------------------------


def test_removing_an_all_reduce_is_refuted_and_located() -> None:
    assert_refuted(
        on_both("all_reduce", identity, 1),
        kind="mismatch",
        operator="add",
        ranks=(0, 1),
        layer=ATTENTION,
        says="still a partial sum: a reduction before it is missing",
    )


def test_removing_an_all_reduce_from_the_family_is_refuted_and_located() -> None:
    plan = edit_op(llama(tp=2), "all_reduce", identity, nth=1)
    assert_refuted(
        plan,
        kind="mismatch",
        operator="add",
        ranks=(0, 1),
        layer=ATTENTION,
        says="still a partial sum",
    )


def test_removing_an_all_reduce_on_one_rank_is_a_contradiction() -> None:
    assert_refuted(
        on(1, "all_reduce", identity, 1),
        kind="unmatched collective",
        operator="all_reduce",
        ranks=(0, 1),
        layer=ATTENTION,
    )


def test_removing_a_backward_all_reduce_is_refuted() -> None:
    found = assert_refuted(
        on_both("all_reduce", identity, 1, "backward"),
        kind="mismatch",
        operator="backward of rms_norm",
        ranks=(0, 1),
        layer="layers.0",
    )
    assert all(c.holds for c in found.conclusions if c.kind == "loss")


def test_an_all_reduce_over_groups_of_one_is_refuted() -> None:
    plan = on(0, "all_reduce", attrs(group=Group(ranks=(0,))), 1)
    plan = edit_op(plan, "all_reduce", attrs(group=Group(ranks=(1,))), nth=1, program=1)
    assert_refuted(plan, kind="mismatch", operator="add", ranks=(0, 1), layer=ATTENTION)


def test_reducing_twice_is_refuted() -> None:
    plan = apart_llama()
    for rank in (0, 1):
        plan = edit_body(plan, rank, "forward", lambda b: twice("all_reduce", b))
    assert_refuted(plan, kind="mismatch", ranks=(0, 1), layer="layers.0")


def test_a_maximum_for_a_sum_and_a_sum_for_a_maximum_are_not_proved() -> None:
    assert_refuted(
        on_both("all_reduce", attrs(op="max"), 1),
        kind="mismatch",
        operator="all_reduce",
        ranks=(0, 1),
        layer=ATTENTION,
    )
    # Any number may be subtracted before exponentials: not wrong, but another program.
    assert verify(on_both("all_reduce", attrs(op="sum"), 3)).verdict != "proved"


def test_sequence_parallel_twins() -> None:
    """The sequence is divided outside tensor-parallel regions; gathered along another dimension
    of equal size it is not."""
    plan = llama(tp=2, sequence_parallel=True)
    assert_proved(plan)
    assert_refuted(
        edit_op(plan, "reduce_scatter", attrs(dim=2), nth=1),
        kind="shape",
        operator="reduce_scatter",
        layer=ATTENTION,
    )


def test_a_loss_on_some_ranks_only_is_enough_and_on_none_is_not() -> None:
    plan = edit_body(apart_llama(), 1, "forward", lambda b: replace(b, losses=()))
    found = assert_proved(plan)
    assert [c.ranks for c in found.conclusions if c.kind == "loss"] == [(0,)]
    none = edit_body(plan, 0, "forward", lambda b: replace(b, losses=()))
    lost = verify(none)
    assert lost.verdict != "proved"
    assert [c.holds for c in lost.conclusions if c.kind == "loss"] == [False]
