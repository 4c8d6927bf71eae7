"""Candidate repairs of where a rank's part begins: positions in operators, parameters' shards.

A wrong position is replaced by those that the plan itself makes likely: where the operands of the
operator begin, and the n-th part for the n-th rank along each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from shardproof.diagnosis.repair.edits import (
    Edit,
    applied,
    op_at,
    sites,
    with_program,
)
from shardproof.diagnosis.repair.origins import Candidate, Spot, edited, named
from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.plan.ir import Op, Plan, Program, Shard

#: Attributes that say where a rank's part begins; ``stop`` and the like move with them.
BEGINS = {"start": "stop", "local_expert_start": "local_expert_end"}


def offsets(spot: Spot) -> Iterator[Candidate]:
    """The operator, and those of its module that begin at the same wrong position, begin where
    their operands do, or at the rank's part."""
    for site in spot.sites[:1]:
        op = op_at(spot.plan, site)
        for key in BEGINS:
            wrong = op.attrs.get(key)
            if isinstance(wrong, int) and not isinstance(wrong, bool):
                wrong = affine(wrong)
            if not isinstance(wrong, Affine):
                continue
            for right in _starts(spot, op, site.program, site.body):
                if right != wrong:
                    yield _begun(spot, op, key, wrong, right)


def _starts(spot: Spot, op: Op, program: int, body: int) -> Iterator[Affine]:
    """Positions at which the operator might begin."""
    found: dict[Affine, None] = {}
    for value in spot.rows[0].inputs:
        lineage = spot.lineage(value)
        for term in lineage.terms if lineage is not None else ():
            for dim in term.layout.dims:
                found.update((atom.start, None) for atom in dim)
    held = spot.plan.programs[program]
    values = held.bodies[body].values
    lengths = {n for v in (*op.inputs, *op.outputs) if v >= 0 for n in values[v].shape}
    for axis, extent, _ in held.axes:
        if extent > 1:
            found.update((affine(0, {axis: n}), None) for n in sorted(lengths, reverse=True))
    return iter(found)


def _begun(spot: Spot, op: Op, key: str, wrong: Affine, right: Affine) -> Candidate:
    """The candidate in which what begins at ``wrong`` begins at ``right``."""
    edits = []
    for program in spot.programs:
        for site, held in sites(spot.plan.programs[program], program):
            begins = held.attrs.get(key)
            if held.source.module != op.source.module or begins is None:
                continue
            if begins == wrong or (not wrong.terms and begins == wrong.const):
                attrs = {**held.attrs, key: right}
                stop = held.attrs.get(BEGINS[key])
                if isinstance(stop, int | Affine):
                    attrs[BEGINS[key]] = right - wrong + stop
                edits.append(Edit(site, replace(held, attrs=attrs)))
    where = named(spot.plan, spot.sites[0])
    return edited(
        "wrong offset", f"{key} {right} in place of {wrong} in {where}", spot.plan, edits
    )


# -- shards ----------------------------------------------------------------------------------------


def shards(spot: Spot) -> Iterator[Candidate]:
    """A parameter that is read here, directly or after moves, is held in another part."""
    for number in _read(spot):
        for program in spot.programs:
            held = spot.plan.programs[program]
            if number >= len(held.shards):
                continue
            shard = held.shards[number]
            for dim, offset in _other_parts(held, shard):
                plan = _held_at(spot.plan, shard, dim, offset)
                yield Candidate(
                    "wrong shard",
                    f"{shard.name} held from {offset} along dimension {dim}, in place of "
                    f"{shard.offset[dim]}",
                    plan,
                )


def _read(spot: Spot) -> list[int]:
    """The numbers of the shards that the operator reads, with nothing but moves between."""
    found: dict[int, None] = {}
    tensors = spot.result.parallel.unrolled.tensors
    names: dict[str, int] = {}
    for program in spot.programs:
        for number, shard in enumerate(spot.plan.programs[program].shards):
            names.setdefault(shard.name, number)
    waiting = [v for row in spot.rows[:1] for v in row.inputs if v >= 0]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop(0)
        if value in seen or len(seen) > _MOST_READ:
            continue
        seen.add(value)
        if value not in spot.maker or spot.row(spot.maker[value]).kind == "shard":
            name = tensors[value].name
            if name in names:
                found.setdefault(names[name])
            continue
        waiting += [v for v in spot.row(spot.maker[value]).inputs if v >= 0]
    return list(found)


#: Values before a fault that are looked through for the parameters that they are made of.
_MOST_READ = 24


def _other_parts(program: Program, shard: Shard) -> Iterator[tuple[int, Affine]]:
    """Where a shard could begin along a divided dimension: the n-th part on the n-th rank along an
    axis, or any one part."""
    for dim, (size, full) in enumerate(zip(shard.shape, shard.full_shape, strict=True)):
        if size == full or full % size:
            continue
        starts = [
            affine(0, {axis: size})
            for axis, extent, _ in program.axes
            if extent * size == full
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
            held = tuple(moved if s == shard else s for s in program.shards)
            plan = with_program(plan, number, replace(program, shards=held))
    return plan


def exchanged_parameters(spot: Spot) -> Iterator[Candidate]:
    """Two parameters of one shape that are read here change places, forward and backward."""
    numbers = _read(spot)
    for program in spot.programs[:1]:
        held = spot.plan.programs[program].shards
        for i, j in combinations(numbers, 2):
            if j >= len(held) or i >= len(held) or not _alike(held[i], held[j]):
                continue
            plan = spot.plan
            for p in spot.programs:
                plan = _exchanged(plan, p, held[i].name, held[j].name)
            yield Candidate(
                "parameters exchanged",
                f"{held[i].name} and {held[j].name} in each other's place",
                plan,
            )


def _alike(one: Shard, other: Shard) -> bool:
    return one != other and replace(one, name="") == replace(other, name="")


def _exchanged(plan: Plan, number: int, one: str, other: str) -> Plan:
    """The program with two names of parameters exchanged."""
    program = plan.programs[number]
    names = {one: other, other: one}
    held = tuple(replace(s, name=names.get(s.name, s.name)) for s in program.shards)
    return with_program(plan, number, replace(program, shards=held))
