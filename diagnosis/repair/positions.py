"""Candidate repairs of where a rank's part begins: positions in operators, parameters' shards.

A wrong position is replaced by those that the plan itself makes likely: where the operands of the
operator begin, and the n-th part for the n-th rank along each axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from shardproof.diagnosis.repair.edits import (
    Edit,
    Site,
    op_at,
    sites,
    with_program,
)
from shardproof.diagnosis.repair.origins import Candidate, FaultContext, edited, named
from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import MICROBATCH, Attr, Group, Op, Plan, Program, Shard
from shardproof.engine.schedule.instances import Instance, Unrolled

#: Attributes that say where a rank's part begins; ``stop`` and the like move with them.
BEGINS = {"start": "stop", "local_expert_start": "local_expert_end"}


def offsets(fault: FaultContext) -> Iterator[Candidate]:
    """The operator, or a slice before it, and those of its module that begin at the same wrong
    position, begin where their operands do, or at the rank's part.

    Example: "start 256*tp in place of 0 in embedding in `wte`".
    """
    rows = list(fault.divergence.instances[:1])
    for value in fault.instances[0].inputs:
        rows += [
            n
            for n in fault.before(value, lambda instance: True)
            if fault.instance(n).name == "slice"
        ]
    for number in dict.fromkeys(rows):
        for site in fault.origins[number][:1]:
            op = op_at(fault.plan, site)
            for key in BEGINS:
                wrong = op.attrs.get(key)
                if isinstance(wrong, int) and not isinstance(wrong, bool):
                    wrong = affine(wrong)
                if isinstance(wrong, Affine):
                    for right in _starts(fault, fault.instance(number), op, site):
                        if right != wrong:
                            yield _begun(fault, site, key, wrong, right)
            if op.name == "slice":
                yield from _chunks(fault, site)


def _starts(fault: FaultContext, instance: Instance, op: Op, site: Site) -> Iterator[Affine]:
    """Positions at which the operator might begin."""
    starts: dict[Affine, None] = {}
    for value in instance.inputs:
        lineage = fault.lineage(value)
        for addend in lineage.addends if lineage is not None else ():
            for dim in addend.view.dims:
                starts.update((interval.start, None) for interval in dim)
    program = fault.plan.programs[site.program]
    values = program.bodies[site.body].values
    lengths = {n for v in (*op.inputs, *op.outputs) if v >= 0 for n in values[v].shape}
    for axis, extent, _ in program.axes:
        if extent > 1:
            starts.update((affine(0, {axis: n}), None) for n in sorted(lengths, reverse=True))
    slices = {MICROBATCH, *fault.plan.replica_axes}
    return (start for start in starts if slices.isdisjoint(start.axes))


def _begun(fault: FaultContext, at: Site, key: str, wrong: Affine, right: Affine) -> Candidate:
    """The candidate in which what begins at ``wrong`` begins at ``right``."""
    op = op_at(fault.plan, at)
    edits = []
    for program in fault.programs:
        for site, there in sites(fault.plan.programs[program], program):
            begins = there.attrs.get(key)
            if there.source.module != op.source.module or begins is None:
                continue
            if begins == wrong or (not wrong.terms and begins == wrong.const):
                attrs = {**there.attrs, key: right}
                stop = there.attrs.get(BEGINS[key])
                if isinstance(stop, int | Affine):
                    attrs[BEGINS[key]] = right - wrong + stop
                edits.append(Edit(site, replace(there, attrs=attrs)))
    where = named(fault.plan, at)
    return edited(
        "wrong offset", f"{key} {right} in place of {wrong} in {where}", fault.plan, edits
    )


def _chunks(fault: FaultContext, site: Site) -> Iterator[Candidate]:
    """A slice that is the same on every rank becomes the rank's chunk along an axis."""
    op = op_at(fault.plan, site)
    program = fault.plan.programs[site.program]
    values = program.bodies[site.body].values
    dim, size = op.attrs.get("dim"), op.attrs.get("size")
    if not isinstance(dim, int) or not isinstance(size, int) or op.backward:
        return
    shape = values[op.inputs[0]].shape
    if not -len(shape) <= dim < len(shape):
        return
    for axis, extent, _ in program.axes:
        if extent * size != shape[dim]:
            continue
        attrs: dict[str, Attr] = {"group": Group(axes=(axis,)), "dim": dim}
        edits = [Edit(site, Op("chunk", op.inputs, op.outputs, attrs, False, op.source))]
        for there in fault.backward_of(site):
            back = op_at(fault.plan, there)
            whole = Op("all_gather", back.inputs[-1:], back.outputs, attrs, False, back.source)
            edits.append(Edit(there, whole))
        yield edited(
            "wrong offset",
            f"each rank's chunk along {axis} in place of the first {size} positions in "
            f"{named(fault.plan, site)}",
            fault.plan,
            edits,
        )


