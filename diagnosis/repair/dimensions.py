"""Candidate repairs of the dimensions that a collective divides or joins.

What comes out of a collective along another dimension has another shape.  A program that went on
all the same reads it through a view, so only the shape between the two changes, and what backward
makes of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

from shardproof.diagnosis.repair.edits import Site, op_at, size, with_body
from shardproof.diagnosis.repair.origins import Candidate, FaultContext, named
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Plan, Value

Shape = tuple[int, ...]

#: What a collective along a dimension is in backward.
_CONJUGATE: Final[Mapping[str, tuple[str, ...]]] = {
    "all_gather": ("reduce_scatter", "chunk"),
    "reduce_scatter": ("all_gather",),
    "chunk": ("all_gather",),
    "all_to_all": ("all_to_all",),
}


def other_dimensions(fault: FaultContext) -> Iterator[Candidate]:
    """A collective along other dimensions, before a view or where its result has the same shape.

    Example: "dim 1 in place of 0 in the all-gather after linear in `layers.0.attention.wq`, and in
    backward".
    """
    rows = list(fault.divergence.instances[:1])
    for value in fault.instances[0].inputs:
        rows += fault.before(value, lambda instance: True)
    for number in dict.fromkeys(rows):
        for site in fault.origins[number][:1]:
            op = op_at(fault.plan, site)
            if op.name in _CONJUGATE and not _of_backward(fault.plan, site):
                yield from _along_others(fault, site, op)


def _of_backward(plan: Plan, site: Site) -> bool:
    return plan.programs[site.program].bodies[site.body].forward_body >= 0


def _along_others(fault: FaultContext, site: Site, op: Op) -> Iterator[Candidate]:
    group = op.attrs.get("group")
    body = fault.plan.programs[site.program].bodies[site.body]
    shape = body.values[op.inputs[0]].shape
    if not isinstance(group, Group):
        return
    count = size(fault.plan, group, site.program)
    keys = ("split_dim", "concat_dim") if op.name == "all_to_all" else ("dim",)
    for dims in product(range(len(shape)), repeat=len(keys)):
        chosen = dict(zip(keys, dims, strict=True))
        after = _shape(op.name, shape, dims, count)
        if after is None or all(op.attrs.get(k) == d for k, d in chosen.items()):
            continue
        plan: Plan | None = fault.plan
        for here in fault.alike(site):
            plan = plan and _along(plan, here, chosen, after)
        if plan is not None:
            words = " and ".join(f"{key} {d}" for key, d in chosen.items())
            was = " and ".join(str(op.attrs.get(key)) for key in keys)
            yield Candidate(
                "wrong dimension",
                f"{words} in place of {was} in the {op.name.replace('_', '-')} after "
                f"{named(fault.plan, site)}, and in backward",
                plan,
            )


def _shape(name: str, shape: Shape, dims: tuple[int, ...], count: int) -> Shape | None:
    """The shape of the result; None where a dimension does not divide."""
    result = list(shape)
    if name == "all_gather":
        result[dims[0]] *= count
        return tuple(result)
    if result[dims[0]] % count or (name == "all_to_all" and dims[0] == dims[1]):
        return None
    result[dims[0]] //= count
    if name == "all_to_all":
        result[dims[1]] *= count
    return tuple(result)


def _along(plan: Plan, site: Site, dims: Mapping[str, int], after: Shape) -> Plan | None:
    """The plan with one collective along other dimensions, forward and backward; None if what
    reads it needs its shape."""
    program = plan.programs[site.program]
    body = program.bodies[site.body]
    op = body.ops[site.op]
    (value,) = op.outputs
    moved = body.values[value].shape != after
    readers = [reader for reader in body.ops if value in reader.inputs]
    if (moved and any(reader.name != "view" for reader in readers)) or value in body.outputs:
        return None
    reader = _redone(body, {site.op: {**op.attrs, **dims}}, {value: after})
    plan = with_body(plan, site.program, site.body, reader)
    for number, other in enumerate(program.bodies):
        if other.forward_body == site.body:
            back = _backward(other, op, value, dims, body.values[value].shape, after)
            if back is None:
                return None
            plan = with_body(plan, site.program, number, back)
    return plan


def _backward(
    body: Body, op: Op, value: int, dims: Mapping[str, int], before: Shape, after: Shape
) -> Body | None:
    """A backward body in which the collective's result has another shape, and its conjugate is
    along other dimensions."""
    shapes = {there: after for there, saved in body.saved if saved == value}
    changed: dict[int, Mapping[str, Attr]] = {}
    conjugate = dict(dims)
    if op.name == "all_to_all":
        conjugate = {"split_dim": dims["concat_dim"], "concat_dim": dims["split_dim"]}
    for number, other in enumerate(body.ops):
        again = other.name == op.name and other.source.module == op.source.module
        if again and other.attrs == op.attrs and op.name == "all_gather":
            # Not kept, but gathered again.
            changed[number] = {**other.attrs, **dims}
            shapes[other.outputs[0]] = after
        elif other.backward and other.name == "view" and other.inputs[0] in shapes:
            shapes[other.outputs[0]] = after
        elif other.name == "view" and other.inputs[0] in shapes:
            continue
        elif other.name in _CONJUGATE[op.name] and other.inputs[0] in _gradients(
            body, shapes, op, before
        ):
            changed[number] = {**other.attrs, **conjugate}
        elif any(v in shapes for v in other.inputs):
            return None
    return _redone(body, changed, shapes)


def _gradients(body: Body, shapes: Mapping[int, Shape], op: Op, before: Shape) -> set[int]:
    """The values that the conjugate of a collective may read: those that change their shape, and
    where none does, what its own conjugate in the same place reads."""
    if shapes:
        return set(shapes)
    return {
        reader.inputs[0]
        for reader in body.ops
        if reader.name in _CONJUGATE[op.name]
        and reader.source == op.source
        and body.values[reader.inputs[0]].shape == before
    }


def _redone(
    body: Body, attrs: Mapping[int, Mapping[str, Attr]], shapes: Mapping[int, Shape]
) -> Body:
    ops = tuple(replace(op, attrs=attrs.get(n, op.attrs)) for n, op in enumerate(body.ops))
    values = tuple(
        Value(shapes.get(n, v.shape), v.dtype, v.name) for n, v in enumerate(body.values)
    )
    return replace(body, ops=ops, values=values)
