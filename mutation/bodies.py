"""Mutators of whole bodies: another model on the parallel side, its losses, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Final

from shardproof.engine.plan.ir import Attr, Body, Op, Plan
from shardproof.mutation.edit import Place, alike, name_op, pick_body, with_body, with_program
from shardproof.mutation.operators import NUMBERS
from shardproof.mutation.table import Changed, Mutation, Mutator, on_operator


def both_directions(plan: Plan, rng: Random) -> Mutation | None:
    """A constant that is changed in forward and backward alike: a consistent other model.

    Example: "rms_norm (rank 0, body forward, operator 60) and its backward: eps 1/100000 becomes
    1001/100000000", as in another model.
    """
    choices = [
        (p, b, o, key)
        for p, program in enumerate(plan.programs)
        for b, body in enumerate(program.bodies)
        for o, op in enumerate(body.ops)
        for key in NUMBERS
        if not op.backward and isinstance(op.attrs.get(key), int | Fraction)
    ]
    if not choices:
        return None
    p, b, o, key = rng.choice(choices)
    program = plan.programs[p]
    op = program.bodies[b].ops[o]
    old = op.attrs[key]
    assert isinstance(old, int | Fraction)
    new = rng.choice(
        [Fraction(old) * 2, Fraction(old) * (1 + Fraction(1, 1000)), Fraction(old) + 1]
    )

    def with_attr(other: Op) -> Op:
        if _same(other, op):
            return replace(other, attrs={**other.attrs, key: new})
        return other

    bodies = list(program.bodies)
    for number, body in enumerate(bodies):
        if b in (number, body.forward_body):
            bodies[number] = replace(body, ops=tuple(map(with_attr, body.ops)))
    what = f"{name_op(plan, Place(p, b, o))} and its backward: {key} {old}"
    made = replace(program, bodies=tuple(bodies))
    return Mutation(with_program(plan, p, made), f"{what} becomes {new}")


def _same(other: Op, op: Op) -> bool:
    """Whether an operator is ``op``, or its backward."""
    return (
        other.name == op.name
        and other.source.module == op.source.module
        and _own(other.attrs) == _own(op.attrs)
    )


def _own(attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    return {key: value for key, value in attrs.items() if key not in ("wrt", "arity")}


def loss_changed(plan: Plan, rng: Random) -> Mutation | None:
    """Another loss: none, one that counts twice, another tensor in its place or beside it.

    Example: "the loss of forward on stage 0 and loss.sum (70) are two", so that the gradient of the
    sum before its division is added.
    """
    chosen = pick_body(plan, rng, lambda body: body.losses)
    if chosen is None:
        return None
    p, b, body = chosen
    loss = body.losses[0]
    others = [
        v
        for op in body.ops
        for v in op.outputs
        if v != loss and body.values[v].shape == body.values[loss].shape
    ]
    options = [((), "is none"), ((*body.losses, loss), "is one twice")]
    options += [((v, *body.losses[1:]), f"is {body.values[v].name} ({v})") for v in others]
    options += [((*body.losses, v), f"and {body.values[v].name} ({v}) are two") for v in others]
    losses, what = rng.choice(options)
    made = replace(body, losses=losses)
    return Mutation(
        with_body(plan, p, b, made), f"the loss of {body.name} on {plan.programs[p].name} {what}"
    )


def _exchanged(body: Body, values: tuple[int, ...], rng: Random) -> tuple[int, ...] | None:
    pairs = [
        (i, j)
        for i in range(len(values))
        for j in range(i)
        if values[i] != values[j] and alike(body.values[values[i]], body.values[values[j]])
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    moved = list(values)
    moved[i], moved[j] = moved[j], moved[i]
    return tuple(moved)


def ends_exchanged(body: Body, number: int, rng: Random) -> Changed | None:
    """Two inputs or two outputs of a body exchanged.

    Example: the segment of a pipeline that is given ``x`` and ``mask`` of one shape binds each to
    the other's slot.
    """
    for field in rng.sample(["inputs", "outputs"], 2):
        values = body.inputs if field == "inputs" else body.outputs
        moved = _exchanged(body, values, rng)
        if moved is not None:
            made = (
                replace(body, inputs=moved) if field == "inputs" else replace(body, outputs=moved)
            )
            return Changed(made, f"two {field} of its body exchanged")
    return None


def frozen(plan: Plan, rng: Random) -> Mutation | None:
    """A parameter that the parallel plan does not train.

    Example: "ln_f.weight on rank 0 is not trained".
    """
    choices = [
        (p, s)
        for p, program in enumerate(plan.programs)
        for s, shard in enumerate(program.shards)
        if shard.trainable
    ]
    if not choices:
        return None
    p, s = rng.choice(choices)
    program = plan.programs[p]
    shards = list(program.shards)
    shards[s] = replace(shards[s], trainable=False)
    what = f"{shards[s].name} on rank {program.base} is not trained"
    return Mutation(with_program(plan, p, replace(program, shards=tuple(shards))), what)


def _any(op: Op, body: Body) -> bool:
    return True


BODIES: Final = (
    Mutator("constant in both directions", "constants", both_directions),
    Mutator("loss changed", "scales", loss_changed),
    Mutator("ends of a body exchanged", "inputs", on_operator(_any, ends_exchanged)),
    Mutator("parameter not trained", "missing", frozen),
)
