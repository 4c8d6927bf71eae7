"""A plan with the ranks along mesh axes written out, each as a program of its own.

A family of ranks is read as one: what all of them hold has one lineage, whose intervals move with
the coordinates.  Where some ranks hold one value and some another (the gradients of q, k and v of a
fused projection, each on its own ranks), there is none.  Written out, every rank has a lineage of
its own.  For example a program with ``tp = 2`` at rank 0 becomes two programs without that axis, of
ranks 0 and 1, and a group along ``tp`` the group of ranks (0, 1).

It is the same plan: ranks, order of issue, groups in order of rank and positions are what they were
at each coordinate.  Axes along which the batch is divided stay: which slice a rank loads is told by
its coordinates, unless the batch is named inputs (`engine.plan.named_batch`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.expectations import PARTIAL
from shardproof.engine.plan.ir import Attr, Expectation, Group, Op, Plan, Program
from shardproof.engine.plan.named_batch import named_batch

#: Programs of a plan that is written out, and operators that they issue: along all axes, and along
#: one, where most of what each rank does is what another did.
MOST_PROGRAMS: Final = 16
MOST_OPERATORS: Final = 20_000
MOST_ALONG_ONE: Final = 800_000


def separable(plan: Plan) -> list[str]:
    """Axes along which ranks can be written out: every program has them, and the batch is not
    divided along them.

    Example: of a plan with the axes ``dp`` and ``tp`` whose replicas lie along ``dp``, ``["tp"]``.
    """
    axes = {axis for program in plan.programs for axis, extent, _ in program.axes if extent > 1}
    shared = [a for a in sorted(axes) if all(a in p.extents for p in plan.programs)]
    return [axis for axis in shared if axis not in plan.replica_axes]


def forms(
    plan: Plan, among: Iterable[str] | None = None, *, chosen: bool = False
) -> Iterator[Plan]:
    """The plan with ranks written out along one axis (``among`` these, in order; None: along each),
    then along all, each form only where `written_out` has it; then with a named batch (``chosen``:
    as there).

    Example: of a program along ``tp=2`` that divides no batch, one form: a program of rank 0 and
    one of rank 1; of two replicas the two forms with a named batch, in one program and in two.
    """
    axes = separable(plan)
    for axis in axes if among is None else [a for a in among if a in axes]:
        form = written_out(plan, [axis], MOST_ALONG_ONE)
        if form is not None and len(axes) > 1:
            yield form
    form = written_out(plan)
    if form is not None:
        yield form
    issued = sum(len(p.bodies[c.body].ops) for p in plan.programs for c in p.calls)
    named = named_batch(plan, chosen=chosen) if issued <= MOST_OPERATORS else None
    if named is not None:
        yield from _of_replicas(named, plan.replica_axes)


def _of_replicas(named: Plan, replica_axes: Sequence[str]) -> Iterator[Plan]:
    """The forms of a plan with a named batch that it has not without: as it is, where microbatches
    are calls of their own now, and with ranks written out along an axis that divides the batch, or
    along all axes."""
    axes = separable(named)
    yield named
    for axis in [a for a in replica_axes if a in axes and len(axes) > 1]:
        form = written_out(named, [axis])
        if form is not None:
            yield form
    form = written_out(named)
    if form is not None:
        yield form


def moving(plan: Plan, rows: Container[tuple[str, str]]) -> list[str]:
    """Axes along which the boxes of some rows of the table (kind, name) move, those of small steps
    first.

    Example: of rows at ``(<8*tp>, <0>)`` along ``tp``; of a row at ``(<1024*dp + 8*tp>, <0>)``
    first along ``tp``, then along ``dp``.
    """
    steps: dict[str, int] = {}
    for row in plan.expectations:
        if (row.kind, row.name) in rows:
            for axis, step in (term for start in row.offset for term in start.terms):
                steps[axis] = min(abs(step), steps.get(axis, abs(step)))
    return sorted(steps, key=lambda axis: (steps[axis], axis))


def written_out(
    plan: Plan, along: Sequence[str] | None = None, most_operators: int = MOST_OPERATORS
) -> Plan | None:
    """The plan with the ranks along separable axes (None: along all) written out; None where there
    are no such axes, it would be large, or it says of a group what it says of no ranks.

    Example: the program "ranks" with ``tp=2*1``, whose shard begins at ``2*tp``, is the programs
    "ranks tp 0" and "ranks tp 1", whose shards begin at 0 and 2.
    """
    axes = separable(plan) if along is None else along
    calls = [
        (prod(p.extents[a] for a in axes), sum(len(p.bodies[c.body].ops) for c in p.calls))
        for p in plan.programs
    ]
    large = (
        sum(n for n, _ in calls) > MOST_PROGRAMS or sum(n * m for n, m in calls) > most_operators
    )
    partial = any(
        how == "partial" and axis in axes
        for row in plan.expectations
        if row.kind != PARTIAL
        for addend in row.parallel
        for axis, how in addend.over
    )
    if not axes or large or partial or plan.rounded or not all(map(_joins, plan.programs)):
        return None
    if len({tuple(a for a in p.axes if a[0] in axes) for p in plan.programs}) > 1:
        return None
    for axis in axes:
        plan = unrolled(plan, axis)
    return plan


def _joins(program: Program) -> bool:
    """Whether groups may be of explicit ranks, beside the axes that stay: not where members say
    their positions, and along several axes, or axes and ranks, only where the table has a rule for
    both together."""
    for op in (op for body in program.bodies for op in body.ops):
        group, declared = op.attrs.get("group"), TABLE.get(op.name)
        if declared is None or not isinstance(group, Group) or not group.axes:
            continue
        spanned = [axis for axis in group.axes if program.extents.get(axis, 1) > 1]
        together = len(spanned) + (len(group.ranks) > 1)
        if "position" in op.attrs or (together > 1 and not declared.joint):
            return False
    return True


def unrolled(plan: Plan, axis: str) -> Plan:
    """The same plan with a program of its own for every rank along an axis.

    Example: along ``tp``, ``all_reduce`` over ``group(ranks=(), axes=(tp))`` is one over
    ``group(ranks=(0 1), axes=())``, on both ranks.
    """
    programs: list[Program] = []
    first: list[int] = []
    for program in plan.programs:
        extent, stride = next((n, s) for a, n, s in program.axes if a == axis)
        first.append(len(programs))
        programs += [_member(program, axis, i, extent, stride) for i in range(extent)]
    rows = tuple(own for row in plan.expectations for own in _expectations(plan, row, axis, first))
    return replace(plan, programs=tuple(programs), expectations=rows)


def _expectations(
    plan: Plan, row: Expectation, axis: str, first: Sequence[int]
) -> Iterator[Expectation]:
    """A row of the table, for every rank along an axis: what is added up along it is an addend of
    each of them.  ``first``: by program the first one that it becomes."""
    combined = [dict(addend.over).get(axis) for addend in row.parallel]
    extents = [plan.programs[addend.program].extents[axis] for addend in row.parallel]
    apart = [n for n, how in zip(extents, combined, strict=True) if how is None]
    for position in range(min(apart, default=1)):
        addends = []
        for addend, how, extent in zip(row.parallel, combined, extents, strict=True):
            places = [position] if how is None else range(extent)
            weight = addend.weight / (extent if how == "mean" else 1)
            over = tuple(pair for pair in addend.over if pair[0] != axis)
            addends += [
                replace(addend, program=first[addend.program] + i, weight=weight, over=over)
                for i in places
            ]
        offset = tuple(start.fix(axis, position) for start in row.offset)
        yield replace(row, parallel=tuple(addends), offset=offset)


def _member(program: Program, axis: str, position: int, extent: int, stride: int) -> Program:
    """One rank along an axis."""

    def fixed(value: Attr) -> Attr:
        if isinstance(value, Affine):
            return value.fix(axis, position)
        if isinstance(value, Group):
            if axis not in value.axes:
                return Group(tuple(r + stride * position for r in value.ranks), value.axes)
            bases = value.ranks or (program.base,)
            ranks = tuple(rank + stride * i for rank in bases for i in range(extent))
            return Group(ranks, tuple(a for a in value.axes if a != axis))
        if isinstance(value, tuple):
            return tuple(fixed(part) for part in value)
        return value

    def placed(op: Op) -> Op:
        if not op.attrs:
            return op
        declared = TABLE.get(op.name)
        changed = {key: fixed(value) for key, value in op.attrs.items()}
        for key, value in changed.items():
            if declared and key in declared.attrs and declared.attrs[key].kind == "rank":
                changed[key] = value + stride * position if isinstance(value, int) else value
        return replace(op, attrs=changed)

    return replace(
        program,
        name=f"{program.name} {axis} {position}",
        base=program.base + stride * position,
        axes=tuple(a for a in program.axes if a[0] != axis),
        bodies=tuple(
            replace(body, ops=tuple(placed(op) for op in body.ops)) for body in program.bodies
        ),
        shards=tuple(
            replace(s, offset=tuple(o.fix(axis, position) for o in s.offset))
            for s in program.shards
        ),
    )
