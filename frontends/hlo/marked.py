"""Numbers that are written to tell which write was the last one, as JAX differentiates
``x.at[ids].set(y)``.

It writes a number of its own for each update, reads them again by the same ids, and lets an update
count where it reads its own one; what is 0 still was not written.  Where no place is written twice,
every update reads its own number, and which numbers were written says nothing but where.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import chosen_rows
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo.items import Ids, Item, Narrow
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering, integral


def marks(low: Lowering, node: Node, xs: Sequence[Item], ids: Ids, rows: int) -> bool:
    """Whether a scatter that writes no place twice, by these ids among so many rows, writes numbers
    among zeros that are read by the same ids, or compared with 0, and are nothing else.

    Example: 1, 2 and 3 at three places of zeros, of which a gather by the same places is compared
    with 1, 2 and 3.
    """
    zeros, numbers = xs[0], xs[2]
    if not integral(low.dtype(node)) or not isinstance(numbers, Known):
        return False
    if not isinstance(zeros, Known) or zeros.number() != 0:
        return False
    if not all(np.all(a != 0) for a in numbers.arrays):
        return False
    (value,) = node.results
    readers = [n for n in low.graph.nodes if value in n.operands]
    if any(x.value == value for x in low.graph.outputs) or not all(
        _again(low, node, n) or _with_zero(low, value, n) for n in readers
    ):
        return False
    for function in ids.functions:
        chosen = chosen_rows(function, piecewise.constant(function, 1), rows)
        if chosen is None and not low.settled:
            raise Narrow(ids.origin, rows)
        if chosen is None or len(chosen) != 1:
            return False
    low.marks.add(value)
    return True


def written(low: Lowering, node: Node) -> Item | None:
    """What a gather reads by the ids that wrote it; None: another gather.

    Example: 1, 2 and 3 of the example of `marks`.
    """
    if node.operands[0] not in low.marks:
        return None
    scatter = low.maker(node.operands[0])
    if scatter is None or not _again(low, scatter, node):
        return None
    return low.items[scatter.operands[2]]


def _again(low: Lowering, scatter: Node, node: Node) -> bool:
    """Whether a gather reads by the ids of a scatter, in the same dimensions, boxes as it wrote."""
    if node.target != "gather" or node.operands[1] != scatter.operands[1]:
        return False
    if low.shape(node) != low.graph.values[scatter.operands[2]].shape:
        return False
    pairs = (
        ("start_index_map", "scatter_dims_to_operand_dims"),
        ("collapsed_slice_dims", "inserted_window_dims"),
        ("operand_batching_dims", "input_batching_dims"),
        ("start_indices_batching_dims", "scatter_indices_batching_dims"),
        ("offset_dims", "update_window_dims"),
        ("index_vector_dim", "index_vector_dim"),
    )
    return all(node.attrs.get(a, ()) == scatter.attrs.get(b, ()) for a, b in pairs)


def _with_zero(low: Lowering, value: int, node: Node) -> bool:
    if node.target != "compare" or node.attrs["direction"] not in ("EQ", "NE"):
        return False
    makers = [low.maker(v) for v in node.operands if v != value]
    return len(makers) == 1 and makers[0] is not None and _is_zero(makers[0])


def _is_zero(node: Node) -> bool:
    number = node.attrs["value"] if node.target == "constant" else None
    return isinstance(number, Known) and number.number() == 0
