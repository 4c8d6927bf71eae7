"""Candidate repairs of what moves values between ranks: collectives, peers, reducers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from shardproof.diagnosis.repair.edits import (
    Edit,
    Site,
    groups,
    members,
    op_at,
    peer,
    sites,
    size,
    spoken,
    with_op,
    with_program,
)
from shardproof.diagnosis.repair.origins import MOVES, Candidate, FaultContext, edited, named
from shardproof.engine.plan.collectives import COLLECTIVES
from shardproof.engine.plan.ir import Attr, Body, Call, Group, Op, Plan, Program, Value
from shardproof.engine.specification.conclusions import Conclusion
from shardproof.partition.stages.partition import Partition

_WORDS: Final[Mapping[str, str]] = {
    "all_reduce": "an all-reduce",
    "all_gather": "an all-gather",
    "reduce_scatter": "a reduce-scatter",
    "identity": "no communication",
}


def missing_reductions(fault: FaultContext) -> Iterator[Candidate]:
    """A value that is still a partial sum is reduced, where it is moved or where it is made.

    Example: "an all-reduce over ranks [0, 1] (axis tp) after linear in `h.1.mlp`".
    """
    values = {
        v: None for instance in fault.instances[:1] for v in (*instance.inputs, *instance.outputs)
    }
    for value in values:
        if not fault.is_partial(value):
            continue
        chain = fault.before(value, lambda instance: any(map(fault.is_partial, instance.inputs)))
        moved = [
            n
            for n in chain
            if fault.instance(n).name in MOVES and fault.instance(n).kind != "slice"
        ]
        for number in dict.fromkeys([*moved, *chain[-1:], *chain[:1]]):
            yield from collectives(fault, number, ("all_reduce",))
    yield from _where_partial(fault, list(values))


def other_collectives(fault: FaultContext) -> Iterator[Candidate]:
    """A collective, or a move where one should be, of another kind, dimension or group.

    Example: "an all-reduce over ranks [0, 1] in place of all-gather ...", "no communication in
    place of all-reduce ...".
    """
    chain = list(fault.divergence.instances[:1])
    for value in fault.instances[0].inputs:
        chain += fault.before(
            value, lambda instance: instance.kind != "op" or not instance.source.module
        )
    for number in dict.fromkeys(chain):
        instance = fault.instance(number)
        if instance.name in COLLECTIVES or instance.name == "identity":
            yield from collectives(
                fault, number, ("identity", "all_reduce", "all_gather", "reduce_scatter")
            )


def collectives(fault: FaultContext, number: int, kinds: Sequence[str]) -> Iterator[Candidate]:
    """The operators of an instance replaced (if they are moves) or followed by collectives.

    Example: a row-parallel ``linear`` with ``("all_reduce",)`` on dp 2, tp 2 has two, over ``tp``
    and over ``dp``.
    """
    if not fault.origins[number]:
        return
    yield from collectives_at(fault.plan, fault.origins[number][0], kinds, fault.programs)


def collectives_at(
    plan: Plan, site: Site, kinds: Sequence[str], programs: Sequence[int], by: str = "sum"
) -> Iterator[Candidate]:
    """See `collectives`; for groups without named ranks, of all ``programs``; ``by``: what an
    all-reduce computes.

    Example: with ``by="max"`` the partial maxima of a cross entropy over a divided vocabulary.
    """
    op = op_at(plan, site)
    body = plan.programs[site.program].bodies[site.body]
    replaces = op.name in COLLECTIVES or op.name == "identity"
    if not op.outputs or (replaces and len(op.inputs) != 1):
        return
    after = body.values[op.outputs[0]].shape
    before = body.values[op.inputs[0]].shape if replaces else after
    for group in groups(plan, site.program):
        for kind, attrs in _kinds(plan, site, group, before, after, kinds):
            if replaces and kind == op.name and _is_same(op.attrs, attrs):
                continue
            if kind == "identity" and not replaces:
                continue
            if kind == "all_reduce":
                attrs = {**attrs, "op": by}
            who = members(plan, group, programs)
            if replaces and kind == "identity":
                who = sorted({*who, *programs})
            there = [peer(plan, site, p) for p in who]
            if any(s is None for s in there) or not who:
                continue
            edits = []
            for s in there:
                assert s is not None
                old = op_at(plan, s)
                new = Op(kind, old.inputs, old.outputs, attrs, False, old.source)
                edits.append(Edit(s, new, -1 if replaces else 0))
            what = _WORDS[kind]
            if kind != "identity":
                dim = f" of dimension {attrs['dim']}" if "dim" in attrs else ""
                what += f"{dim} over {spoken(plan, group, who)}"
            place = f"after {named(plan, site)}"
            if replaces:
                cell = f" ({op.source.cell})" if op.source.cell else ""
                place = f"in place of {op.name.replace('_', '-')}{cell} {place}"
            yield edited(_cause(op, kind, attrs, replaces), f"{what} {place}", plan, edits)


def _cause(old: Op, kind: str, attrs: Mapping[str, Attr], replaces: bool) -> str:
    """What was wrong if a collective of this kind helps."""
    if kind == "identity":
        return "collective too many"
    if not replaces or old.name == "identity":
        return "missing reduction" if kind == "all_reduce" else "missing collective"
    if kind != old.name:
        return "wrong collective"
    return "wrong dimension" if attrs.get("dim") != old.attrs.get("dim") else "wrong group"


def _kinds(
    plan: Plan,
    site: Site,
    group: Group,
    before: tuple[int, ...],
    after: tuple[int, ...],
    kinds: Sequence[str],
) -> Iterator[tuple[str, dict[str, Attr]]]:
    """Collectives over a group that make one shape of the other."""
    count = size(plan, group, site.program)
    for kind in kinds:
        if kind == "identity" and before == after:
            yield kind, {}
        elif kind == "all_reduce" and before == after:
            yield kind, {"group": group, "op": "sum"}
        elif kind in ("all_gather", "reduce_scatter") and len(before) == len(after):
            small, large = (before, after) if kind == "all_gather" else (after, before)
            for dim, n in enumerate(small):
                if (*small[:dim], n * count, *small[dim + 1 :]) == large:
                    yield kind, {"group": group, "dim": dim}


def _is_same(mine: Mapping[str, Attr], other: Mapping[str, Attr]) -> bool:
    def group_attrs(attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        return {k: v for k, v in attrs.items() if k in ("group", "dim")}

    return group_attrs(mine) == group_attrs(other)


# -- peers and reducers ----------------------------------------------------------------------------


def exchanged_peers(fault: FaultContext) -> Iterator[Candidate]:
    """Two ranks receive, of one move, what the other one received.

    Example: "the peers of the moves exchanged: 0 to 3 and 1 to 2".
    """
    received: dict[int, tuple[int, Site]] = {}
    for instance in fault.instances:
        for value in instance.inputs:
            for number in fault.before(value, lambda r: r.kind != "op"):
                if fault.instance(number).kind == "recv":
                    sender, receiver = fault.instance(number).programs
                    received[receiver] = (sender, fault.origins[number][0])
    for (p, (a, x)), (q, (b, y)) in combinations(sorted(received.items()), 2):
        if a == b or op_at(fault.plan, x).source.cell != op_at(fault.plan, y).source.cell:
            continue
        plan = _exchanged(fault.plan, (p, a, x), (q, b, y))
        if plan is not None:
            one, other = (fault.plan.programs[n].base for n in (a, b))
            to, too = (fault.plan.programs[n].base for n in (p, q))
            cell = op_at(fault.plan, x).source.cell
            yield Candidate(
                "wrong peers",
                f"the peers of the moves exchanged{f' in {cell}' if cell else ''}: "
                f"{one} to {too} and {other} to {to}",
                plan,
            )


def _exchanged(plan: Plan, one: tuple[int, int, Site], other: tuple[int, int, Site]) -> Plan | None:
    """The plan with two receivers' senders exchanged; None where their sends are not found."""
    result = plan
    for (_, sender, _), (receiver, new, site) in ((one, other), (other, one)):
        # ``sender`` now sends to ``receiver``, which received from ``new``.
        old = one[0] if receiver == other[0] else other[0]
        cell = op_at(plan, site).source
        sends = [
            (s, op)
            for s, op in sites(plan.programs[sender], sender)
            if op.name == "send"
            and op.source == cell
            and op.attrs.get("peer") == plan.programs[old].base
        ]
        if not sends or new == sender:
            return None
        for s, op in sends:
            attrs = {**op.attrs, "peer": plan.programs[receiver].base}
            result = with_op(result, s, replace(op, attrs=attrs))
        receive = op_at(plan, site)
        attrs = {**receive.attrs, "peer": plan.programs[sender].base}
        result = with_op(result, site, replace(receive, attrs=attrs))
    return result


