"""Drawn views that lie side by side: joining them keeps every entry where it is."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Place, StridedInterval, View
from shardproof.engine.lineage.places import collapsed, normal
from shardproof.engine.lineage.views import constant_interval

EXTENTS = (16, 8)
NODE = np.random.default_rng(0).normal(size=EXTENTS)
SIZES = (4, 8, 12)
DRAWS = 400


def entries(addends: list[Addend], size: int) -> NDArray[np.float64]:
    """What addends of a tensor of one dimension are, entry by entry, by what a view means."""
    total = np.zeros(size)
    for addend in addends:
        kept = np.ones(size, dtype=bool)
        for _, start, count, extent in addend.places:
            kept &= (np.arange(size) % extent >= start) & (np.arange(size) % extent < start + count)
        local = np.arange(int(kept.sum()))
        index: list[Any] = [np.zeros_like(local) for _ in EXTENTS]
        for single in addend.view.fixed:
            index[single.axis] = index[single.axis] + single.stride * single.start.const
        inner = 1
        for interval in reversed(addend.view.dims[0]):
            digit = local // inner % interval.size
            inner *= interval.size
            if interval.axis != BROADCAST:
                moved = interval.stride * (digit + interval.start.const)
                index[interval.axis] = index[interval.axis] + moved
        assert inner == len(local)
        total[kept] += float(addend.factor) * NODE[tuple(index)]
    return total


class Drawn:
    """Two or three views, one beside the other in every period of a tensor."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = int(self.rng.choice(SIZES))
        periods = [n for n in range(2, self.size + 1) if self.size % n == 0]
        period = int(self.rng.choice(periods))
        inside = sorted({int(n) for n in self.rng.integers(1, period, 2)})
        self.addends: list[Addend] = []
        at = [0, 0]
        for start, stop in pairwise([0, *inside, period]):
            dim = self.dim(self.size // period, stop - start, at)
            places = normal([Place(0, start, stop - start, period)])
            self.addends.append(Addend(Fraction(1), 5, View((dim,)), places=places))

    def dim(self, periods: int, count: int, at: list[int]) -> tuple[StridedInterval, ...]:
        """``periods`` times ``count`` positions: as one interval that goes on where the one before
        ended, or periods by positions, or what does not vary."""
        kind = int(self.rng.integers(4))
        if kind == 0:
            return (constant_interval(periods * count),)
        if kind == 1 and at[1] + count <= EXTENTS[1] and periods <= 4:
            first, at[1] = at[1], at[1] + count
            outer = StridedInterval(0, 4, 4, affine(0), periods)
            return (outer, StridedInterval(1, 1, 8, affine(first), count))
        if at[0] + periods * count <= EXTENTS[0]:
            first, at[0] = at[0], at[0] + periods * count
            return (StridedInterval(0, 1, 16, affine(first), periods * count),)
        return (constant_interval(periods * count),)


@pytest.mark.parametrize("first", range(0, 5 * DRAWS, DRAWS))
def test_views_that_are_joined_have_the_same_entries(first: int) -> None:
    count = 0
    for seed in range(first, first + DRAWS):
        drawn = Drawn(seed)
        together = joined([collapsed(addend) for addend in drawn.addends])
        form = [addend._replace(view=settled(addend.view)) for addend in together]
        wanted = entries(drawn.addends, drawn.size)
        np.testing.assert_array_equal(entries(form, drawn.size), wanted)
        count += len(together) < len(drawn.addends)
    assert count  # some are one view together
