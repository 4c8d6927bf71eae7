"""The largest (smallest) of what goes to each row that ids choose: ``x.at[ids].max(y)``, the
maximum of each segment (``jax.ops.segment_max``, attention over edges of a graph).

It is the maximum over all updates, of which those that go to other rows are hidden by -1e30; where
no update goes, -1e30 stands for minus infinity, which is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf
from typing import Final

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import elementwise, indices
from shardproof.frontends.hlo.elementwise import number_of
from shardproof.frontends.hlo.extended import HIDDEN
from shardproof.frontends.hlo.items import Ids, Item, Narrow, Tensor
from shardproof.frontends.hlo.lookups import aimed
from shardproof.frontends.hlo.state import Lowering

_EMPTY: Final = "the largest of no entries, minus infinity, is taken for -1e30"


def scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A scatter by ``maximum`` or ``minimum`` to whole rows that ids choose, among all of them.

    Example: ``f32[4]`` at ``s32[4]`` into minus infinity ``f32[6]``: the maximum over the four of
    ``onehot * y + (1 - onehot) * -1e30``, [4, 6].
    """
    attrs, ids, _ = aimed(xs[1], node.attrs, "scatter_dims_to_operand_dims")
    (dim,), shape = attrs["scatter_dims_to_operand_dims"], low.shape(node)
    hot = _onehot(low, ids, shape[dim])
    if attrs.get("inserted_window_dims", ()) != (dim,) or attrs.get("input_batching_dims", ()):
        raise Unsupported("a scatter of other boxes than whole rows")
    updates, windows = low.tensor(xs[2]), attrs.get("update_window_dims", ())
    given = low.recorder.shape(updates)
    outer = [d for d in range(len(given)) if d not in windows]
    sign = Fraction(1 if node.attrs["to_apply"] == "maximum" else -1)
    wide = (*(given[d] for d in outer), shape[dim], *(given[d] for d in windows))
    places = {d: n for n, d in enumerate(outer)} | {
        d: len(outer) + 1 + n for n, d in enumerate(windows)
    }
    y = low.op("mul", updates, other=sign).value if sign < 0 else updates
    y = low.values.broadcast(y, [places[d] for d in range(len(given))], wide)
    own = low.values.broadcast(hot, list(range(len(outer) + 1)), wide)
    shown = low.op("mul", own, y).value
    hidden = low.op("mul", own, other=Fraction(-HIDDEN)).value
    hidden = low.op("add", hidden, other=Fraction(HIDDEN)).value
    every = low.op("add", shown, hidden).value
    most = low.op("amax", every, dim=tuple(range(len(outer)))).value
    order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape)))
    if order != tuple(range(len(shape))):
        most = low.op("permute", most, dims=order).value
    made = low.op("mul", most, other=sign) if sign < 0 else Tensor(most)
    low.recorder.notes.append(Assumption("inferred", "empty segments", "", _EMPTY))
    if number_of(xs[0]) == -inf * sign:
        return made
    both = Node(node.name, node.attrs["to_apply"], node.operands[::2], node.results)
    return elementwise.maximum(low, both, [xs[0], made])


def _onehot(low: Lowering, ids: Ids, count: int) -> int:
    """Which of so many rows each id is, if any; raises `Unsupported` for what is computed of ids,
    or for ids that come again."""
    origin = low.recorder.shape(ids.origin)
    if any(f != piecewise.identity(f[0].low, f[-1].high) for f in ids.functions):
        if low.settled:
            raise Unsupported("the largest of rows by computed ids")
        raise Narrow(ids.origin, count)
    if ids.shape != origin or ids.axes != indices.own_axes(origin):
        raise Unsupported("the largest of rows by ids that come again")
    return low.values.onehot(ids.origin, [0] * low.graph.ranks, count)