def missing_reducers(result: Partition, conclusion: Conclusion) -> Iterator[Candidate]:
    """A gradient that is not added up over an axis, or over the programs that hold its parameter,
    is: in the reducer of the program, or in one of its own.

    Example: "an all-reduce of the gradient of norm.weight over ranks [0, 2] (axis dp) in reducer".
    """
    plan = result.plan
    if conclusion.kind != "gradient" or conclusion.program < 0:
        return
    program = plan.programs[conclusion.program]
    holders = [
        n for n, p in enumerate(plan.programs) if any(s.name == conclusion.name for s in p.shards)
    ]
    wanted = [(Group(axes=(axis,)), [conclusion.program]) for axis, n, _ in program.axes if n > 1]
    if len(holders) > 1:
        bases = tuple(sorted(plan.programs[n].base for n in holders))
        wanted.append((Group(ranks=bases), holders))
    for group, who in wanted:
        edited_plan = plan
        for n in who:
            edited_plan = with_program(
                edited_plan, n, _reduced(edited_plan.programs[n], conclusion.name, group)
            )
        yield Candidate(
            "gradient that is not reduced",
            f"an all-reduce of the gradient of {conclusion.name} over {spoken(plan, group, who)} "
            f"in {_reducer_name(program)}",
            edited_plan,
        )


