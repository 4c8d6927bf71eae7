"""Plans as text: what is printed is parsed again, and what is not understood is refused by line."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from benchmarks.random_programs.programs import make
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import (
    ACCUMULATED,
    Addend,
    Body,
    Call,
    Expectation,
    Group,
    Op,
    Plan,
    Program,
    Shard,
    Source,
    Value,
    whole,
)
from shardproof.engine.plan_files.text import plan_text
from shardproof.engine.plan_files.text_parser import parse_plan
from shardproof.engine.plan_files.wellformed import check
from shardproof.frontends.zoo import build

EXAMPLE = """\
plan "column parallel" loss=sum microbatches=1 replicas=()
note "by hand"

single "one"
  parameter "w" float32[4, 8]
  body 0 "forward"
    %1: float32[4, 8] = shard 0
    %0: float32[2, 8] "x" = load_batch()
    %2: float32[2, 4] = linear(%0, %1)
    %3: float32[1] = sum(%2)
    output %3
    loss %3
  call 0() -> 0

program "ranks" axes: tp=2*1
  parameter "w" float32[2, 8] of [4, 8] at (<2*tp>, <0>)
  body 0 "forward"
    %1: float32[2, 8] = shard 0
    %0: float32[2, 8] "x" = load_batch()
    %2: float32[2, 2] = linear(%0, %1) @ "" "layers.0" "model.py:7"
    %3: float32[1] = sum(%2)
    %4: float32[1] = all_reduce(%3) {group=group(ranks=(), axes=(tp)), op="sum"}
    output %4
    loss %4
  call 0() -> 0 microbatch=0
"""


def bare(plan: Plan) -> Plan:
    """Without what the text leaves out."""

    def program(held: Program) -> Program:
        return replace(held, bodies=tuple(replace(body, claims=()) for body in held.bodies))

    return replace(
        plan,
        single=program(plan.single),
        programs=tuple(map(program, plan.programs)),
        recorded=(),
        rounded=(),
    )


def every_field() -> Plan:
    """A plan, of no meaning, in which every field has a value."""
    attrs = {
        "a": None, "b": True, "c": 'say "so"\n', "d": -3, "e": Fraction(-1, 3), "f": affine(4, {"tp": -2}),
        "g": Group((0, 3), ("dp", "tp")), "h": (1, (Fraction(2), "x"), ()),
    }  # fmt: skip
    values = tuple(Value((n,), "int64" if n else "float32", "" if n else "x") for n in range(5))
    op = Op("some_op", (0, -1), (3, 4), attrs, True, Source("cell 1", "layers.0", "model.py:7"))
    body = Body(
        "b", values, (op, Op("send", (3,), (), {"peer": 1})), (0,), (3,), ((1, 0),), (), -1, ((4, 0),), ((2, 3, 0),), (3,)
    )  # fmt: skip
    back = Body(
        "back", (Value((1,)), Value((2,))), (), saved=((0, 3),), forward_body=0, results=(0,)
    )
    shards = (
        Shard("w", (8, 2), (4, 2), (affine(0, {"dp": 4}), ZERO), updated_as=0),
        whole("m", (3,), trainable=False),
        Shard("ids", (4,), (4,), (ZERO,), "int64", False, kind="batch", domain=(-1, 9)),
    )
    program = Program(
        "p",
        (body, back),
        (Call(0, (7,), (8, 9), 1), Call(1)),
        shards,
        2,
        (("dp", 2, 4),),
        ((7, 8),),
    )
    rows = (
        Expectation("output", "y", (Addend(0, 0, 3),), (Addend(0, 0, 3, Fraction(1, 2), (("dp", "sum"), ("mb", "mean"))),), (ZERO,)),
        Expectation("gradient", "w", (), (Addend(0, ACCUMULATED, 0),), required=False),
    )  # fmt: skip
    return Plan("all", program, (program,), 2, ("dp",), "mean", ("a note",), expectations=rows)


def test_the_example_is_a_plan() -> None:
    plan = parse_plan(EXAMPLE)
    check(plan)
    assert plan.programs[0].shards[0].offset == (affine(0, {"tp": 2}), ZERO)
    assert plan.programs[0].bodies[0].ops[-1].attrs["group"] == Group(axes=("tp",))
    assert plan_text(plan) == EXAMPLE


def test_every_field_is_kept() -> None:
    plan = every_field()
    assert parse_plan(plan_text(plan)) == plan


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_kept(seed: int) -> None:
    made = make(seed)
    if made is not None:
        assert parse_plan(plan_text(made.plan)) == made.plan


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-16b"])
def test_plans_of_the_zoo_are_kept(model: str) -> None:
    plan = build(model, tp=2, pp=2, dp=2, microbatches=2, layers=2)
    text = plan_text(plan)
    assert parse_plan(text) == bare(plan)
    assert plan_text(parse_plan(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loss=sum", "lost=sum", "text:1: expected 'loss', found 'lost'"),
        ("%1: float32[4, 8] = shard 0", "%1 = shard 0", "text:7: expected the type of %1, found '='"),
        ("output %3", "output %4", "value 4"),
        ("at (<2*tp>, <0>)", "at (<2*tp>, 0)", "text:16: expected '<', found '0'"),
        ("%2: float32[2, 2]", "%2: float32[2, 2", "text:20: expected ']', found '='"),
        ('group=group(', "group=grope(", "text:22: expected 'group', found 'grope'"),
        ("body 0", "body 1", "text:6: expected body 0, found '1'"),
        ("parameter \"w\" float32[4, 8]", "weight \"w\" float32[4, 8]", "text:5: expected a parameter, another input, or a body"),
        ("tp=2*1", "tp=2*1 2", "text:15: expected an axis, found '2'"),
        ("microbatches=1", "microbatches=1000000000000000000000", "text:1: expected a number of at most 18 digits"),
        ("linear(%0, %1)\n", "linear(%0, %1) ?\n", "text:9: expected the end of the line, found '?'"),
        ("single \"one\"", "program \"one\"", "text: expected one single-device program, found 0"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_line(old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    changed = EXAMPLE.replace(old, new, 1)
    with pytest.raises(InvalidInput) as caught:
        check(parse_plan(changed))
    found = f"{caught.value.where}: {caught.value.message}"
    assert message in found
