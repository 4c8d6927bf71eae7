"""What a plan by itself assumes: every verdict on it prints these sentences, and its certificate
has to name them.  A proof is worth what it assumes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from engine.assumption import Assumption
from engine.ir import Plan

#: What an expectation is about.
CONCLUSIONS: Final = "conclusions"

#: Where an assumption stands that the user states.
ASSUME: Final = "--assume"

#: How the sentence begins that says what the user expected to be concluded; it assumes nothing.
EXPECTED: Final = "expected among the conclusions (--assume): "


def statements(plan: Plan, *, chosen: bool = False) -> tuple[Assumption, ...]:
    """Every assumption under which a verdict on ``plan`` holds, its notes included.

    ``chosen``: how the losses combine is stated with ``--assume``, not read in the plan.
    """
    parameters = {s.name for s in plan.single.shards if s.trainable}
    buffers = sorted({s.name for s in plan.single.shards if not s.trainable})
    replicas = _replicas(plan)
    slices = replicas * plan.microbatches
    found = [
        _default("numbers", "numbers are real: rounding and casts change nothing"),
        _default(
            "parameters",
            f"the {len(parameters)} parameters are equal on both sides by full name and shape; "
            "every rank holds the part that its shard says",
        ),
    ]
    if buffers:
        equal = f"buffers and tables are equal on both sides by name: {some(buffers)}"
        found.append(_default("buffers", equal))
    if slices > 1:
        place = _place(replicas, plan.microbatches)
        cut = f"the batch is cut into {slices} slices of equal size; {place}"
        found.append(_default("batch", cut))
    else:
        found.append(_default("batch", "both sides read the same batch"))
    combined = (
        f"the single-device loss is the {plan.loss} of the losses of all replicas and "
        f"microbatches{' (--assume)' if chosen else ''}; the incoming gradient of each is "
        f"{_share(plan, slices)}"
    )
    found.append(
        Assumption("stated", "loss", ASSUME, combined) if chosen else _default("loss", combined)
    )
    found += [Assumption("stated", "specification", "the plan", note) for note in plan.notes]
    return (*found, *plan.assumed)


def _default(about: str, text: str) -> Assumption:
    return Assumption("default", about, "", text)


def stated_orders(plan: Plan) -> tuple[Assumption, ...]:
    """The assumption that a plan itself makes where it states the order of a group."""
    named = any(
        "position" in op.attrs
        for program in plan.programs
        for body in program.bodies
        for op in body.ops
    )
    text = "gathers join their parts in the positions that the plan states"
    return (Assumption("stated", "groups", "the plan", text),) if named else ()


def expectation(names: Iterable[str]) -> Assumption:
    """What the user expected to be concluded, as it is printed among the assumptions."""
    return Assumption("stated", CONCLUSIONS, ASSUME, EXPECTED + some(names))


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
