"""Which part of a dimension a rank takes when its group divides it."""

from __future__ import annotations

from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Attr, Group, Op, Program
from shardproof.engine.schedule.dataflow import Structure
from shardproof.engine.schedule.messages import rank_order


class Chunk(NamedTuple):
    """The slice that a chunk is on a rank.

    Example: ``Chunk({"dim": 0, "start": 2*tp, "size": 2}, None)``: the ranks along ``tp`` of 4
    share 8 positions.

    ``attrs``: of the slice that a chunk is; ``finding``: where the plan records another one.
    """

    attrs: dict[str, Attr]
    finding: Finding | None


def chunk(program: Program, op: Op, shape: tuple[int, ...]) -> Chunk:
    """A chunk of a tensor of true local ``shape`` is the slice at the rank's position in its group,
    as torch.chunk cuts it: ceil-sized parts, the last one smaller.  Five positions over four ranks
    are three parts, and the fourth rank has none.

    Raises `engine.schedule.dataflow.Structure` where the group gives the rank no position, or no
    part, or no equal part along a mesh axis.

    Example: of 8 positions over ``tp`` of 4 ranks, two positions from ``2*tp`` on.
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
    ranks = sorted(group.ranks) or [program.base]
    if axes is None or program.base not in ranks or not -len(shape) <= dim < len(shape):
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
    for axis in (axis for axis in axes if extents[axis] > 1):
        axis_size *= extents[axis]
        position = position * extents[axis] + affine(0, {axis: 1})
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
    kept = step if start.terms else min(step, size - start.const)
    if kept < 0 or (kept == 0 < size):
        parts = -(-size // step)
        raise Structure(
            Finding(
                "chunk",
                f"rank {program.base} is number {ranks.index(program.base)} of {ranks} and takes "
                f"its chunk of {size} positions, which are {parts} chunks of at most {step}",
                operator="chunk",
                ranks=(program.base,),
                layer=op.source.module,
                source=op.source.location or op.source.cell,
            )
        )
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
