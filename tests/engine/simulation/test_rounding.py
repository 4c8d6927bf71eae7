"""Which further runs tell whether a difference is rounding: counted, of both sides made up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shardproof.engine.simulation.comparisons import Comparison, compare
from shardproof.engine.simulation.inputs import BEND
from shardproof.engine.simulation.rounding import WAYS, Comparisons, without_rounding
from shardproof.engine.specification.demands import Demand

#: What a rank has too much, on a way and of numbers with more digits.
Off = Callable[[int, float, bool], float]


def compared(expected: float, actual: float) -> Comparison:
    demand = Demand("loss", "loss", 0, 0, (), (1,), (1,))
    return compare(demand, (), np.array([expected]), np.array([actual]), 1.0)


def looked(off: Off, *, longer: bool = True) -> tuple[Comparisons, list[tuple[int, float, bool]]]:
    """What is left of a difference, and the runs that were made."""
    runs: list[tuple[int, float, bool]] = []

    def again(
        way: int = 0, nudge: float = 0.0, sides: object = (), long: bool = False
    ) -> Comparisons:
        runs.append((way, nudge, long))
        return (compared(1.0 + nudge, 1.0 + nudge + off(way, nudge, long)),)

    first = (compared(1.0, 1.0 + off(0, 0.0, False)),)
    return without_rounding(first, again, (), small=False, longer=longer), runs


@pytest.mark.parametrize("longer", [True, False])
def test_a_small_difference_that_is_as_large_with_more_digits(longer: bool) -> None:
    left, runs = looked(lambda way, nudge, long: 1e-5, longer=longer)
    assert left[0].differs
    assert len(runs) == (2 if longer else 1 + 2 * WAYS)


@pytest.mark.parametrize("longer", [True, False])
def test_rounding_is_another_one_beside_and_less_with_more_digits(longer: bool) -> None:
    def off(way: int, nudge: float, long: bool) -> float:
        noise = {1: 3e-5, -1: -2e-5}.get(int(np.sign(nudge)), 2e-5) if abs(nudge) == BEND else 2e-5
        return noise / 2048 if long else noise

    left, runs = looked(off, longer=longer)
    assert not left[0].differs
    assert len(runs) == 1 + longer + 2 * WAYS


def test_what_does_not_differ_is_run_once() -> None:
    assert looked(lambda way, nudge, long: 0.0)[1] == []