def _reducer_name(program: Program) -> str:
    return next((body.name for body in program.bodies if body.reduced), "a reducer")


def _reduced(program: Program, name: str, group: Group) -> Program:
    """The program with the gradients of a parameter added up over one more group."""
    for number, shard in enumerate(program.shards):
        if shard.name == name and shard.trainable:
            program = _reduced_shard(program, number, group)
    return program


def _reduced_shard(program: Program, number: int, group: Group) -> Program:
    shard = program.shards[number]
    value = Value(shape=shard.shape, dtype=shard.dtype, name=f"{shard.name} gradient")
    attrs: dict[str, Attr] = {"group": group, "op": "sum"}
    at = next((b for b, body in enumerate(program.bodies) if body.reduced), -1)
    if at < 0:
        body = Body("reducer", (value, value), (Op("all_reduce", (0,), (1,), attrs),),
                    reduced=((0, 1, number),))  # fmt: skip
        call = Call(len(program.bodies))
        return replace(program, bodies=(*program.bodies, body), calls=(*program.calls, call))
    body = program.bodies[at]
    count = len(body.values)
    known = [(first, last) for first, last, n in body.reduced if n == number]
    new = (value,) if known else (value, value)
    first, last = (known[0][0], count) if known else (count, count + 1)
    op = Op("all_reduce", (known[0][1] if known else count,), (last,), attrs)
    after = replace(
        body,
        values=(*body.values, *new),
        claims=(*body.claims, *(None for _ in new)) if body.claims else (),
        ops=(*body.ops, op),
        reduced=(*(r for r in body.reduced if r[2] != number), (first, last, number)),
    )
    bodies = (*program.bodies[:at], after, *program.bodies[at + 1 :])
    return replace(program, bodies=bodies)


def partial_gradients(fault: FaultContext) -> Iterator[Candidate]:
    """A partial gradient is added up where it becomes one: where what it is made of is whole.

    Example: a gradient with respect to a layer norm's weight that lacks its sum over ``tp`` gets
    the all-reduce after the product whose result is partial first.
    """
    yield from _where_partial(fault, [v for instance in fault.instances for v in instance.outputs])


def _where_partial(fault: FaultContext, values: Sequence[int]) -> Iterator[Candidate]:
    """Values that are partial are reduced where they become so."""
    waiting = [v for v in values if fault.is_partial(v)]
    seen: set[int] = set()
    begins: dict[int, None] = {}
    while waiting and len(seen) < _MOST_LOOKED_AT:
        value = waiting.pop(0)
        if value in seen or value not in fault.maker:
            continue
        seen.add(value)
        number = fault.maker[value]
        before = [v for v in fault.instance(number).inputs if fault.is_partial(v)]
        waiting += before
        if not before:
            begins.setdefault(number)
    for number in begins:
        if fault.origins[number]:
            site = fault.origins[number][0]
            programs = [s.program for s in fault.origins[number]]
            for op in reductions_of(fault, fault.instance(number).outputs):
                yield from collectives_at(fault.plan, site, ("all_reduce",), programs, op)


def reductions_of(fault: FaultContext, values: Sequence[int]) -> list[str]:
    """By what partial values are completed: "sum", "max".

    Example: ``["sum"]`` of a row-parallel product, ``["max"]`` of a maximum over a divided
    vocabulary.
    """
    reductions = [t for v in values for t in fault.reductions(v)]
    return list(dict.fromkeys("max" if t.kind == "max" else "sum" for t in reductions))


#: Values before a partial gradient that are looked at for where it becomes partial.
_MOST_LOOKED_AT: Final = 200
