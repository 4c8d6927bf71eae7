"""What is read in another shape: ids and looked up rows stay such."""

from __future__ import annotations

from shardproof.frontends.graphs.graph import Shape
from shardproof.frontends.hlo import exchange, indices
from shardproof.frontends.hlo.exchange import Exchanged
from shardproof.frontends.hlo.items import Gated, Ids, Item, Lookup, Tensor
from shardproof.frontends.hlo.state import Lowering


def viewed(low: Lowering, x: Item, shape: Shape) -> Item:
    """The same entries, in their order, in another shape.

    Example: ``f32[4,3]`` as ``f32[12]`` is ``view``; of ids ``s32[4]`` as ``[4, 1]`` they stay ids.
    """
    if isinstance(x, Ids):
        return indices.reshape(low, x, shape)
    if isinstance(x, Lookup):
        rows = indices.reshaped(x, shape)
        if rows is not None:
            return rows
    if isinstance(x, Gated):
        gate = indices.reshape(low, x.gate, shape)
        if isinstance(gate, Ids) and gate.origin == x.gate.origin:
            return Gated(low.values.view(x.value, shape), gate)
    if isinstance(x, Exchanged):
        exchanged = exchange.reshaped(low.recorder, x, shape)
        if exchanged is not None:
            return Tensor(exchanged) if isinstance(exchanged, int) else exchanged
    return Tensor(low.values.view(low.tensor(x), shape))
