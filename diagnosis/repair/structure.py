"""Candidate repairs of plans that contradict themselves: they have operators, but no rows yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from shardproof.diagnosis.repair.edits import (
    Site,
    groups,
    inserted,
    members,
    op_at,
    peer,
    sites,
    size,
    spoken,
    with_call,
    written,
)
from shardproof.diagnosis.repair.origins import Candidate, named
from shardproof.engine.plan.collectives import COLLECTIVES
from shardproof.engine.plan.ir import Attr, Body, Call, Group, Op, Plan, Program


class Unwritten(NamedTuple):
    """A read of a value that nothing writes: ``site`` reads ``value`` of its body.

    Example: ``Unwritten(Site(0, 0, 65), 64)`` where the all-reduce that wrote value 64 was left
    out.
    """

    site: Site
    value: int


class Omitted(NamedTuple):
    """A body that is called less often than the one whose contexts it reads.  ``inputs``: what the
    first call that is missing would read; ``place``: the call before which it belongs;
    ``microbatch``: which of the calls it is.

    Example: ``Omitted(0, 1, 1, (5,), 3)``: backward body 1 of program 0 lacks its call for
    microbatch 1, which would read slot 5 before call 3.
    """

    program: int
    body: int
    microbatch: int
    inputs: tuple[int, ...]
    place: int


def unwritten(plan: Plan) -> list[Unwritten]:
    """Reads of values that nothing in the body has written, the first of each value.

    Example: an ``add`` and a ``gelu`` that read value 64 are one, at the ``add``, which comes
    first.
    """
    reads: dict[tuple[int, int, int], Unwritten] = {}
    for p, program in enumerate(plan.programs):
        for b, body in enumerate(program.bodies):
            written = _given(body)
            for o, op in enumerate(body.ops):
                for v in op.inputs:
                    if v >= 0 and v not in written:
                        reads.setdefault((p, b, v), Unwritten(Site(p, b, o), v))
                written.update(op.outputs)
    return list(reads.values())


def _given(body: Body) -> set[int]:
    """Values that a body has from elsewhere."""
    elsewhere = {v for v, _ in (*body.shards, *body.saved)} | {v for v, _, _ in body.reduced}
    return {*body.inputs, *elsewhere}


def missing_writes(plan: Plan) -> Iterator[Candidate]:
    """What nobody writes is made of a value that nobody reads, else of any other before it.

    Example: "an all-reduce over ranks [0, 1] inserted after linear in `layers.0.feed_forward.w2`,
    writing ...".
    """
    gaps = unwritten(plan)
    for gap in gaps[:1]:
        site = gap.site
        body = plan.programs[site.program].bodies[site.body]
        shape = body.values[gap.value].shape
        dead = _unread(body)
        sources = [
            (v not in dead, -o, v, o)
            for o, op in enumerate(body.ops[: site.op])
            for v in op.outputs
            if len(body.values[v].shape) == len(shape)
        ]
        for _, _, value, made in sorted(sources)[:3]:
            for group in groups(plan, site.program):
                for kind, attrs in _makes(plan, site, group, body.values[value].shape, shape):
                    yield from _made(plan, gap, value, made, kind, attrs, group)


def _unread(body: Body) -> set[int]:
    read = {v for op in body.ops for v in op.inputs} | set(body.outputs) | set(body.losses)
    read |= set(body.results)
    read |= {v for v, _ in body.gradients} | {v for _, v, _ in body.reduced}
    return {v for op in body.ops for v in op.outputs} - read


def _makes(
    plan: Plan, site: Site, group: Group, before: tuple[int, ...], after: tuple[int, ...]
) -> Iterator[tuple[str, dict[str, Attr]]]:
    count = size(plan, group, site.program)
    if before == after:
        yield "all_reduce", {"group": group, "op": "sum"}
        yield "identity", {}
    for dim, n in enumerate(before):
        if (*before[:dim], n * count, *before[dim + 1 :]) == after:
            yield "all_gather", {"group": group, "dim": dim}
        if n % count == 0 and (*before[:dim], n // count, *before[dim + 1 :]) == after:
            yield "reduce_scatter", {"group": group, "dim": dim}


def _made(
    plan: Plan,
    gap: Unwritten,
    value: int,
    made: int,
    kind: str,
    attrs: dict[str, Attr],
    group: Group,
) -> Iterator[Candidate]:
    """The candidate in which ``kind`` writes the value, on all ranks of the group."""
    site = gap.site
    body = plan.programs[site.program].bodies[site.body]
    who = members(plan, group, [site.program])
    edited = plan
    for p in who:
        reader, source = peer(plan, site, p), peer(plan, Site(*site[:2], made), p)
        if reader is None or source is None or reader[:2] != source[:2]:
            return
        inputs = op_at(plan, reader).inputs
        position = op_at(plan, site).inputs.index(gap.value)
        output = body.ops[made].outputs.index(value)
        outputs = op_at(plan, source).outputs
        if len(inputs) <= position or len(outputs) <= output:
            return
        op = Op(kind, (outputs[output],), (inputs[position],), attrs)
        edited = written(edited, Site(source.program, source.body, source.op + 1), op)
    name = kind.replace("_", "-")
    over = f" over {spoken(plan, group, who)}" if attrs else ""
    dim = f" of dimension {attrs['dim']}" if "dim" in attrs else ""
    source_name = named(plan, Site(*site[:2], made))
    article = "an" if name[0] in "ai" else "a"
    yield Candidate(
        "missing reduction" if kind == "all_reduce" else "missing collective",
        f"{article} {name}{dim}{over} inserted after {source_name}, writing "
        f"{body.values[gap.value].name}",
        edited,
    )


def omitted(plan: Plan) -> list[Omitted]:
    """Backward bodies that are called less often than their forward body.

    Example: a forward body called twice whose backward body is called once.
    """
    result = []
    for p, program in enumerate(plan.programs):
        counts = Counter(call.body for call in program.calls)
        for b, body in enumerate(program.bodies):
            if body.forward_body < 0 or counts[b] >= counts[body.forward_body]:
                continue
            place = _place(program, b)
            if place is not None:
                result.append(Omitted(p, b, counts[b], *place))
    return result


def _place(program: Program, body: int) -> tuple[tuple[int, ...], int] | None:
    """The slots that a missing call of a body would read (those that what writes its inputs wrote
    last, and nobody read), and the first call after they are written."""
    calls = program.calls
    known = [call for call in calls if call.body == body]
    if not known:
        return None
    writers = {slot: (c.body, i) for c in calls for i, slot in enumerate(c.outputs)}
    inputs, place = [], 0
    seeds = dict(program.seeds)
    for slot in known[0].inputs:
        if slot in seeds:
            free = [(n, s) for s, loss in seeds.items() for n, c in enumerate(calls)
                    if loss in c.outputs and all(s not in k.inputs for k in known)]  # fmt: skip
            if not free:
                return None
            inputs.append(free[0][1])
            place = max(place, free[0][0] + 1)
            continue
        wanted = writers.get(slot)
        read = {s for c in known for s in c.inputs}
        free = [
            (n, s)
            for n, c in enumerate(calls)
            for i, s in enumerate(c.outputs)
            if (c.body, i) == wanted and s not in read
        ]
        if not free:
            return None
        inputs.append(free[0][1])
        place = max(place, free[0][0] + 1)
    return tuple(inputs), place


def missing_calls(plan: Plan) -> Iterator[Candidate]:
    """A backward body called for every microbatch that its forward body was called for.

    Example: "the backward segment 269 called for microbatch 1 too on ranks [0], before its
    gradients are reduced".
    """
    for gap in omitted(plan)[:1]:
        program = plan.programs[gap.program]
        name = program.bodies[gap.body].name
        call = Call(gap.body, gap.inputs)
        yield Candidate(
            "missing call",
            f"the backward {name} called for microbatch {gap.microbatch} too on ranks "
            f"[{program.base}], before its gradients are reduced",
            with_call(plan, gap.program, gap.place, call),
        )


def missing_members(plan: Plan) -> Iterator[Candidate]:
    """A collective that some ranks of its group do not issue is issued by them, where the others
    do, or by nobody.

    Example: "the all-reduce over ranks [0, 1] inserted on ranks [1] too, after linear in
    `layers.0.feed_forward.w2`".
    """
    for p, program in enumerate(plan.programs):
        for site, op in sites(program, p):
            group = op.attrs.get("group")
            if op.name not in COLLECTIVES or not isinstance(group, Group) or not op.inputs:
                continue
            lacking = [
                q for q in members(plan, group, [p]) if q != p and peer(plan, site, q) is None
            ]
            body = program.bodies[site.body]
            made = [n for n in range(site.op) if op.inputs[0] in body.ops[n].outputs]
            if not lacking or not made:
                continue
            before = Site(p, site.body, made[-1])
            output = body.ops[made[-1]].outputs.index(op.inputs[0])
            edited = plan
            for q in lacking:
                there = peer(plan, before, q)
                if there is None:
                    return
                edited = inserted(edited, there, output, Op(op.name, (), (), op.attrs))
            ranks = [plan.programs[q].base for q in lacking]
            yield Candidate(
                "collective that some ranks do not issue",
                f"the {op.name.replace('_', '-')} over {spoken(plan, group, [p])} inserted on "
                f"ranks {ranks} too, after {named(plan, before)}",
                edited,
            )
            return


#: Repairs of plans that cannot even be unrolled.
FAULTS = (missing_calls, missing_writes, missing_members)
