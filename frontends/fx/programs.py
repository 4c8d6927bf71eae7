"""Bodies of single ranks as programs of classes of ranks.

Bodies that differ in whole numbers only are one body, with these as functions of coordinates of a
mesh; any others are a program for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Attr, Body, Call, Group, Program, Shard
from shardproof.frontends.fx.lower import RankBody
from shardproof.frontends.fx.place import Box
from shardproof.frontends.graphs.graph import Groups
from shardproof.frontends.graphs.mesh import Mesh, Table, find

#: Operators in which one rank does what the others do not: every rank is a program of its own.
ROOTED = frozenset({"broadcast", "send", "recv", "post_recv"})


def _number(x: Attr) -> int | None:
    """An attribute that may depend on the rank."""
    return x if isinstance(x, int) and not isinstance(x, bool) else None


def _skeleton(body: RankBody) -> tuple[Any, ...]:
    """What is the same of bodies that are one."""
    return (
        body.values,
        tuple(
            (
                op.name,
                op.inputs,
                op.outputs,
                op.backward,
                tuple(
                    (key, None if _number(x) is not None or isinstance(x, Group) else x)
                    for key, x in sorted(op.attrs.items())
                ),
            )
            for op in body.ops
        ),
        tuple(replace(s, offset=()) for s in body.shards),
        body.bound,
        body.outputs,
    )


def alike(bodies: Sequence[RankBody]) -> bool:
    """Whether the bodies differ in nothing but numbers, groups and offsets, so that they can be one
    program.

    Example: bodies that slice rows from 0 and from 4 on are; one with an operator more is not.
    """
    first = _skeleton(bodies[0])
    return all(_skeleton(body) == first for body in bodies[1:])


def mesh_of(bodies: Sequence[RankBody], boxes: Sequence[Box]) -> Mesh:
    """The mesh on which the ranks are in as few programs as there can be.

    Example: two ranks with rows 0 to 3 and 4 to 7 of a table are one program over ("axis0", 2, 1);
    with an operator more on rank 1 every rank is a program of its own.
    """
    count = len(bodies)
    if count == 1:
        return Mesh((), ())
    if not alike(bodies) or any(op.name in ROOTED for op in bodies[0].ops):
        return Mesh(("rank",), (count,), (0,))
    tables: set[Table] = set()
    groups: set[Groups] = set()
    for index, op in enumerate(bodies[0].ops):
        for key in op.attrs:
            attributes = [body.ops[index].attrs[key] for body in bodies]
            numbers = [_number(x) for x in attributes]
            if isinstance(attributes[0], Group):
                groups.add(_groups(attributes))
            elif all(n is not None for n in numbers):
                tables.add(tuple(int(n) for n in numbers if n is not None))
    for number in range(len(bodies[0].shards)):
        tables.update(_offsets([body.shards[number] for body in bodies]))
    for box in boxes:
        tables.update(tuple(start[d] for start in box.starts) for d in range(len(box.full)))
    mesh = find(count, sorted(tables), sorted(groups), ())
    return mesh if mesh is not None else Mesh(("rank",), (count,), (0,))


def _groups(attributes: Sequence[Attr]) -> Groups:
    return tuple(sorted({tuple(sorted(g.ranks)) for g in attributes if isinstance(g, Group)}))


def _offsets(shards: Sequence[Shard]) -> list[Table]:
    return [tuple(s.offset[d].const for s in shards) for d in range(len(shards[0].offset))]


def place(table: Table, mesh: Mesh, base: int) -> Affine:
    """A number for every rank as a function of the coordinates of the program at ``base``.

    Example: (0, 4) on a mesh of one axis ``axis0`` of two ranks is ``4*axis0``.
    """
    if not mesh.extents:
        return affine(table[0])
    function = mesh.function(table, base)
    if function is None:
        raise InvalidInput("ranks whose parts lie on no mesh")
    return function


def bases(mesh: Mesh) -> list[int]:
    """The first rank of every program; without axes there is one rank, 0.

    Example: two ranks in one program have [0]; two in programs of their own [0, 1].
    """
    return mesh.bases() if mesh.extents else [0]


def programs(bodies: Sequence[RankBody], mesh: Mesh, name: str) -> tuple[Program, ...]:
    """The programs that the ranks run.

    Example: two ranks in one program are "ranks"; in programs of their own "ranks 0" and "ranks 1".
    """
    first_ranks = bases(mesh)
    same = not mesh.extents or len(first_ranks) < len(bodies)
    return tuple(
        _program(
            bodies if same else [bodies[base]] * len(bodies),
            mesh,
            base,
            f"{name} {base}" if len(first_ranks) > 1 else name,
        )
        for base in first_ranks
    )


def _program(bodies: Sequence[RankBody], mesh: Mesh, base: int, name: str) -> Program:
    body = bodies[base]
    shards = tuple(
        replace(
            shard,
            offset=tuple(
                place(table, mesh, base) for table in _offsets([b.shards[number] for b in bodies])
            ),
        )
        for number, shard in enumerate(body.shards)
    )
    ops = tuple(
        replace(op, attrs=_attrs([b.ops[index].attrs for b in bodies], mesh, base))
        for index, op in enumerate(body.ops)
    )
    step = Body(
        "step",
        body.values,
        ops,
        shards=body.bound,
        results=tuple(dict.fromkeys(v for v in body.outputs if v >= 0)),
    )
    return Program(name, (step,), (Call(0),), shards, base, mesh.axes() if mesh.extents else ())


def _attrs(given: Sequence[Mapping[str, Attr]], mesh: Mesh, base: int) -> dict[str, Attr]:
    attributes: dict[str, Attr] = {}
    for key, own in given[base].items():
        numbers = [_number(attrs[key]) for attrs in given]
        if isinstance(own, Group) and mesh.extents:
            attributes[key] = _group([attrs[key] for attrs in given], own, mesh, base)
        elif any(n != numbers[0] for n in numbers):
            function = place(tuple(int(n or 0) for n in numbers), mesh, base)
            attributes[key] = function if function.terms else function.const
        else:
            attributes[key] = own
    return attributes


def _group(attributes: Sequence[Attr], own: Group, mesh: Mesh, base: int) -> Group:
    if len(mesh.explicit) == len(mesh.extents):
        return Group(own.ranks)
    group = mesh.group(_groups(attributes), base)
    if group is None:
        raise InvalidInput("a group of ranks that lies along no axes of any mesh")
    return group
