"""Small edits of a plan: one operator replaced, one inserted, one call added; nothing is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardproof.engine.plan.collectives import COLLECTIVES, PARTS
from shardproof.engine.plan.ir import Body, Call, Group, Op, Plan, Program


class Site(NamedTuple):
    """An operator of a plan's parallel side, by its numbers.

    Example: ``Site(0, 0, 65)``, operator 65 of body 0 of program 0.
    """

    program: int
    body: int
    op: int


class Edit(NamedTuple):
    """``op`` in place of the operator at ``site``, or after its output ``after`` (-1: in place).

    Example: ``Edit(Site(0, 0, 64), Op("all_reduce", ...), 0)`` puts an all-reduce behind output 0
    of operator 64.
    """

    site: Site
    op: Op
    after: int = -1


Identity = tuple[object, ...]


def op_at(plan: Plan, site: Site) -> Op:
    """The operator at a place.

    Example: ``Site(0, 0, 2)`` of the GPT of examples/gpt.py is the ``all_reduce`` after the
    embedding.
    """
    return plan.programs[site.program].bodies[site.body].ops[site.op]


def with_body(plan: Plan, program: int, body: int, edited: Body) -> Plan:
    """The plan with one body of one program replaced.

    Example: the forward body of program 0 with one operator more; all other bodies are
    the same objects.
    """
    own = plan.programs[program]
    bodies = list(own.bodies)
    bodies[body] = edited
    return with_program(plan, program, replace(own, bodies=tuple(bodies)))


def with_program(plan: Plan, number: int, program: Program) -> Plan:
    """The plan with one program replaced.

    Example: rank 0's program with another shard, those of ranks 1 to 3 as they were.
    """
    programs = list(plan.programs)
    programs[number] = program
    return replace(plan, programs=tuple(programs))


def with_op(plan: Plan, site: Site, op: Op) -> Plan:
    """The plan with one operator replaced.

    Example: a ``mul`` by 1/1024 replaced by one by 1/512.
    """

    body = plan.programs[site.program].bodies[site.body]
    edited = replace(body, ops=(*body.ops[: site.op], op, *body.ops[site.op + 1 :]))
    return with_body(plan, site.program, site.body, edited)


def inserted(plan: Plan, site: Site, output: int, op: Op) -> Plan:
    """The plan with ``op`` after an operator, of its output ``output`` and in its place: what
    read that output reads what ``op`` makes of it.  The inputs and outputs of ``op`` are set here.

    Example: an ``all_reduce`` after output 0 of ``linear``: what ``linear`` wrote is now
    "h.1.mlp.linear before", and ``add`` reads the sum.
    """

    body = plan.programs[site.program].bodies[site.body]
    made = body.ops[site.op]
    value, between = made.outputs[output], len(body.values)
    outputs = (*made.outputs[:output], between, *made.outputs[output + 1 :])
    before = body.values[value]
    after = replace(op, inputs=(between,), outputs=(value,), source=made.source)
    edited = replace(
        body,
        values=(*body.values, replace(before, name=f"{before.name} before")),
        claims=(*body.claims, None) if body.claims else (),
        ops=(
            *body.ops[: site.op],
            replace(made, outputs=outputs),
            after,
            *body.ops[site.op + 1 :],
        ),
    )
    return with_body(plan, site.program, site.body, edited)


def applied(plan: Plan, edits: Iterable[Edit]) -> Plan:
    """The plan with edits; those of later operators come first, as inserting moves what follows.

    Example: an all-reduce inserted after operators 20 and 64 is inserted after 64 first, whose
    number the other one would change.
    """
    for site, op, after in sorted(edits, key=lambda edit: edit.site, reverse=True):
        plan = with_op(plan, site, op) if after < 0 else inserted(plan, site, after, op)
    return plan


def written(plan: Plan, site: Site, op: Op) -> Plan:
    """The plan with ``op``, its inputs and outputs already set, before the operator at ``site``.

    Example: an ``all_gather`` that writes value 12, which an operator reads and nobody wrote,
    before that operator.
    """

    body = plan.programs[site.program].bodies[site.body]
    edited = replace(body, ops=(*body.ops[: site.op], op, *body.ops[site.op :]))
    return with_body(plan, site.program, site.body, edited)


def with_call(plan: Plan, program: int, place: int, call: Call) -> Plan:
    """The plan with a call issued before the call that has number ``place`` now.

    Example: the backward body called for microbatch 1 too, before the call of the reducer.
    """
    own = plan.programs[program]
    calls = (*own.calls[:place], call, *own.calls[place:])
    return with_program(plan, program, replace(own, calls=calls))


def identity(op: Op) -> Identity:
    """What the same operator on another rank has too: what it is and where it comes from.

    Example: ``("all_reduce", False, "wte", "examples/gpt.py:59")``.
    """
    where = (op.source.module, op.source.location)
    return (op.name, op.backward, *(where if any(where) else (op.source.cell,)))


def sites(program: Program, number: int) -> Iterator[tuple[Site, Op]]:
    """All operators of a program, each with its place.

    Example: ``Site(0, 0, 0)`` with ``load_batch``, ``Site(0, 0, 1)`` with ``embedding``.
    """
    for b, body in enumerate(program.bodies):
        for o, op in enumerate(body.ops):
            yield Site(number, b, o), op


def peer(plan: Plan, site: Site, program: int) -> Site | None:
    """The operator of another program that is what ``site`` is on its own: the same operator from
    the same place, as often before it, among as many.

    Example: the second ``linear`` from line 85 on rank 0 is the second one on rank 1; None where
    rank 1 has three and rank 0 two.
    """
    if program == site.program:
        return site
    wanted = identity(op_at(plan, site))
    own = [
        s for s, op in sites(plan.programs[site.program], site.program) if identity(op) == wanted
    ]
    other = [s for s, op in sites(plan.programs[program], program) if identity(op) == wanted]
    return other[own.index(site)] if len(own) == len(other) else None


def groups(plan: Plan, program: int) -> list[Group]:
    """Groups that a program's collectives run over, and its axes; those that divide no batch
    first.

    Example: ``[Group(axes=("tp",)), Group(axes=("dp",))]`` on dp 2, tp 2.
    """
    result: dict[Group, None] = {}
    for _, op in sites(plan.programs[program], program):
        group = op.attrs.get("group")
        if op.name in COLLECTIVES | PARTS and isinstance(group, Group):
            alone = len(group.ranks) < 2
            if not alone or group.axes:
                result[Group(() if alone else tuple(sorted(group.ranks)), group.axes)] = None
    for axis, extent, _ in plan.programs[program].axes:
        if extent > 1:
            result.setdefault(Group(axes=(axis,)))
    return sorted(result, key=lambda g: any(axis in plan.replica_axes for axis in g.axes))


def members(plan: Plan, group: Group, programs: Sequence[int]) -> list[int]:
    """The programs that take part in a group: those of its ranks, or ``programs``.

    Example: ``Group(ranks=(0, 2))`` is of the programs whose first ranks are 0 and 2;
    ``Group(axes=("tp",))`` of those given.
    """
    if not group.ranks:
        return list(programs)
    return [n for n, program in enumerate(plan.programs) if program.base in group.ranks]


def size(plan: Plan, group: Group, program: int) -> int:
    """How many ranks a group has.

    Example: 2 for ``tp`` of 2, 8 for four named ranks with an axis of 2.
    """
    count = max(1, len(group.ranks))
    for axis in group.axes:
        count *= plan.programs[program].extents.get(axis, 1)
    return count


def spoken(plan: Plan, group: Group, programs: Sequence[int]) -> str:
    """A group in words: its ranks, of the first instance of each program.

    Example: "ranks [0, 1] (axis tp)", "ranks [0, 2]".
    """
    if group.ranks and not group.axes:
        return f"ranks {list(group.ranks)}"
    starts = group.ranks or [plan.programs[p].base for p in programs]
    lists = []
    for start in starts:
        ranks = [start]
        for axis, extent, stride in plan.programs[programs[0]].axes:
            if axis in group.axes:
                ranks = [rank + stride * i for rank in ranks for i in range(extent)]
        lists.append(sorted(ranks))
    if group.ranks:
        lists = [sorted(rank for ranks in lists for rank in ranks)]
    return f"ranks {' and '.join(map(str, lists))} (axis {', '.join(group.axes)})"
