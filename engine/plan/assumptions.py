"""What a plan by itself assumes: every verdict on it prints these sentences, and its certificate
has to name them.  A proof is worth what it assumes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.expectations import PARTIAL
from shardproof.engine.plan.ir import INPUT_KINDS, Plan

#: What an expectation is about.
CONCLUSIONS: Final = "conclusions"

#: Where an assumption stands that the user states.
ASSUME: Final = "--assume"

#: How the sentence begins that says what the user expected to be concluded; it assumes nothing.
EXPECTED: Final = "expected among the conclusions (--assume): "

#: What assumptions are about that say how the batch is cut, and how losses combine.
BATCH: Final = "batch"
LOSSES: Final = "loss"


def statements(plan: Plan, *, chosen: bool = False) -> tuple[Assumption, ...]:
    """Every assumption under which a verdict on ``plan`` holds, its notes included.

    Example: of a plan with two replicas of two microbatches each, among others, "the batch is cut
    into 4 slices of equal size; microbatch m of replica r reads slice 2r + m".

    ``chosen``: how the losses combine is stated with ``--assume``, not read in the plan.
    """
    parameters = {s.name for s in plan.single.shards if s.trainable}
    buffers = sorted({s.name for s in plan.single.shards if not s.trainable and not s.kind})
    replicas = _replicas(plan)
    slices = replicas * plan.microbatches
    result = [_default("numbers", "numbers are real: rounding and casts change nothing")]
    if parameters:
        equal = (
            f"the {len(parameters)} parameters are equal on both sides by full name and shape; "
            "every rank holds the part that its shard says"
        )
        result.append(_default("parameters", equal))
    if buffers:
        equal = f"buffers and tables are equal on both sides by name: {some(buffers)}"
        result.append(_default("buffers", equal))
    result += _inputs(plan)
    loads = any(op.name == "load_batch" for body in plan.single.bodies for op in body.ops)
    if slices > 1 and (loads or not plan.expectations):
        place = _place(replicas, plan.microbatches)
        cut = f"the batch is cut into {slices} slices of equal size; {place}"
        result.append(_default(BATCH, cut))
    elif loads or not plan.expectations:
        result.append(_default(BATCH, "both sides read the same batch"))
    notes = [Assumption("stated", "specification", "the plan", note) for note in plan.notes]
    if plan.expectations:
        return (*result, *_expected(plan), *notes, *plan.assumed)
    combined = (
        f"the single-device loss is the {plan.loss} of the losses of all replicas and "
        f"microbatches{' (--assume)' if chosen else ''}; the incoming gradient of each is "
        f"{_share(plan, slices)}"
    )
    result.append(
        Assumption("stated", LOSSES, ASSUME, combined) if chosen else _default(LOSSES, combined)
    )
    return (*result, *notes, *plan.assumed)


def _inputs(plan: Plan) -> list[Assumption]:
    """What named inputs are, and the integers that they may hold."""
    shards = {s.name: s for s in plan.single.shards if s.kind or s.domain is not None}
    result = []
    for kind in INPUT_KINDS[1:]:
        names = sorted(name for name, shard in shards.items() if shard.kind == kind)
        if names:
            text = (
                f"inputs ({kind}) are equal on both sides by name and full shape, and every rank "
                f"holds the part that its box says: {some(names)}"
            )
            result.append(_default(kind, text))
    for name, shard in sorted(shards.items()):
        if shard.domain is not None:
            low, high = shard.domain
            text = f"every entry of {name} is an integer from {low} to {high - 1}"
            result.append(Assumption("stated", name, "the plan", text))
    return result


def _expected(plan: Plan) -> list[Assumption]:
    """What a plan's own table of expectations takes for granted, and leaves out."""
    result = []
    known = any(assumed.about == LOSSES for assumed in plan.assumed)
    if any(program.seeds for program in (plan.single, *plan.programs)) and not known:
        share = _share(plan, _replicas(plan) * plan.microbatches)
        result.append(_default(LOSSES, f"the incoming gradient of every loss is {share}"))
    partial = [
        (f"{row.kind} {row.name}", axis)
        for row in plan.expectations
        if row.kind != PARTIAL
        for addend in row.parallel
        for axis, how in addend.over
        if how == "partial"
    ]
    for what, axis in dict.fromkeys(partial):
        text = f"{what} is partial along {axis}: nothing in the plan adds it up"
        result.append(Assumption("stated", what, "the plan", text))
    gradients = [row for row in plan.expectations if row.kind == "gradient"]
    if any(row.single for row in gradients):
        text = (
            "gradients are held against those that the single-device program computes, not against "
            "the derivative of its forward"
        )
        result.append(_default("gradients", text))
    if plan.expectations and not gradients and any(s.trainable for s in plan.single.shards):
        result.append(_default("gradients", "no gradients are compared"))
    return result


def _default(about: str, text: str) -> Assumption:
    return Assumption("default", about, "", text)


def stated_orders(plan: Plan) -> tuple[Assumption, ...]:
    """The assumption that a plan itself makes where it states the order of a group.

    Example: of a plan whose all-gathers have the attribute ``position``, "gathers join their parts
    in the positions that the plan states"; of others nothing.
    """
    named = any(
        "position" in op.attrs
        for program in plan.programs
        for body in program.bodies
        for op in body.ops
    )
    text = "gathers join their parts in the positions that the plan states"
    return (Assumption("stated", "groups", "the plan", text),) if named else ()


def expectation(names: Iterable[str]) -> Assumption:
    """What the user expected to be concluded, as it is printed among the assumptions.

    Example: of ``["norm.weight"]``, "expected among the conclusions (--assume): norm.weight".
    """
    return Assumption("stated", CONCLUSIONS, ASSUME, EXPECTED + some(names))


def some(names: Iterable[str], most: int = 4) -> str:
    """The first few names, and how many more there are.

    Example: of 30 names ``0, 1, 2, 3 and 26 more``; of two both.
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _replicas(plan: Plan) -> int:
    """Along the replica axes, as the program with the most of them has it."""
    return max(prod(p.extents.get(a, 1) for a in plan.replica_axes) for p in plan.programs)


def _share(plan: Plan, slices: int) -> str:
    if plan.loss == "mean" and slices > 1:
        return f"1/{slices} of the single-device one"
    return "the single-device one"


def _place(replicas: int, microbatches: int) -> str:
    """Which slice is read where."""
    if replicas == 1:
        return "microbatch m reads slice m"
    if microbatches == 1:
        return "replica r reads slice r"
    return f"microbatch m of replica r reads slice {microbatches}r + m"
