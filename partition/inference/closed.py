"""Values of the parallel side that cannot be multiplied out."""

from __future__ import annotations

from shardproof.engine.claims.cone import operands
from shardproof.engine.lineage.expressions import Combine, Einsum, Restrict
from shardproof.engine.lineage.nodes import NodeTable


class Closed:
    """The nodes that are no sum or product, or are made of such a one that only the parallel side
    has (``reference_size`` on): no expansion of them ends at nodes that both sides have.  Blocks of
    nodes that both have are of both.

    Example: of ``x = exp(a b)`` in a plan whose single device has no such exponential, x and
    ``x + a`` are closed, ``a b + a`` is not.
    """

    def __init__(self, table: NodeTable, reference_size: int) -> None:
        self._table = table
        self._reference_size = reference_size
        self._known: dict[int, bool] = {}

    def __contains__(self, number: int) -> bool:
        closed = self._known.get(number)
        if closed is None:
            closed = self._known[number] = self._is_closed(number)
        return closed

    def _is_closed(self, number: int) -> bool:
        definition = self._table[number].definition
        if isinstance(definition, Restrict):
            base = definition.node
            return base >= self._reference_size and base in self
        if not isinstance(definition, Einsum | Combine):
            return True
        below = {o.node for o in operands(self._table, number)}
        return any(n >= self._reference_size and n in self for n in below)
