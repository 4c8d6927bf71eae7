"""The mesh axes of a plan's programs, made comparable.

Stages may list the same axes in another order, or leave out one of a single position: one stage is
written with ``tp = 1``, another without ``tp``.  They lie on the mesh alike all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from shardproof.engine.plan.ir import Plan, Program


def ranks_at(program: Program, here: Mapping[str, int]) -> Iterator[int]:
    """The ranks that run a program, of those at the coordinates ``here`` along some of its axes.

    Example: of axes ``dp`` 2 with stride 2 and ``tp`` 2 with stride 1 from rank 4 on,
    ``{"tp": 1}`` gives 5 and 7, and ``{}`` gives 4 to 7.
    """
    places = (
        (stride * here[name],) if name in here else range(0, stride * extent, stride)
        for name, extent, stride in program.axes
    )
    return (program.base + sum(place) for place in product(*places))


def on_one_mesh(plan: Plan) -> Plan:
    """The plan, all of whose programs have each axis that has one position wherever it occurs, and
    write it alike; itself, if they do already.

    Example: where the first stage has axes ``dp=2*1 tp=1*1`` and the second one ``dp=2*1``, the
    second one has ``tp=1*1`` too.
    """
    axes: dict[str, tuple[str, int, int]] = {}
    for axis in (axis for program in plan.programs for axis in program.axes):
        if axis[0] not in axes or axis[1] > axes[axis[0]][1]:
            axes[axis[0]] = axis
    single = {name: axis for name, axis in axes.items() if axis[1] == 1}
    meshes = [
        (
            *(single.get(axis[0], axis) for axis in program.axes),
            *(axis for name, axis in single.items() if name not in program.extents),
        )
        for program in plan.programs
    ]
    if all(own == program.axes for own, program in zip(meshes, plan.programs, strict=True)):
        return plan
    programs = zip(plan.programs, meshes, strict=True)
    return replace(plan, programs=tuple(replace(program, axes=own) for program, own in programs))


def described(plan: Plan) -> str:
    """The axes along which the ranks of a plan lie, largest stride first: ``dp 2 x tp 4``.

    Programs that hold ranks of their own come first (``2 programs x dp 2``), since a plan does not
    say what divides them.  Empty where programs lie on unlike axes, and for one rank.

    Example: ``dp 2 x tp 4``, and ``2 programs x dp 2`` of a pipeline of two stages.
    """
    meshes = {tuple(axis for axis in program.axes if axis[1] > 1) for program in plan.programs}
    if len(meshes) != 1:
        return ""
    (axes,) = meshes
    parts = [f"{name} {n}" for name, n, _ in sorted(axes, key=lambda axis: -abs(axis[2]))]
    if len(plan.programs) > 1:
        parts.insert(0, f"{len(plan.programs)} programs")
    return " x ".join(parts)
