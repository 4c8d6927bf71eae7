"""Parameters of layers stacked in one tensor (a scan over layers): an input for every layer.

Of a tensor of which the single-device program takes one row at a time, every row is a tensor of its
own: both sides hold the rows as named inputs, one after the other.  What one layer's row is for
is then no matter of which of many it is.
"""

from __future__ import annotations

from dataclasses import replace

from shardproof.frontends.graphs.graph import Graph, Node, Placement
from shardproof.frontends.graphs.recorder import PlacedInput
from shardproof.frontends.hlo.items import Tensor
from shardproof.frontends.hlo.state import Lowering

#: Stacks of more rows stay as they are.
MOST_ROWS = 256


def stacks(single: Graph, parallel: Graph) -> frozenset[int]:
    """Positions of the inputs that are stacks: of numbers, taken row by row by the single side, and
    not divided along the rows on any rank.

    Example: of a ``lax.scan`` over layers with weights ``f32[3,8,16]`` and ``f32[3,16,8]``, the
    positions of both.
    """
    stacked = {node.operands[0] for node in single.nodes if _takes_row(single, node)}
    positions = set()
    for position, (own, other) in enumerate(zip(single.inputs, parallel.inputs, strict=True)):
        value, local = single.values[own.value], parallel.values[other.value]
        whole = len(value.shape) > 1 and local.shape[:1] == value.shape[:1]
        if own.value in stacked and whole and value.dtype.startswith(("float", "bfloat")):
            positions.add(position)
    return frozenset(positions)


def _takes_row(graph: Graph, node: Node) -> bool:
    if node.target not in ("slice", "dynamic-slice"):
        return False
    shape = graph.values[node.operands[0]].shape
    row = graph.values[node.results[0]].shape
    return len(shape) > 1 and 1 < shape[0] <= MOST_ROWS and row == (1, *shape[1:])


def hold(low: Lowering, placed: PlacedInput) -> Tensor:
    """An input that is a stack of layers' parameters, as one input for every row, side by side.

    Example: ``p = f32[3,8]`` becomes the inputs ``p[0]``, ``p[1]`` and ``p[2]`` of shape [1, 8] and
    a ``concat`` of them.
    """
    shape, full = low.recorder.shape(placed.value), placed.placement.full
    starts = tuple((0, *start[1:]) for start in placed.placement.starts)
    rows = []
    for row in range(shape[0]):
        name = f"{placed.name}[{row}]"
        value = low.recorder.value((1, *shape[1:]), placed.dtype, name)
        placement = Placement((1, *full[1:]), starts)
        low.recorder.placed.append(replace(placed, value=value, name=name, placement=placement))
        rows.append(value)
    return low.op("concat", *rows, dim=0)
