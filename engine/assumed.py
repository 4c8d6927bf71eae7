"""What a plan by itself assumes, in words: every verdict on it prints these sentences, and its
certificate has to name them.  A proof is worth what it assumes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from engine.ir import INPUT_KINDS, Plan

#: How the sentence begins that says what the user expected to be concluded; it assumes nothing.
EXPECTED: Final = "expected among the conclusions (--assume): "


def statements(plan: Plan, *, chosen: bool = False) -> tuple[str, ...]:
    """Every assumption under which a verdict on ``plan`` holds, its notes included, each a
    sentence.  ``chosen``: how the losses combine is the user's word, not the plan's."""
    parameters = {s.name for s in plan.single.shards if s.trainable}
    buffers = sorted({s.name for s in plan.single.shards if not s.trainable and not s.kind})
    replicas = _replicas(plan)
    slices = replicas * plan.microbatches
    lines = [
        "numbers are real: rounding and casts change nothing",
        f"the {len(parameters)} parameters are equal on both sides by full name and shape; "
        "every rank holds the part that its shard says",
    ]
    if buffers:
        lines.append(f"buffers and tables are equal on both sides by name: {some(buffers)}")
    lines += _inputs(plan)
    loads = any(op.name == "load_batch" for body in plan.single.bodies for op in body.ops)
    if slices > 1 and (loads or not plan.expectations):
        place = _place(replicas, plan.microbatches)
        lines.append(f"the batch is cut into {slices} slices of equal size; {place}")
    elif loads or not plan.expectations:
        lines.append("both sides read the same batch")
    if plan.expectations:
        return (*lines, *_expected(plan), *plan.notes)
    lines.append(
        f"the single-device loss is the {plan.loss} of the losses of all replicas and "
        f"microbatches{' (--assume)' if chosen else ''}; the incoming gradient of each is "
        f"{_share(plan, slices)}"
    )
    return (*lines, *plan.notes)


def _inputs(plan: Plan) -> list[str]:
    """What named inputs are, and the integers that they may hold."""
    held = {s.name: s for s in plan.single.shards if s.kind or s.domain is not None}
    lines = []
    for kind in INPUT_KINDS[1:]:
        names = sorted(name for name, shard in held.items() if shard.kind == kind)
        if names:
            lines.append(
                f"inputs ({kind}) are equal on both sides by name and full shape, and every rank "
                f"holds the part that its box says: {some(names)}"
            )
    for name, shard in sorted(held.items()):
        if shard.domain is not None:
            low, high = shard.domain
            lines.append(f"every entry of {name} is an integer from {low} to {high - 1}")
    return lines


def _expected(plan: Plan) -> list[str]:
    """What a plan's own table of expectations takes for granted, and leaves out."""
    lines = []
    if any(program.seeds for program in (plan.single, *plan.programs)):
        share = _share(plan, _replicas(plan) * plan.microbatches)
        lines.append(f"the incoming gradient of every loss is {share}")
    partial = [
        (f"{row.kind} {row.name}", axis)
        for row in plan.expectations
        for addend in row.held
        for axis, how in addend.over
        if how == "partial"
    ]
    for what, axis in dict.fromkeys(partial):
        lines.append(f"{what} is partial along {axis}: nothing in the plan adds it up")
    gradients = [row for row in plan.expectations if row.kind == "gradient"]
    if any(row.single for row in gradients):
        lines.append(
            "gradients are held against those that the single-device program computes, not against "
            "the derivative of its forward"
        )
    if plan.expectations and not gradients and any(s.trainable for s in plan.single.shards):
        lines.append("no gradients are compared")
    return lines


def stated_orders(plan: Plan) -> tuple[str, ...]:
    """The assumption that a plan itself makes where it states the order of a group."""
    named = any(
        "position" in op.attrs
        for program in plan.programs
        for body in program.bodies
        for op in body.ops
    )
    return ("gathers join their parts in the positions that the plan states",) if named else ()


def some(names: Iterable[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
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
