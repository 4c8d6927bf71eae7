"""Entries of log-probabilities: what they are picked of, and what is taken off it."""

from __future__ import annotations

from typing import Any

from shardproof.frontends.aten.lowering import Lowered, Lowering, Real
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.aten.roots import maker


def taken_apart(lo: Lowering, table: Real) -> tuple[Real, Lowered] | None:
    """Of a log-softmax [..., n], or a view of it with as long rows, what an entry of each row is
    picked of and the number [...] that is taken off the entry, as losses are read (`Reading`); None
    of any other value.

    Example: of ``F.log_softmax(z, -1)``, ``z - z.amax(-1)`` and the logarithm of the sum of its
    exponentials, beside scores that the other side picks ``z`` and that plus the maximum.
    """
    number = table.number
    while (known := lo.exponentials.get(number)) is None:
        op = maker(lo, number)
        if op is None or op.name != "view":
            return None
        number = op.inputs[0]
    rows, _, total, scores, most = known
    if rows.shape[-1:] != table.shape[-1:]:
        return None
    log: Any = lo.unary("log", total)
    if lo.reading is Reading.SCORES:
        rows, log = scores, lo.add(log, most)
    return lo.real(lo.reshape(rows, table.shape)), lo.reshape(log, table.shape[:-1])
