"""What a mutator is, and how one that changes an operator becomes one that changes a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, TypeAlias

from shardproof.engine.plan.ir import Body, Op, Plan
from shardproof.engine.plan.unrolled import separable, unrolled
from shardproof.mutation.edit import (
    Place,
    name_op,
    one_call,
    operators,
    pick,
    with_body,
)


class Mutation(NamedTuple):
    """A changed plan, and what was changed, in words.

    Example: ``Mutation(plan, "microbatches in the order [1, 0]")``.
    """

    plan: Plan
    what: str


class Changed(NamedTuple):
    """A changed body, and what was changed, in words.

    Example: ``Changed(body, "without addend 1")``; `on_operator` puts the operator's name before
    that.
    """

    body: Body
    what: str


#: None: there is nothing in this plan (or operator) that it could change.
PlanChange: TypeAlias = Callable[[Plan, Random], Mutation | None]
BodyChange: TypeAlias = Callable[[Body, int, Random], Changed | None]
Applies: TypeAlias = Callable[[Op, Body], bool]


@dataclass(frozen=True, slots=True)
class Mutator:
    """A way to change plans. ``kind``: the row of the report that its mutants are counted in;
    ``keeps``: it is meant to keep what the plan computes (what a mutant really is, its label says).

    Example: ``Mutator("operator removed", "missing", on_operator(computes, removed))``.
    """

    name: str
    kind: str
    apply: PlanChange
    keeps: bool = False


#: How often a change is made on one rank, in one microbatch, on all programs alike.
ONE_RANK: Final = 0.25
ONE_MICROBATCH: Final = 0.2
EVERYWHERE: Final = 0.6
#: Operators that are tried before a mutator gives up on a plan.
TRIES: Final = 12


def on_operator(applies: Applies, change: BodyChange) -> PlanChange:
    """A change of one operator made a change of a plan: somewhere, for all that run its program, on
    one rank, in one microbatch, or in the same place of several programs.

    Example: `mutation.operators.removed` becomes "rms_norm in layers.1 (rank 2, body forward,
    operator 2): removed, gives out hidden [1, 4, 4096], on ranks [3] too, one position along tp".
    """

    def apply(plan: Plan, rng: Random) -> Mutation | None:
        scope = ""
        axes = separable(plan)
        if axes and rng.random() < ONE_RANK:
            axis = rng.choice(axes)
            plan, scope = unrolled(plan, axis), f", one position along {axis}"
        places = [place for place, op, body in operators(plan) if applies(op, body)]
        for _ in range(TRIES if places else 0):
            place = pick(places, rng, lambda p: _kind(plan, p))
            assert place is not None
            made = _somewhere(plan, place, change, rng)
            if made is not None:
                return Mutation(made.plan, made.what + scope)
        return None

    return apply


def _kind(plan: Plan, place: Place) -> object:
    op = plan.programs[place.program].bodies[place.body].ops[place.op]
    return op.name, op.backward


def _somewhere(plan: Plan, place: Place, change: BodyChange, rng: Random) -> Mutation | None:
    """The change at one place, in one microbatch or in all, in one program or in several."""
    seed = rng.random()
    name = name_op(plan, place)
    if rng.random() < ONE_MICROBATCH:
        copied = one_call(plan, place.program, place.body, rng)
        if copied is not None:
            body = copied[0].programs[place.program].bodies[copied[1]]
            made = change(body, place.op, Random(seed))
            if made is None:
                return None
            changed = with_body(copied[0], place.program, copied[1], made.body)
            return Mutation(changed, f"{name}: {made.what}, in one microbatch")
    made = change(plan.programs[place.program].bodies[place.body], place.op, Random(seed))
    if made is None:
        return None
    others = _likewise(plan, place) if rng.random() < EVERYWHERE else []
    result = with_body(plan, place.program, place.body, made.body)
    also = []
    for other in others:
        again = change(plan.programs[other.program].bodies[other.body], other.op, Random(seed))
        if again is not None:
            result = with_body(result, other.program, other.body, again.body)
            also.append(plan.programs[other.program].base)
    more = f", on ranks {also} too" if also else ""
    return Mutation(result, f"{name}: {made.what}{more}")


def _likewise(plan: Plan, place: Place) -> list[Place]:
    """The same operator of other programs: in a body of the same name, in the same place."""
    body = plan.programs[place.program].bodies[place.body]
    op = body.ops[place.op]
    places = []
    for p, program in enumerate(plan.programs):
        for b, other in enumerate(program.bodies if p != place.program else ()):
            if other.name == body.name and len(other.ops) == len(body.ops):
                there = other.ops[place.op]
                if (there.name, there.source.module) == (op.name, op.source.module):
                    places.append(Place(p, b, place.op))
    return places
