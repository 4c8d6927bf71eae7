"""A plan with the ranks along its mesh axes written out, each as a program of its own.

A family of ranks is read as one: what all of them hold has one lineage, whose intervals move with
the coordinates.  Where some ranks hold one value and some another (the gradients of q, k and v of a
fused projection, each on its own ranks), there is none.  Written out, every rank has a lineage of
its own.  For example a program with ``tp = 2`` at rank 0 becomes two programs without that axis,
of ranks 0 and 1, and a group along ``tp`` the group of ranks (0, 1).

It is the same plan: ranks, order of issue, groups in order of rank and positions are what they were
at each coordinate.  Axes along which the batch is divided stay: which slice a rank loads is told by
its coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.ir import Addend, Body, Expectation, Group, Op, Plan, Program, Shard

#: Programs of a plan that is written out, and operators of them.
MOST_PROGRAMS: Final = 16
MOST_OPERATORS: Final = 20_000

Here = Mapping[str, int]


class _Kept(Exception):
    """What is said along an axis has no other form than along it."""


def apart(plan: Plan) -> Plan | None:
    """The plan with the ranks along all axes but those of replicas written out; None where there
    are no such axes, or it would be large, or something in it is said along an axis as a whole."""
    axes = {
        axis
        for program in plan.programs
        for axis, extent, _ in program.axes
        if extent > 1 and axis not in plan.replica_axes
    }
    places = [_coordinates(program, axes) for program in plan.programs]
    operators = sum(
        len(held) * len(program.bodies[call.body].ops)
        for program, held in zip(plan.programs, places, strict=True)
        for call in program.calls
    )
    if not axes or sum(map(len, places)) > MOST_PROGRAMS or operators > MOST_OPERATORS:
        return None
    if plan.rounded or len({_strides(program, axes) for program in plan.programs}) > 1:
        return None
    try:
        programs = tuple(
            _program(program, here, axes)
            for program, held in zip(plan.programs, places, strict=True)
            for here in held
        )
        starts = [sum(map(len, places[:p])) for p in range(len(places))]
        rows = tuple(e for row in plan.expectations for e in _rows(row, places, starts, axes))
    except _Kept:
        return None
    return replace(plan, programs=programs, expectations=rows)


def _strides(program: Program, axes: set[str]) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted(axis for axis in program.axes if axis[0] in axes))


def _coordinates(program: Program, axes: set[str]) -> list[dict[str, int]]:
    """All coordinates of a program along axes, in order of rank."""
    own = sorted((a for a in program.axes if a[0] in axes), key=lambda a: -a[2])
    names = [name for name, _, _ in own]
    return [dict(zip(names, here, strict=True)) for here in product(*(range(n) for _, n, _ in own))]


def _program(program: Program, here: Here, axes: set[str]) -> Program:
    """The ranks of a program at some coordinates."""
    strides = {name: stride for name, _, stride in program.axes}
    shift = sum(strides[axis] * position for axis, position in here.items())
    writer = _Writer(program, here, shift)
    told = ", ".join(f"{axis} {position}" for axis, position in here.items())
    return replace(
        program,
        name=f"{program.name} at {told}" if told else program.name,
        bodies=tuple(writer.body(body) for body in program.bodies),
        shards=tuple(writer.shard(shard) for shard in program.shards),
        base=program.base + shift,
        axes=tuple(axis for axis in program.axes if axis[0] not in axes),
    )


class _Writer:
    """Writes what a program says at some coordinates; ``shift``: how far its ranks are from the
    first one's."""

    def __init__(self, program: Program, here: Here, shift: int) -> None:
        self.program, self.here, self.shift = program, here, shift
        self.steps = {name: (extent, stride) for name, extent, stride in program.axes}

    def body(self, body: Body) -> Body:
        return replace(body, ops=tuple(self.op(op) for op in body.ops), claims=())

    def shard(self, shard: Shard) -> Shard:
        return replace(shard, offset=tuple(_at(start, self.here) for start in shard.offset))

    def op(self, op: Op) -> Op:
        if not op.attrs:
            return op
        declared = TABLE.get(op.name)
        ranks = (
            set()
            if declared is None
            else {k for k, a in declared.attrs.items() if a.kind == "rank"}
        )
        attrs: dict[str, Any] = {}
        for key, value in op.attrs.items():
            if key in ranks and isinstance(value, int):
                attrs[key] = value + self.shift
            elif isinstance(value, Group):
                attrs[key] = self.group(value)
                if value.axes != attrs[key].axes and "position" in op.attrs:
                    raise _Kept
            else:
                attrs[key] = _attribute(value, self.here)
        if declared is not None and not declared.joint:
            spanned = attrs.get("group")
            if isinstance(spanned, Group) and len(spanned.ranks) > 1 and spanned.axes:
                raise _Kept
        return replace(op, attrs=attrs)

    def group(self, group: Group) -> Group:
        """A group with its members along the axes that are written out as explicit ranks."""
        out = [axis for axis in group.axes if axis in self.here]
        first = group.ranks or ((self.program.base,) if out else ())
        rest = sum(self.steps[a][1] * n for a, n in self.here.items() if a not in out)
        along = [
            range(0, extent * stride, stride) for extent, stride in (self.steps[a] for a in out)
        ]
        ranks = {rank + rest + sum(step) for rank in first for step in product(*along)}
        kept = tuple(axis for axis in group.axes if axis not in out and self.steps[axis][0] > 1)
        return Group(tuple(sorted(ranks)), kept)


def _attribute(value: Any, here: Here) -> Any:
    if isinstance(value, Affine):
        found = _at(value, here)
        return found if found.terms or found == value else found.const
    if isinstance(value, tuple):
        return tuple(_attribute(part, here) for part in value)
    return value


def _at(value: Affine, here: Here) -> Affine:
    for axis, position in here.items():
        value = value.fix(axis, position)
    return value


def _rows(
    row: Expectation, places: list[list[dict[str, int]]], starts: list[int], axes: set[str]
) -> list[Expectation]:
    """A row of the table, at every coordinate; raises `_Kept` where it adds up along an axis."""
    own = [places[a.program] for a in row.held]
    if any(axis in axes for a in row.held for axis, _ in a.over) or any(p != own[0] for p in own):
        raise _Kept
    result = []
    for number, here in enumerate(own[0] if own else [{}]):
        held: tuple[Addend, ...] = tuple(
            replace(a, program=starts[a.program] + number) for a in row.held
        )
        offset = tuple(_at(start, here) for start in row.offset)
        result.append(replace(row, held=held, offset=offset))
    return result
