"""A proved run whose plan was exchanged for another one, digest and all, is rejected by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Attr, Body, Op, Plan, Program, Shard
from tests.checker.changes import edit_op
from tests.checker.proofs.test_cpc import CHANGES
from tests.checker.record.test_files import CERTIFICATES, FILES, SHARES, TABLE_EDITS, TRUNCATED
from tests.checker.test_tampering import TAMPERINGS

PlanChange = Callable[[Plan], Plan]


def attribute(name: str, *, last: bool = False, **attrs: Attr) -> PlanChange:
    """The first (last) operator of a name with other attributes."""

    def change(op: Op) -> Op:
        assert any(op.attrs.get(key) != value for key, value in attrs.items())
        return replace(op, attrs={**op.attrs, **attrs})

    return lambda plan: edit_op(plan, name, change, last=last)


def operator(name: str, other: str) -> PlanChange:
    return lambda plan: edit_op(plan, name, lambda op: replace(op, name=other))


def swapped(name: str) -> PlanChange:
    """The first operator of a name with its first two operands exchanged."""

    def change(op: Op) -> Op:
        a, b, *rest = op.inputs
        return replace(op, inputs=(b, a, *rest))

    return lambda plan: edit_op(plan, name, change)


def program(change: Callable[[Program], Program]) -> PlanChange:
    return lambda plan: replace(plan, programs=(change(plan.programs[0]), *plan.programs[1:]))


def shards(change: Callable[[tuple[Shard, ...]], tuple[Shard, ...]]) -> PlanChange:
    return program(lambda p: replace(p, shards=change(p.shards)))


def first_cut(held: tuple[Shard, ...], change: Callable[[Shard], Shard]) -> tuple[Shard, ...]:
    """The first shard that differs from rank to rank, changed."""
    number = next(i for i, s in enumerate(held) if any(o.terms for o in s.offset))
    return (*held[:number], change(held[number]), *held[number + 1 :])


def body(change: Callable[[Body], Body]) -> PlanChange:
    return program(lambda p: replace(p, bodies=(change(p.bodies[0]), *p.bodies[1:])))


def moved(shard: Shard) -> Shard:
    """A shard one position further on, where it differs from rank to rank."""
    return replace(shard, offset=tuple(o + affine(1) if o.terms else o for o in shard.offset))


def backward(change: Callable[[Body], Body]) -> PlanChange:
    return program(
        lambda p: replace(p, bodies=tuple(change(b) if b.gradients else b for b in p.bodies))
    )


def renamed(shard: Shard) -> Shard:
    return replace(shard, name=f"{shard.name}.other")


def other_stride(name: str) -> PlanChange:
    """Ranks along an axis get another distance from one another."""
    return program(
        lambda p: replace(p, axes=tuple((n, e, s + 1 if n == name else s) for n, e, s in p.axes))
    )


PLAN_CHANGES: dict[str, tuple[PlanChange, str]] = {
    "pieces that overlap: every rank holds the first": (
        shards(lambda held: first_cut(held, lambda s: replace(s, offset=(affine(0), affine(0))))),
        r"the shards of tok_embeddings\.weight do not cover its \[224, 96\] elements",
    ),
    "pieces that leave a gap": (
        shards(lambda held: first_cut(held, moved)),
        r"shard tok_embeddings\.weight: \[112\*tp \+ 1, \+112\) does not lie in a dimension of 224",
    ),
    "a piece of another parameter": (
        shards(lambda held: first_cut(held, renamed)),
        r"rank 0: tok_embeddings\.weight\.other gets a gradient",
    ),
    "two pieces exchanged": (
        shards(lambda held: (held[1], held[0], *held[2:])),
        r"tok_embeddings\.weight has shape \[112, 96\], its shard freqs_cis",
    ),
    "a parameter that is not trained": (
        shards(lambda held: (replace(held[0], trainable=False), *held[1:])),
        r"rank 0: the gradient of tok_embeddings\.weight is never computed",
    ),
    "another constant": (
        attribute("rms_norm", eps=Fraction(1, 1000)),
        r"rank 0: rms_norm in layers\.0 .*its obligation is sat",
    ),
    "another number of heads": (
        attribute("view", shape=(1, 2, 3)),
        r"rank 0: view in layers\.0\.attention .*attribute shape of operator view",
    ),
    "another operator": (
        operator("silu", "sigmoid"),
        r"rank 0: sigmoid in layers\.0\.feed_forward .*is not the text of template",
    ),
    "an operator without a meaning": (
        operator("silu", "magic"),
        r"operator magic is not declared",
    ),
    "operands exchanged": (
        swapped("linear"),
        r"rank 0: linear in layers\.0\.attention .*cannot be stated",
    ),
    "a sum that is a maximum": (
        attribute("all_reduce", op="max"),
        r"rank 0: all_reduce in tok_embeddings .*is not the text of template",
    ),
    "ranks at other distances": (other_stride("tp"), r"rank 2 runs more than one program"),
    "ranks renamed": (
        program(lambda p: replace(p, base=p.base + 100)),
        r"gradient tok_embeddings\.weight on rank 100 is missing from the run",
    ),
    "a call too few": (
        program(lambda p: replace(p, calls=p.calls[:-1])),
        r"153 lineages for the \d+ tensors of the parallel side",
    ),
    "a call too many": (
        program(lambda p: replace(p, calls=(*p.calls, p.calls[-1]))),
        r"153 lineages for the \d+ tensors of the parallel side",
    ),
    "an operator too few": (
        body(lambda b: replace(b, ops=b.ops[:-1])),
        r"rank 0: forward reads loss\.loss, which nothing has written",
    ),
    "a gradient that is not reported": (
        backward(lambda b: replace(b, gradients=b.gradients[1:])),
        r"backward of embedding in tok_embeddings .*called live, but no conclusion depends on it",
    ),
    "calls in another order": (
        program(lambda p: replace(p, calls=tuple(reversed(p.calls)))),
        r"rank 0: backward reads gradient of loss\.loss, which nothing has written",
    ),
}


@pytest.mark.parametrize("name", PLAN_CHANGES)
def test_a_changed_plan_is_rejected_by_name(name: str, proved: Any, tmp_path: Path) -> None:
    change, message = PLAN_CHANGES[name]
    plan = change(proved.plan)
    assert plan != proved.plan
    parts = proved.copy(plan=plan)
    parts.store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    messages = [str(problem) for problem in found.problems]
    assert any(re.search(message, line) for line in messages), messages


def test_there_are_a_hundred_of_them() -> None:
    """Changed runs and plans that this folder rejects, each with the message that is right."""
    runs = len(TAMPERINGS) + len(PLAN_CHANGES)
    files = len(TABLE_EDITS) + 2 * len(FILES) + len(SHARES) * len(TRUNCATED) + len(CERTIFICATES)
    assert runs >= 75
    assert runs + files + len(CHANGES) >= 150


@pytest.mark.parametrize("message", [m for _, m in (*TAMPERINGS.values(), *PLAN_CHANGES.values())])
def test_every_message_names_something(message: str) -> None:
    """No pattern accepts any message."""
    assert not re.search(message, "solver: the check failed")
    assert len(message) > 5
