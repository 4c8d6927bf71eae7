"""Candidate repairs of sums over ranks: what every rank adds before it, maxima, scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.diagnosis.repair.edits import Edit, Site, inserted, op_at, with_body
from shardproof.diagnosis.repair.origins import Candidate, FaultContext, edited, named
from shardproof.diagnosis.repair.values import scale_of
from shardproof.engine.plan.ir import Body, Op, Plan

#: What is wrong where the loss, and with it every gradient, is short of a constant factor.
OF_THE_LOSS: Final = "wrong scale of the loss"
#: Collectives that add up.
_ADDING = ("all_reduce", "reduce_scatter")


def late_addends(fault: FaultContext) -> Iterator[Candidate]:
    """What every rank adds to its part of a sum is added once, after the reduction.

    Example: "h.1.mlp.c_proj.bias added after the all-reduce that follows add in `h.1.mlp`, not by
    every rank before it".
    """
    for site in _before(fault):
        op = op_at(fault.plan, site)
        body = fault.plan.programs[site.program].bodies[site.body]
        reduction = _reduced_by(body, site)
        if reduction < 0:
            continue
        for place in _addends(op):
            if fault.is_partial(fault.tensor(site, op.inputs[place])):
                continue
            plan = fault.plan
            for here in fault.alike(site):
                moved = _addend_after(plan, here, reduction, place)
                if moved is None:
                    break
                plan = moved
            else:
                name = body.values[op.inputs[place]].name
                kind = body.ops[reduction].name.replace("_", "-")
                yield Candidate(
                    "bias before the reduction",
                    f"{name} added after the {kind} that follows {named(fault.plan, site)}, not "
                    "by every rank before it",
                    plan,
                )


def _before(fault: FaultContext) -> Iterator[Site]:
    """Operators here, or that made what is read here, that add something of every rank."""
    rows = list(fault.divergence.instances[:1])
    for value in fault.instances[0].inputs:
        rows += fault.before(value, lambda instance: True)[:3]
    for number in dict.fromkeys(rows):
        for site in fault.origins[number][:1]:
            op = op_at(fault.plan, site)
            if not op.backward and _addends(op):
                yield site


def _addends(op: Op) -> tuple[int, ...]:
    """The inputs that are added to the result as they are."""
    if op.name == "add" and len(op.inputs) == 2:
        return (1, 0)
    return (2,) if op.name == "linear" and len(op.inputs) == 3 else ()


def _reduced_by(body: Body, site: Site) -> int:
    """The collective that alone reads the result of an operator, and adds it up; -1: none."""
    (value,) = body.ops[site.op].outputs
    readers = [n for n, op in enumerate(body.ops) if value in op.inputs]
    if len(readers) == 1 and body.ops[readers[0]].name in _ADDING:
        return readers[0]
    return -1


def _addend_after(plan: Plan, site: Site, reduction: int, place: int) -> Plan | None:
    """The plan with one addend of an operator added after a collective of its body."""
    body = plan.programs[site.program].bodies[site.body]
    op, collective = body.ops[site.op], body.ops[reduction]
    addend = op.inputs[place]
    rest = tuple(v for n, v in enumerate(op.inputs) if n != place)
    result = collective.outputs[0]
    if _broadcast(body.values[addend].shape, body.values[result].shape):
        return None
    if op.name == "add" and body.values[rest[0]].shape != body.values[op.outputs[0]].shape:
        return None
    before = (
        replace(op, name="identity", inputs=rest, attrs={})
        if op.name == "add"
        else replace(op, inputs=rest)
    )
    between = len(body.values)
    after = Op("add", (between, addend), (result,), {}, False, op.source)
    ops = list(body.ops)
    ops[site.op] = before
    ops[reduction] = replace(collective, outputs=(between,))
    ops.insert(reduction + 1, after)
    value = body.values[result]
    edited_body = replace(
        body,
        values=(*body.values, replace(value, name=f"{value.name} before")),
        claims=(*body.claims, None) if body.claims else (),
        ops=tuple(ops),
    )
    return with_body(plan, site.program, site.body, edited_body)


def _broadcast(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether a shape does not fit another one, to be added to it."""
    tail = large[len(large) - len(small) :] if len(small) <= len(large) else ()
    return len(small) > len(large) or any(a not in (1, b) for a, b in zip(small, tail, strict=True))


