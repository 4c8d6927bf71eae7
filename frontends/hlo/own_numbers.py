"""One number on each rank: an entry of a table that the other side has, or one of as many tensors.

A rank computes of ``axis_index`` what the single device has for all of them (the slopes of ALiBi's
heads, an offset of each row): its number is the entry of that table which belongs to it, and a
proof holds for any numbers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from shardproof.frontends.graphs.graph import PerRank, Shape
from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo.known import exact
from shardproof.frontends.hlo.module import Array


class _Values(Protocol):
    """What makes values of the body (`items.Values`)."""

    @property
    def recorder(self) -> Recorder: ...
    @property
    def tables(self) -> Sequence[Array]: ...
    def full(self, shape: Shape, number: Fraction) -> int: ...
    def broadcast(self, value: int, dims: Sequence[int], shape: Shape) -> int: ...
    def view(self, value: int, shape: Shape) -> int: ...


def by_rank(values: _Values, numbers: Sequence[Fraction], shape: Shape) -> int:
    """A tensor of one number on each rank: the entries of a table that the other side has, where
    they are all of it; or one of as many tensors side by side as there are different numbers.

    Example: 0.25 and 0.5 on two ranks, beside a single device with ``[0.25, 0.5]``, are entry
    ``<rank>`` of that; beside one that has none, the first or second of two tensors.
    """
    for table in values.tables:
        places = _places(numbers, table)
        if places is not None:
            own = [table[n : n + 1] for n in places]
            entry = values.recorder.constant(own, tuple((n,) for n in places))
            return values.broadcast(values.view(entry, ()), (), shape)
    kinds = sorted(set(numbers))
    place = PerRank(tuple(kinds.index(n) for n in numbers))
    sides = [values.full((1, *shape), number) for number in kinds]
    joined = values.recorder.op("concat", *sides, dim=0)
    return values.view(values.recorder.op("slice", joined, dim=0, start=place, size=1), shape)


def _places(numbers: Sequence[Fraction], table: Array) -> list[int] | None:
    """Which entry of a table each rank has, all entries being of some rank; None: these are others,
    or the choice of one rank (one, and zeros), which are numbers.

    Ranks have them in their order, as many one after the other or in turns; entries that are
    different say themselves where they are.
    """
    if table.ndim != 1 or len(numbers) % max(1, table.size):
        return None
    count, size = len(numbers), table.size
    entries = [exact(n.item()) for n in table]
    if set(numbers) <= {0, 1} and min(entries.count(Fraction(n)) for n in (0, 1)) < 2:
        return None
    first = [[k for k, entry in enumerate(entries) if entry == n] for n in numbers]
    if size < 2 or not all(first):
        return None
    orders = [
        [rank * size // count for rank in range(count)],
        [rank % size for rank in range(count)],
        [f[0] for f in first],
    ]
    for own in orders:
        alike = all(n in f for n, f in zip(own, first, strict=True))
        if alike and set(own) == set(range(size)):
            return own
    return None
