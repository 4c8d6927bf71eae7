"""Which part of a dimension a rank takes when its group divides it."""

from __future__ import annotations

from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Attr, Group, Op, Program
from shardproof.engine.schedule.dataflow import Structure
from shardproof.engine.schedule.messages import rank_order


class Chunk(NamedTuple):
    """``attrs``: of the slice that a chunk is; ``finding``: where the plan records another one."""

    attrs: dict[str, Attr]
    finding: Finding | None


def chunk(program: Program, op: Op, shape: tuple[int, ...]) -> Chunk:
    """A chunk of a tensor of true local ``shape`` is the slice at the rank's position in its group,
    as torch.chunk cuts it: ceil-sized parts, the last ones smaller.

    Raises `engine.schedule.dataflow.Structure` where the group gives the rank no position, or no
    equal part along a mesh axis.
    """
    group = op.attrs.get("group")
    dim = op.attrs.get("dim")
    if not isinstance(group, Group) or not isinstance(dim, int):
        raise Structure(
            Finding(
                "chunk",
                f"rank {program.base}: a chunk without its group or dimension",
                operator="chunk",
                ranks=(program.base,),
            )
        )
    extents = program.extents
    axis_size = 1
    position: Affine = affine(0)
    axes = rank_order(program, group.axes)
    if axes is None:
        raise Structure(
            Finding(
                "group",
                f"rank {program.base} takes a chunk along {list(group.axes)}: these axes "
                "give the members of its group no order",
                operator="chunk",
                ranks=(program.base,),
            )
        )
    for axis in axes:
        axis_size *= extents[axis]
        position = position * extents[axis] + affine(0, {axis: 1})
    ranks = sorted(group.ranks) or [program.base]
    if program.base not in ranks or not -len(shape) <= dim < len(shape):
        raise Structure(
            Finding(
                "group",
                f"rank {program.base} takes a chunk of dimension {dim} over ranks "
                f"{ranks}, shape {list(shape)}",
                operator="chunk",
                ranks=(program.base,),
                layer=op.source.module,
                source=op.source.location or op.source.cell,
            )
        )
    size = shape[dim]
    count = axis_size * len(ranks)
    step = -(-size // count)
    if axis_size > 1 and (size % count or len(ranks) > 1):
        raise Structure(
            Finding(
                "shape",
                f"rank {program.base}: {count} ranks cannot share {size} evenly",
                operator="chunk",
                ranks=(program.base,),
            )
        )
    start = position * step + ranks.index(program.base) * step
    last = size - start.const if not start.terms else step
    kept = max(0, min(step, last))
    claimed = op.attrs.get("claimed")
    finding = None
    if claimed is not None and not start.terms and claimed != start.const:
        finding = Finding(
            "chunk position",
            f"rank {program.base} takes positions {start.const} to {start.const + kept} of "
            f"dimension {dim} (it is number {ranks.index(program.base)} of {ranks}); the "
            f"plan records that it takes them from {claimed} on",
            operator="chunk",
            layer=op.source.module,
            source=op.source.location or op.source.cell,
            ranks=(program.base,),
            expected=str(claimed),
            actual=str(start.const),
        )
    return Chunk({"dim": dim, "start": start, "size": kept}, finding)
