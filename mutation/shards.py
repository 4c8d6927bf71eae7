"""Mutators of what ranks hold of parameters."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Body, Plan, Program, Shard
from shardproof.mutation.edit import with_program
from shardproof.mutation.table import Mutation, Mutator


def another_offset(plan: Plan, rng: Random) -> Mutation | None:
    """A shard that begins elsewhere in its parameter.

    Example: "h.0.mlp.c_fc.bias on rank 0: dimension 0 from 192*tp becomes 192*tp + -192".
    """
    choices = [
        (p, s, d)
        for p, program in enumerate(plan.programs)
        for s, shard in enumerate(program.shards)
        for d in range(len(shard.shape))
        if shard.shape[d] != shard.full_shape[d]
    ]
    if not choices:
        return None
    p, s, d = rng.choice(choices)
    program, shard = plan.programs[p], plan.programs[p].shards[s]
    at, extents = shard.offset[d], plan.programs[p].extents
    news = [Affine(at.const)]
    # The ranks along an axis hold the parts in the opposite order.
    turned = affine(
        at.const + sum(c * (extents[a] - 1) for a, c in at.terms), {a: -c for a, c in at.terms}
    )
    news += [turned, at + shard.shape[d], at + -shard.shape[d], at + 1, at + -1]
    free = [a for a in extents if a not in at.axes]
    news += [affine(at.const, {a: shard.shape[d]}) for a in free]
    new = rng.choice([n for n in news if n != at])
    offset = (*shard.offset[:d], new, *shard.offset[d + 1 :])
    shards = list(program.shards)
    shards[s] = replace(shard, offset=offset)
    what = f"{shard.name} on rank {program.base}: dimension {d} from {at} becomes {new}"
    return Mutation(with_program(plan, p, replace(program, shards=tuple(shards))), what)


def another_owner(plan: Plan, rng: Random) -> Mutation | None:
    """A shard that is updated as a whole, or as another box of its parameter.

    Example: with ZeRO-2, "ln_f.weight on rank 0: updated as shard 27, not 36".
    """
    choices = [
        (p, s)
        for p, program in enumerate(plan.programs)
        for s, shard in enumerate(program.shards)
        if shard.updated_as >= 0
    ]
    if not choices:
        return None
    p, s = rng.choice(choices)
    program = plan.programs[p]
    own = program.shards[s]
    new = rng.choice([-1, *(n for n in range(len(program.shards)) if n != own.updated_as)])
    shards = list(program.shards)
    shards[s] = replace(own, updated_as=new)
    what = f"{own.name} on rank {program.base}: updated as shard {new}, not {own.updated_as}"
    return Mutation(with_program(plan, p, replace(program, shards=tuple(shards))), what)


def _twins(program: Program) -> list[tuple[int, int]]:
    """Pairs of shards of the same shape."""

    def like(x: Shard, y: Shard) -> bool:
        return x.shape == y.shape and x.trainable == y.trainable and x.name != y.name

    return [
        (i, j)
        for i, x in enumerate(program.shards)
        for j, y in enumerate(program.shards[:i])
        if like(x, y)
    ]


def shards_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """A body reads another parameter, or gives its gradient to another one.

    Example: "rank 0: both of h.0.ln_1.bias and ln_f.bias exchanged".
    """
    choices = [(p, pair) for p, program in enumerate(plan.programs) for pair in _twins(program)]
    if not choices:
        return None
    p, (i, j) = rng.choice(choices)
    program = plan.programs[p]
    field = rng.choice(["shards", "gradients", "both"])
    other = {i: j, j: i}

    def exchanged(body: Body) -> Body:
        shards, gradients = body.shards, body.gradients
        if field != "gradients":
            shards = tuple((v, other.get(s, s)) for v, s in shards)
        if field != "shards":
            gradients = tuple((v, other.get(s, s)) for v, s in gradients)
        return replace(body, shards=shards, gradients=gradients)

    made = replace(program, bodies=tuple(map(exchanged, program.bodies)))
    names = f"{program.shards[j].name} and {program.shards[i].name}"
    return Mutation(
        with_program(plan, p, made), f"rank {program.base}: {field} of {names} exchanged"
    )


SHARDS: Final = (
    Mutator("another owner", "ranks", another_owner),
    Mutator("another offset", "ranks", another_offset),
    Mutator("shards exchanged", "inputs", shards_exchanged),
)