def other_reductions(fault: FaultContext) -> Iterator[Candidate]:
    """A maximum over ranks that should be a sum.

    Example: "an all-reduce that adds up in place of a maximum after sum in `loss`".
    """
    rows = list(fault.divergence.instances[:1])
    for value in fault.instances[0].inputs:
        rows += fault.before(value, lambda instance: instance.kind != "op")
    for number in dict.fromkeys(rows):
        for site in fault.origins[number][:1]:
            op = op_at(fault.plan, site)
            if op.name != "all_reduce" or op.attrs.get("op") != "max":
                continue
            edits = [
                Edit(s, replace(op_at(fault.plan, s), attrs={**op.attrs, "op": "sum"}))
                for s in fault.alike(site)
            ]
            yield edited(
                "wrong reduction operator",
                f"an all-reduce that adds up in place of a maximum after {named(fault.plan, site)}",
                fault.plan,
                edits,
            )


def lost_factors(fault: FaultContext) -> Iterator[Candidate]:
    """A loss, or a mean, that is short of a constant factor gets it, forward and backward.

    Example: "the loss and its gradient times 2", where the loss was divided by two ranks.
    """
    ratio = scale_of(fault)
    if ratio is None or not fault.sites:
        return
    factor = 1 / ratio
    site = fault.sites[0]
    op = op_at(fault.plan, site)
    if op.name == "mean":
        yield from _other_count(fault, op, factor)
    yield from _scaled_losses(fault, factor)


def _other_count(fault: FaultContext, op: Op, factor: Fraction) -> Iterator[Candidate]:
    """A mean over another number of positions, in both directions."""
    for site in fault.sites:
        body = fault.plan.programs[site.program].bodies[site.body]
        shape = body.values[op.inputs[0]].shape
        given = op.attrs.get("count")
        count = given if isinstance(given, int | Fraction) else _positions(op, shape)
        right = Fraction(count) / factor
        edits = []
        for there in (site, *fault.backward_of(site)):
            same = op_at(fault.plan, there)
            edits.append(Edit(there, replace(same, attrs={**same.attrs, "count": right})))
        yield edited(
            "wrong scale",
            f"count {right} in place of {count} in {named(fault.plan, site)} and its backward",
            fault.plan,
            edits,
        )


def _positions(op: Op, shape: tuple[int, ...]) -> int:
    dims = op.attrs.get("dim")
    chosen = (dims,) if isinstance(dims, int) else dims
    total = 1
    for dim, n in enumerate(shape):
        if not isinstance(chosen, tuple) or dim in chosen or dim - len(shape) in chosen:
            total *= n
    return total


def _scaled_losses(fault: FaultContext, factor: Fraction) -> Iterator[Candidate]:
    """All losses times a factor, and the gradients that backward begins with."""
    plan = fault.plan
    for number, program in enumerate(plan.programs):
        for b, body in enumerate(program.bodies):
            made = [
                (Site(number, b, o), op)
                for o, op in enumerate(body.ops)
                if any(v in body.losses for v in op.outputs)
            ]
            if not made:
                continue
            site, op = made[0]
            plan = _scaled(plan, site, op.outputs.index(body.losses[0]), factor)
            for n, other in enumerate(program.bodies):
                if other.forward_body == b and other.inputs:
                    plan = _scaled_input(plan, number, n, factor)
    if plan is not fault.plan:
        yield Candidate(OF_THE_LOSS, f"the loss and its gradient times {factor}", plan)


def _scaled(plan: Plan, site: Site, output: int, factor: Fraction) -> Plan:
    return inserted(plan, site, output, Op("mul", (), (), {"other": factor}))


def _scaled_input(plan: Plan, program: int, number: int, factor: Fraction) -> Plan:
    """A backward body that multiplies the gradient that it is given."""
    body = plan.programs[program].bodies[number]
    given, between = body.inputs[0], len(body.values)
    ops = [
        replace(op, inputs=tuple(between if v == given else v for v in op.inputs))
        for op in body.ops
    ]
    first = Op("mul", (given,), (between,), {"other": factor})
    changed = replace(
        body,
        values=(*body.values, body.values[given]),
        claims=(*body.claims, None) if body.claims else (),
        ops=(first, *ops),
    )
    return with_body(plan, program, number, changed)
