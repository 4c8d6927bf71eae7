"""Mutators of what is issued when: calls, slots, microbatches, loss."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from shardproof.engine.plan.ir import Call, Plan
from shardproof.mutation.edit import with_calls, with_program
from shardproof.mutation.table import Mutation, Mutator


def _program(plan: Plan, rng: Random, least: int = 2) -> int | None:
    """A program with so many calls."""
    programs = [p for p, program in enumerate(plan.programs) if len(program.calls) >= least]
    return rng.choice(programs) if programs else None


def _name(plan: Plan, p: int, c: int) -> str:
    program = plan.programs[p]
    return f"call {c} ({program.bodies[program.calls[c].body].name}) of rank {program.base}"


def calls_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """Two calls in each other's place; half the time neighbours.

    Example: "call 3 (backward) of rank 0 and call 4 (reducer) of rank 0 exchanged".
    """
    p = _program(plan, rng)
    if p is None:
        return None
    calls = list(plan.programs[p].calls)
    i = rng.randrange(len(calls) - 1)
    j = i + 1 if rng.random() < 0.5 else rng.choice([k for k in range(len(calls)) if k != i])
    calls[i], calls[j] = calls[j], calls[i]
    what = f"{_name(plan, p, i)} and {_name(plan, p, j)} exchanged"
    return Mutation(with_calls(plan, p, calls), what)


def call_moved(plan: Plan, rng: Random) -> Mutation | None:
    """A call issued earlier, among all ranks or one.

    Example: "call 4 (reducer) of rank 0 issued before call 2", so that gradients are reduced before
    the last of them is there.
    """
    p = _program(plan, rng)
    if p is None:
        return None
    calls = list(plan.programs[p].calls)
    # A reducer that comes too early is the classic one: half the time the last call is moved.
    i = len(calls) - 1 if rng.random() < 0.5 else rng.randrange(1, len(calls))
    j = rng.randrange(i)
    what = f"{_name(plan, p, i)} issued before call {j}"
    calls.insert(j, calls.pop(i))
    return Mutation(with_calls(plan, p, calls), what)


def call_dropped(plan: Plan, rng: Random) -> Mutation | None:
    """A call that is not issued.

    Example: "call 4 (reducer) of rank 0 is not issued".
    """
    p = _program(plan, rng, 1)
    if p is None:
        return None
    calls = list(plan.programs[p].calls)
    i = rng.randrange(len(calls))
    what = f"{_name(plan, p, i)} is not issued"
    del calls[i]
    return Mutation(with_calls(plan, p, calls), what)


def call_twice(plan: Plan, rng: Random) -> Mutation | None:
    """A call that is issued twice.

    Example: "call 1 (backward) of rank 0 is issued twice".
    """
    p = _program(plan, rng, 1)
    if p is None:
        return None
    calls = list(plan.programs[p].calls)
    i = rng.randrange(len(calls))
    calls.insert(i + 1 if rng.random() < 0.5 else len(calls), calls[i])
    return Mutation(with_calls(plan, p, calls), f"{_name(plan, p, i)} is issued twice")


def _pairs(plan: Plan, field: str) -> list[tuple[int, int, int]]:
    """(program, call, call) of the same body with something to exchange."""
    return [
        (p, i, j)
        for p, program in enumerate(plan.programs)
        for i, x in enumerate(program.calls)
        for j, y in enumerate(program.calls[:i])
        if x.body == y.body and getattr(x, field) != getattr(y, field)
    ]


def _exchanged(plan: Plan, rng: Random, field: str) -> Mutation | None:
    pairs = _pairs(plan, field)
    if not pairs:
        return None
    p, i, j = rng.choice(pairs)
    calls = list(plan.programs[p].calls)
    first, second = calls[i], calls[j]
    calls[i] = replace(first, **{field: getattr(second, field)})
    calls[j] = replace(second, **{field: getattr(first, field)})
    what = f"{field} of {_name(plan, p, j)} and {_name(plan, p, i)} exchanged"
    return Mutation(with_calls(plan, p, calls), what)


def call_inputs_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """Two microbatches whose tensors are exchanged where a body reads them.

    Example: "inputs of call 1 (backward) of rank 0 and call 3 (backward) of rank 0 exchanged".
    """
    return _exchanged(plan, rng, "inputs")


def call_outputs_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """Two microbatches whose tensors are exchanged where a body writes them.

    Example: "outputs of call 0 (forward) of rank 0 and call 2 (forward) of rank 0 exchanged".
    """
    return _exchanged(plan, rng, "outputs")


def microbatches_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """One program loads its microbatches in another order.

    Example: "microbatch of call 0 (forward) of rank 0 and call 2 (forward) of rank 0 exchanged".
    """
    return _exchanged(plan, rng, "microbatch")


def another_microbatch(plan: Plan, rng: Random) -> Mutation | None:
    """One load reads a microbatch that another one reads too, or that there is not.

    Example: "call 2 (forward) of rank 0 loads microbatch 2 in place of 1", where there are two.
    """
    choices = [
        (p, c)
        for p, program in enumerate(plan.programs)
        for c, call in enumerate(program.calls)
        if call.microbatch >= 0
    ]
    if not choices:
        return None
    p, c = rng.choice(choices)
    calls = list(plan.programs[p].calls)
    old = calls[c].microbatch
    new = rng.choice([m for m in range(plan.microbatches + 1) if m != old])
    calls[c] = replace(calls[c], microbatch=new)
    what = f"{_name(plan, p, c)} loads microbatch {new} in place of {old}"
    return Mutation(with_calls(plan, p, calls), what)


def _slots(call: Call) -> list[tuple[str, int]]:
    return [(field, i) for field in ("inputs", "outputs") for i in range(len(getattr(call, field)))]


def another_slot(plan: Plan, rng: Random) -> Mutation | None:
    """One binding of a call to another slot: a stale tensor is read, or a live one overwritten.

    Example: "call 3 (backward) of rank 0: input 0 is slot 2 in place of 3".
    """
    choices = [
        (p, c, field, i)
        for p, program in enumerate(plan.programs)
        for c, call in enumerate(program.calls)
        for field, i in _slots(call)
    ]
    if not choices:
        return None
    p, c, field, i = rng.choice(choices)
    program = plan.programs[p]
    call = program.calls[c]
    shape = _shape(plan, p, call, field, i)
    like = {
        getattr(other, f)[k]
        for other in program.calls
        for f, k in _slots(other)
        if _shape(plan, p, other, f, k) == shape
    } - {getattr(call, field)[i]}
    if not like:
        return None
    slots = list(getattr(call, field))
    old, slots[i] = slots[i], rng.choice(sorted(like))
    calls = list(program.calls)
    bound = tuple(slots)
    calls[c] = replace(call, inputs=bound) if field == "inputs" else replace(call, outputs=bound)
    what = f"{_name(plan, p, c)}: {field[:-1]} {i} is slot {slots[i]} in place of {old}"
    return Mutation(with_calls(plan, p, calls), what)


def _shape(plan: Plan, p: int, call: Call, field: str, i: int) -> tuple[int, ...]:
    body = plan.programs[p].bodies[call.body]
    value = body.inputs[i] if field == "inputs" else body.outputs[i]
    return body.values[value].shape


def another_body(plan: Plan, rng: Random) -> Mutation | None:
    """A call issues another body that takes as many tensors.

    Example: "call 4 (reducer) of rank 0 issues backward".
    """
    choices = []
    for p, program in enumerate(plan.programs):
        for c, call in enumerate(program.calls):
            own = program.bodies[call.body]
            for b, body in enumerate(program.bodies):
                counts = (len(body.inputs), len(body.outputs))
                if b != call.body and counts == (len(own.inputs), len(own.outputs)):
                    choices.append((p, c, b))
    if not choices:
        return None
    p, c, b = rng.choice(choices)
    calls = list(plan.programs[p].calls)
    what = f"{_name(plan, p, c)} issues {plan.programs[p].bodies[b].name}"
    calls[c] = replace(calls[c], body=b)
    return Mutation(with_calls(plan, p, calls), what)


def another_seed(plan: Plan, rng: Random) -> Mutation | None:
    """The gradient of a loss arrives for another microbatch's loss, or not at all.

    Example: "rank 0: seed 1 is the gradient of the loss of seed 0".
    """
    choices = [p for p, program in enumerate(plan.programs) if program.seeds]
    if not choices:
        return None
    p = rng.choice(choices)
    program = plan.programs[p]
    seeds = list(program.seeds)
    i = rng.randrange(len(seeds))
    if len(seeds) > 1 and rng.random() < 0.7:
        j = rng.choice([k for k in range(len(seeds)) if k != i])
        seeds[i] = (seeds[i][0], seeds[j][1])
        what = f"seed {i} is the gradient of the loss of seed {j}"
    else:
        del seeds[i]
        what = f"seed {i} is missing"
    made = replace(program, seeds=tuple(seeds))
    return Mutation(with_program(plan, p, made), f"rank {program.base}: {what}")


def another_loss(plan: Plan, rng: Random) -> Mutation | None:
    """The losses of microbatches and replicas combine by the mean in place of the sum, or the other
    way round.

    Example: "losses combine by mean in place of sum".
    """
    if plan.microbatches == 1 and not plan.replica_axes:
        return None
    new = "mean" if plan.loss == "sum" else "sum"
    return Mutation(replace(plan, loss=new), f"losses combine by {new} in place of {plan.loss}")


ORDER: Final = (
    Mutator("calls exchanged", "order", calls_exchanged),
    Mutator("call moved", "order", call_moved),
    Mutator("call dropped", "missing", call_dropped),
    Mutator("call twice", "extra", call_twice),
    Mutator("inputs of calls exchanged", "microbatches", call_inputs_exchanged),
    Mutator("outputs of calls exchanged", "microbatches", call_outputs_exchanged),
    Mutator("microbatches exchanged", "microbatches", microbatches_exchanged),
    Mutator("another microbatch", "microbatches", another_microbatch),
    Mutator("another slot", "order", another_slot),
    Mutator("another body", "operators", another_body),
    Mutator("another seed", "microbatches", another_seed),
    Mutator("losses combine otherwise", "scales", another_loss),
)