# -- shards ----------------------------------------------------------------------------------------


def shards(fault: FaultContext) -> Iterator[Candidate]:
    """A parameter that is read here, directly or after other operators, is held in another part.

    Example: "h.1.mlp.c_proj.weight held from 128*dp along dimension 1, in place of 128*tp".
    """
    names = _read(
        fault.result.parallel.unrolled,
        [v for instance in fault.instances[:1] for v in instance.inputs],
    )
    for name in names:
        yield from other_shards(fault.plan, name, fault.programs)


def other_shards(plan: Plan, name: str, programs: Sequence[int]) -> Iterator[Candidate]:
    """A parameter is held in another part by some programs.

    Example: a weight of [128, 64] of [256, 64] that is held from 0 on both ranks along ``tp`` is
    held from ``128*tp``.
    """
    for program in programs:
        own = plan.programs[program]
        for shard in dict.fromkeys(s for s in own.shards if s.name == name):
            for dim, offset in _other_parts(own, shard):
                yield Candidate(
                    "wrong shard",
                    f"{shard.name} held from {offset} along dimension {dim}, in place of "
                    f"{shard.offset[dim]}",
                    _held_at(plan, shard, dim, offset),
                )


def _read(unrolled: Unrolled, values: Sequence[int]) -> list[str]:
    """The names of the parameters that values are made of, the nearest first."""
    maker = {v: instance for instance in unrolled.instances for v in instance.outputs}
    names: dict[str, None] = {}
    waiting = [v for v in values if v >= 0]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_READ:
        value = waiting.pop(0)
        if value in seen:
            continue
        seen.add(value)
        instance = maker.get(value)
        if instance is None or instance.kind == "shard":
            names.setdefault(unrolled.tensors[value].name)
        else:
            waiting += [v for v in instance.inputs if v >= 0]
    return list(names)


#: Values before a fault that are looked through for the parameters that they are made of.
_MOST_READ = 24


def _other_parts(program: Program, shard: Shard) -> Iterator[tuple[int, Affine]]:
    """Where a shard could begin along a divided dimension: the n-th part on the n-th rank along an
    axis, or any one part."""
    for dim, (size, full) in enumerate(zip(shard.shape, shard.full_shape, strict=True)):
        if size == full or full % size:
            continue
        starts = [
            affine(0, {axis: size}) for axis, extent, _ in program.axes if extent * size == full
        ]
        starts += [affine(n * size) for n in range(full // size)] if not starts else []
        for start in starts:
            if start != shard.offset[dim]:
                yield dim, start


def _held_at(plan: Plan, shard: Shard, dim: int, offset: Affine) -> Plan:
    """The plan in which every program that holds this shard holds it from ``offset`` on."""
    offsets = tuple(offset if d == dim else o for d, o in enumerate(shard.offset))
    moved = replace(shard, offset=offsets)
    for number, program in enumerate(plan.programs):
        if shard in program.shards:
            shards = tuple(moved if s == shard else s for s in program.shards)
            plan = with_program(plan, number, replace(program, shards=shards))
    return plan


def exchanged_parameters(fault: FaultContext) -> Iterator[Candidate]:
    """A parameter that is read here and the one that the counterpart reads there change places,
    forward and backward.

    Example: "h.1.ln_2.weight and h.1.mlp.c_proj.bias in each other's place".
    """
    mine = _read(fault.result.parallel.unrolled, [v for r in fault.instances[:1] for v in r.inputs])
    theirs: list[str] = []
    if fault.instances[0].backward:
        return
    if fault.divergence.counterpart >= 0:
        single = fault.result.single.unrolled
        theirs = _read(single, single.instances[fault.divergence.counterpart].inputs)
    for program in fault.programs[:1]:
        shards = {s.name: s for s in fault.plan.programs[program].shards}
        pairs = [*product(mine, theirs), *combinations(mine, 2)]
        for one, other in dict.fromkeys(tuple(sorted(pair)) for pair in pairs):
            if one not in shards or other not in shards or not _alike(shards[one], shards[other]):
                continue
            plan = fault.plan
            for p in fault.programs:
                plan = _exchanged(plan, p, one, other)
            yield Candidate(
                "parameters exchanged", f"{one} and {other} in each other's place", plan
            )


def _alike(one: Shard, other: Shard) -> bool:
    return one != other and replace(one, name="") == replace(other, name="")


def _exchanged(plan: Plan, number: int, one: str, other: str) -> Plan:
    """The program with two names of parameters exchanged."""
    program = plan.programs[number]
    names = {one: other, other: one}
    shards = tuple(replace(s, name=names.get(s.name, s.name)) for s in program.shards)
    return with_program(plan, number, replace(program, shards=shards))
