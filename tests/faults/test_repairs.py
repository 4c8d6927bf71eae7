"""Repairs that findings name: with them the plan is proved; what does not help is never shown."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.diagnosis.outcome import diagnosed
from shardproof.diagnosis.repair import trial
from shardproof.diagnosis.search import MOST_ROWS, MOST_TRIES, Diagnosis
from shardproof.engine.plan.ir import Body, Group, Op, Plan
from shardproof.frontends.zoo import build
from shardproof.partition.stages.partition import partition
from tests.faults.plans import (
    apart_llama,
    assert_proved,
    attrs,
    edit_body,
    edit_op,
    exchanged,
    find,
    identity,
    llama,
    named,
    verify,
)

FEED_FORWARD, ATTENTION = "layers.0.feed_forward", "layers.0.attention"


def repeated(op: Op) -> Op:
    return replace(op, inputs=(*op.inputs, op.inputs[0]))


def alone(plan: Plan, nth: int) -> Plan:
    """A rank by rank all-reduce that is an identity on both ranks."""
    for program in (0, 1):
        plan = edit_op(plan, "all_reduce", identity, nth=nth, program=program)
    return plan


def no_reducer(plan: Plan, nth: int) -> Plan:
    """The reducer forgets one of its gradients."""

    def within(body: Body) -> Body:
        gone = body.reduced[nth]
        ops = tuple(op for op in body.ops if op.inputs != gone[:1])
        left = tuple(r for r in body.reduced if r != gone)
        numbers = sorted({v for r in left for v in r[:2]})
        new = {v: n for n, v in enumerate(numbers)}
        return replace(
            body,
            values=tuple(body.values[v] for v in numbers),
            ops=tuple(
                replace(
                    op,
                    inputs=tuple(new[v] for v in op.inputs),
                    outputs=tuple(new[v] for v in op.outputs),
                )
                for op in ops
            ),
            reduced=tuple((new[a], new[b], s) for a, b, s in left),
        )

    return edit_body(plan, 0, "reducer", within)


def reduced_twice(plan: Plan) -> Plan:
    """The result of the feed-forward is reduced once more."""

    def within(body: Body) -> Body:
        number = find(body, "all_reduce", 0, FEED_FORWARD)
        op, between = body.ops[number], len(body.values)
        again = replace(op, inputs=(between,))
        return replace(
            body,
            values=(*body.values, body.values[op.outputs[0]]),
            ops=(
                *body.ops[:number],
                replace(op, outputs=(between,)),
                again,
                *body.ops[number + 1 :],
            ),
        )

    return edit_body(plan, 0, "forward", within)


CASES: dict[str, tuple[Plan, str]] = {
    "reduction missing on both ranks": (
        alone(apart_llama(), 2),
        "an all-reduce over ranks [0, 1] in place of identity after linear in "
        "`layers.0.feed_forward",
    ),
    "reduction left out along a mesh axis": (
        edit_op(llama(tp=2), "all_reduce", identity, nth=2),
        "an all-reduce over ranks [0, 1] (axis tp) in place of identity after linear in `layers.0.feed_forward",
    ),
    "reduction over the wrong axis": (
        edit_op(llama(dp=2, tp=2), "all_reduce", attrs(group=Group(axes=("dp",))), nth=2),
        "an all-reduce over ranks [0, 1] (axis tp) in place of all-reduce",
    ),
    "reduction twice": (
        reduced_twice(llama(tp=2)),
        "no communication in place of all-reduce",
    ),
    "a constant": (
        edit_op(llama(), "rms_norm", attrs(eps=Fraction(1, 2))),
        "in place of 1/2 in rms_norm in `layers.0",
    ),
    "a scale": (
        edit_op(llama(tp=2), "div", attrs(other=Fraction(4))),
        "other 2 in place of 4 in div in `layers.0.attention",
    ),
    "gradients of a rotation reversed": (
        edit_op(llama(kv_heads=4), "apply_rotary_emb", exchanged(3, 4), body="backward"),
        "gradients 0 and 1 of the backward of apply_rotary_emb",
    ),
    "an addend twice": (
        edit_op(llama(), "add_n", repeated, body="backward"),
        "added once, not twice",
    ),
    "a parameter that replicas do not reduce": (
        no_reducer(llama(dp=2), 2),
        "an all-reduce of the gradient of",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_with_the_repair_that_is_named_the_plan_is_proved(name: str) -> None:
    plan, says = CASES[name]
    result = partition(plan)
    (finding, *more) = diagnosed(result, None)
    assert says in finding.repair, finding
    assert not more
    search = Diagnosis(result)
    assert search.run()
    assert 1 <= search.tries <= MOST_TRIES
    assert search.rows <= MOST_ROWS
    assert_proved(search.state.plan)


def test_a_refuted_plan_names_its_repair_and_a_counterexample() -> None:
    result = verify(CASES["a constant"][0])
    assert result.verdict == "refuted"
    first = result.findings[0]
    assert first.repair.startswith("holds with eps about 1e-05 in place of 1/2")
    assert first.counterexample
    assert any(d.expected != d.actual for d in first.counterexample)
    assert all(not f.repair for f in assert_proved(llama()).findings)


def test_what_no_candidate_puts_right_gets_no_repair() -> None:
    plan = edit_op(llama(), "silu", named("sigmoid"))
    result = verify(plan)
    assert result.verdict == "refuted"
    assert all(not f.repair for f in result.findings), result.findings


def test_two_faults_in_two_layers_are_two_findings() -> None:
    plan = edit_op(llama(layers=2), "rms_norm", attrs(eps=Fraction(1, 2)), layer="layers.0")
    plan = edit_op(plan, "div", attrs(other=Fraction(4)), layer="layers.1.attention")
    result = verify(plan)
    assert result.verdict == "refuted"
    first, second = (f for f in result.findings if f.kind == "mismatch")
    assert (first.operator, first.layer) == ("rms_norm", "layers.0")
    assert (second.operator, second.layer) == ("div", "layers.1.attention")
    assert "assuming that rms_norm in layers.0 is put right" in second.message
    for finding, says in ((first, "eps about 1e-05"), (second, "other 2 in place of 4")):
        assert says in finding.repair
        assert finding.repair.endswith("together with the other repair named here")


def test_the_same_fault_in_every_layer_is_one_finding() -> None:
    plan = llama(tp=2, layers=3)
    for layer in range(3):
        where = f"layers.{layer}.feed_forward"
        plan = edit_op(plan, "all_reduce", identity, layer=where)
    result = verify(plan)
    assert result.verdict == "refuted"
    (found,) = (f for f in result.findings if f.kind == "mismatch")
    assert found.layers == tuple(f"layers.{n}.feed_forward" for n in range(3))
    assert found.layer == ", ".join(found.layers)
    assert found.message.startswith(f"add in {found.layer} on ranks [0, 1]: its input ")
    assert (found.cause, found.group) == ("missing reduction", 1)
    assert "and the same in layers.1.feed_forward" in found.repair
    assert "together with" not in found.repair


def test_the_same_operator_with_another_fault_is_another_finding() -> None:
    plan = edit_op(llama(layers=2), "rms_norm", attrs(eps=Fraction(1, 2)), layer="layers.0")
    plan = edit_op(plan, "rms_norm", attrs(eps=Fraction(1, 4)), layer="layers.1")
    result = verify(plan)
    found = [f for f in result.findings if f.kind == "mismatch"]
    assert [(f.layer, f.group) for f in found] == [("layers.0", 1), ("layers.1", 2)]
    assert ["in place of 1/2" in f.repair for f in found] == [True, False]
    assert all(f.repair for f in found)


def test_who_agrees_and_what_it_was_held_against_are_named() -> None:
    plan = edit_op(apart_llama(), "rms_norm", attrs(eps=Fraction(1, 2)), program=1)
    result = verify(plan)
    first = result.findings[0]
    assert (first.ranks, first.agreeing_ranks) == ((1,), (0,))
    assert first.reference.startswith("rms_norm")
    assert "with eps about 1e-05 (here 1/2)" in first.reference
    inside = [d for d in first.counterexample if "the result of rms_norm" in d.tensor]
    assert [(d.ranks, d.expected == d.actual) for d in inside] == [((0,), True), ((1,), False)]
    assert all(d.shard == "all of it" for d in inside)
    ends = [d for d in first.counterexample if d not in inside]
    assert ends
    assert {d.tensor.split()[0] for d in ends} <= {"loss", "gradient"}


def test_past_a_fault_without_repair_its_result_is_assumed() -> None:
    plan = edit_op(llama(layers=2), "silu", named("sigmoid"), nth=0)
    plan = edit_op(plan, "div", attrs(other=Fraction(4)), layer="layers.1.attention")
    result = verify(plan)
    assert result.verdict == "refuted"
    first, second = (f for f in result.findings if f.kind == "mismatch")
    assert not first.repair
    assert second.layer == "layers.1.attention"
    assert "other 2 in place of 4" in second.repair
    assert second.repair.endswith(f", assuming that {first.operator} in {first.layer} is put right")


def test_what_is_assumed_of_one_layer_is_not_assumed_of_the_next() -> None:
    """The same fault without repair in two layers, and another one between them."""
    plan = llama(layers=2)
    for layer in range(2):
        plan = edit_op(plan, "silu", named("sigmoid"), layer=f"layers.{layer}.feed_forward")
    plan = edit_op(plan, "div", attrs(other=Fraction(4)), layer="layers.1.attention")
    found = [f for f in verify(plan).findings if f.group]
    assert [(f.operator, f.group) for f in found] == [("mul", 1), ("div", 2)], found
    assert found[0].layers == ("layers.0.feed_forward", "layers.1.feed_forward")
    assert found[1].layers == ("layers.1.attention",)
    assert not found[0].repair
    assert found[1].repair.startswith("holds with other 2 in place of 4 in div")
    assert found[1].repair.endswith(f"assuming that mul in {found[0].layer} is put right")


def latent(*layers: int) -> Plan:
    """Three layers with latent attention, where keys are copied after a product as well; without
    the reduction of attention in the layers that are named."""
    sizes = {"hidden": 16, "heads": 4, "kv_rank": 6, "nope": 4, "rope": 2, "value": 4, "ffn": 12}
    experts = {"experts": 4, "chosen": 2, "expert_ffn": 6, "dense_layers": 3}
    plan = build("deepseek-16b", layers=3, vocabulary=16, sequence=4, tp=2, **sizes, **experts)
    for layer in layers:
        plan = edit_op(plan, "all_reduce", identity, layer=f"layers.{layer}.attn")
    return plan


def test_the_same_elsewhere_is_what_makes_the_same_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two tries: the repair, and the same where it is missing, not where a copy is right."""
    monkeypatch.setattr("shardproof.diagnosis.search.MOST_TRIES", 2)
    (found,) = (f for f in verify(latent(1, 2)).findings if f.group)
    assert found.layers == ("layers.1.attn", "layers.2.attn")
    assert found.repair.endswith("after linear in `layers.1.attn`, and the same in layers.2.attn")


