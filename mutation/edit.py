"""Editing plans: bodies as drafts, one operator in one place, one microbatch alone.

Everything here is pure: a plan goes in, another plan comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from shardproof.engine.plan.ir import (
    Attr,
    Body,
    Call,
    Op,
    Plan,
    Program,
    Value,
)

T = TypeVar("T")


class Place(NamedTuple):
    """An operator: program, body and position in it.

    Example: ``Place(0, 1, 12)`` is operator 12 in the second body of the first program.
    """

    program: int
    body: int
    op: int


class Draft:
    """A body that is being changed.

    Example: ``draft.add(3, "mul", [x], y, {"other": 2})``, then ``draft.built()``, a body with one
    more operator.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.values = list(body.values)
        self.ops = list(body.ops)

    def value(self, like: int, shape: tuple[int, ...] | None = None) -> int:
        """A new value, named and typed as another one."""
        value = self.values[like]
        self.values.append(replace(value, shape=value.shape if shape is None else shape))
        return len(self.values) - 1

    def add(
        self,
        at: int,
        name: str,
        inputs: Sequence[int],
        output: int,
        attrs: Mapping[str, Attr] | None = None,
    ) -> None:
        """Insert an operator before position ``at``, from the same source as its neighbour."""
        near = self.ops[min(at, len(self.ops) - 1)].source
        self.ops.insert(at, Op(name, tuple(inputs), (output,), attrs or {}, source=near))

    def change(self, number: int, **fields: object) -> None:
        """Other fields of an operator."""
        self.ops[number] = replace(self.ops[number], **fields)  # type: ignore[arg-type]

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values[value].shape

    def built(self, **fields: object) -> Body:
        """The body with its changes; of new values it records nothing."""
        values, ops, claims = tuple(self.values), tuple(self.ops), self.body.claims
        if claims:
            claims = (*claims, *[None] * (len(values) - len(claims)))
        changed = {"values": values, "ops": ops, "claims": claims, **fields}
        return replace(self.body, **changed)  # type: ignore[arg-type]


# -- where ---------------------------------------------------------------------------------------


def operators(plan: Plan) -> Iterator[tuple[Place, Op, Body]]:
    """Every operator of the parallel programs that a call issues.

    Example: 92 of a GPT with one layer and tp 2, among them ``Place(0, 0, 5)``, an ``identity``.
    """
    for p, program in enumerate(plan.programs):
        for b in sorted({call.body for call in program.calls}):
            for o, op in enumerate(program.bodies[b].ops):
                yield Place(p, b, o), op, program.bodies[b]


def pick(items: Sequence[T], rng: Random, key: Callable[[T], object]) -> T | None:
    """One of ``items``: first a kind, so that rare kinds are as likely as common ones.

    Example: among forty ``linear`` and one ``embedding`` by name, the ``embedding`` half the time.
    """
    kinds: dict[object, list[T]] = {}
    for item in items:
        kinds.setdefault(key(item), []).append(item)
    return rng.choice(kinds[rng.choice(list(kinds))]) if kinds else None


def pick_body(
    plan: Plan, rng: Random, fits: Callable[[Body], object]
) -> tuple[int, int, Body] | None:
    """One of the bodies that fit, each as likely as any other, with its program's and its own
    number; None: none fits.

    Example: ``pick_body(plan, rng, lambda body: body.losses)`` is a body with a loss.
    """
    bodies = [
        (p, b, body)
        for p, program in enumerate(plan.programs)
        for b, body in enumerate(program.bodies)
        if fits(body)
    ]
    return rng.choice(bodies) if bodies else None


def name_op(plan: Plan, place: Place) -> str:
    """An operator in words.

    Example: "linear in h.0.attn (rank 0, body forward, operator 10)".
    """
    program = plan.programs[place.program]
    body = program.bodies[place.body]
    op = body.ops[place.op]
    kind = f"backward of {op.name}" if op.backward else op.name
    where = f" in {op.source.module}" if op.source.module else ""
    return f"{kind}{where} (rank {program.base}, body {body.name}, operator {place.op})"