def test_another_fault_elsewhere_is_another_cause() -> None:
    plan = edit_op(latent(1), "div", attrs(other=Fraction(9)), layer="layers.2.attn")
    found = [f for f in verify(plan).findings if f.group]
    assert [(f.operator, f.layers) for f in found] == [
        ("add", ("layers.1.attn",)),
        ("div", ("layers.2.attn",)),
    ]


WRONG_AXIS = "reduction over the wrong axis"
NO_MORE = "(repairs were tried up to the bound on work)"


def bounded(monkeypatch: pytest.MonkeyPatch, one: int, every: int, products: int = 10_000) -> None:
    bounds = {"MOST_NODES": one, "MOST_NODES_IN_ALL": every, "MOST_PRODUCTS_IN_ALL": products}
    for name, most in bounds.items():
        monkeypatch.setattr(trial, name, most)
    for name in ("TIMES", "TIMES_IN_ALL"):
        monkeypatch.setattr(trial, name, 0)


def test_a_repair_that_makes_many_values_of_its_own_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the bound eight of the twelve make up to 469; the repair makes none, and what was
    left behind by those that were ended does not count for it."""
    plan, says = CASES[WRONG_AXIS]
    bounded(monkeypatch, 20, 10_000)
    search = Diagnosis(partition(plan))
    own = len(search.result.nodes)
    (found,) = diagnosed(search.result, None, search=search)
    assert search.ended
    assert not search.exhausted
    # One node tells that there is no room.
    assert len(search.state.nodes) - own <= search.tries * 21
    assert says in found.repair
    assert NO_MORE not in found.message
    assert_proved(search.state.plan)


@pytest.mark.parametrize(("values", "products"), [(300, 10_000), (10_000, 1)])
def test_a_search_ends_where_all_repairs_together_took_too_much(
    monkeypatch: pytest.MonkeyPatch, values: int, products: int
) -> None:
    """Of values that are none of the single device's, or of readings of products: then one try."""
    plan, _ = CASES[WRONG_AXIS]
    bounded(monkeypatch, 200, values, products)
    search = Diagnosis(partition(plan))
    found = diagnosed(search.result, None, search=search)
    assert search.exhausted
    assert search.tries == (1 if products == 1 else 2)
    assert not any(f.repair for f in found)
    assert found[-1].message.endswith(NO_MORE)