# -- replacing parts -----------------------------------------------------------------------------


def with_program(plan: Plan, number: int, program: Program) -> Plan:
    """The plan with one program replaced.

    Example: program 1 of two replaced: the plan's ``programs[0]`` stays.
    """
    programs = list(plan.programs)
    programs[number] = program
    return replace(plan, programs=tuple(programs))


def with_body(plan: Plan, program: int, number: int, body: Body) -> Plan:
    """The plan with one body of one program replaced.

    Example: ``with_body(plan, 0, 1, draft.built())`` replaces the backward body of the first
    program.
    """
    own = plan.programs[program]
    bodies = list(own.bodies)
    bodies[number] = body
    return with_program(plan, program, replace(own, bodies=tuple(bodies)))


def with_calls(plan: Plan, program: int, calls: Sequence[Call]) -> Plan:
    """The plan with other calls of one program.

    Example: ``with_calls(plan, 0, calls[:-1])``, without the last call, which is the reducer's.
    """
    return with_program(plan, program, replace(plan.programs[program], calls=tuple(calls)))


def defined_before(body: Body, op: int) -> list[int]:
    """The values that are known when an operator runs.

    Example: before the first operator these are its body's inputs, parameters and saved values.
    """
    known = [*body.inputs, *(v for v, _ in body.shards), *(v for v, _ in body.saved)]
    known += [v for v, _, _ in body.reduced]
    for earlier in body.ops[:op]:
        known += earlier.outputs
    return known


def producers(body: Body) -> dict[int, int]:
    """By value: the operator that produces it.

    Example: ``{3: 1, 4: 2}`` where operator 1 makes value 3 and operator 2 value 4.
    """
    return {v: o for o, op in enumerate(body.ops) for v in op.outputs}


def readers(body: Body, value: int) -> list[int]:
    """The operators that read a value.

    Example: ``[2]`` where only operator 2, an all-reduce, reads the value.
    """
    return [o for o, op in enumerate(body.ops) if value in op.inputs]


def alike(x: Value, y: Value) -> bool:
    """Whether two tensors are of one shape and type.

    Example: two float32 tensors [1, 10, 96] are; int64 ids of that shape are not like them.
    """
    return x.shape == y.shape and x.dtype == y.dtype


# -- one microbatch --------------------------------------------------------------------


def one_call(plan: Plan, program: int, body: int, rng: Random) -> tuple[Plan, int] | None:
    """One call of a body, chosen at random, gets a body of its own (a copy), and so do the calls
    that are paired with it.  The plan, and the number of the copy; None if it is called once.

    Example: a forward body called for two microbatches: its call for one of them, and the backward
    call that belongs to it, run copies, which then can be changed alone.
    """
    if plan.expectations:
        return None  # its rows name bodies
    own = plan.programs[program]
    root = own.bodies[body].forward_body if own.bodies[body].forward_body >= 0 else body
    family = [root, *(b for b, other in enumerate(own.bodies) if other.forward_body == root)]
    issued = {b: [c for c, call in enumerate(own.calls) if call.body == b] for b in family}
    count = len(issued[root])
    if count < 2 or any(len(calls) != count for calls in issued.values() if calls):
        return None
    chosen = rng.randrange(count)
    bodies, calls = list(own.bodies), list(own.calls)
    copies: dict[int, int] = {}
    for b in family:
        copies[b] = len(bodies)
        mirror = copies[root] if b != root else own.bodies[b].forward_body
        bodies.append(replace(own.bodies[b], forward_body=mirror))
        if issued[b]:
            calls[issued[b][chosen]] = replace(calls[issued[b][chosen]], body=copies[b])
    changed = replace(own, bodies=tuple(bodies), calls=tuple(calls))
    return with_program(plan, program, changed), copies[body]
