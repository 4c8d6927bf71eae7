"""What a rank ends up with beside what it should be, and whether rounding explains a difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.simulation.replay import Coordinates
from shardproof.engine.specification.demands import Demand

Floats = NDArray[np.float64]

#: Largest error, relative to the scale of the tensor, that is rounding.
TOLERANCE = 1e-6
#: How many times as far off as a nudge of the inputs moves either side a value has to be.
MOVED = 100.0
#: Differences below this one may be what is left of numbers that cancel: rounding of these.
LEFT = 1e-8
#: How many times as far off what is rounded is, at least, without the eleven bits that longer
#: numbers have: 2,048 times as a rule, but one number may be near to the shorter ones by chance.
FINER = 4.0
#: So may those below this one of large numbers.
COARSE = 1e-3
#: Which part of a difference is another among numbers with more digits, at most, if none of it is
#: rounding.
FIRM = 1e-2


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off; its index is that of a representative position.

    Example: ``Worst((1, 0), -1.648, -0.412)``.
    """

    index: tuple[int, ...]
    expected: float
    actual: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a rank ends up with, and what the single device says it should be.

    Example: the gradient of w1, 0.75 off, of replicas that each count a quarter.

    ``demand``: what this is about.  ``at``: the rank's position along the axes that were expanded.
    ``error``: relative to the scale of the whole tensor.
    """

    demand: Demand
    at: Coordinates
    expected: Floats
    actual: Floats
    error: float
    worst: Worst

    @property
    def program(self) -> int:
        """The parallel program that holds the value."""
        return self.demand.program

    @property
    def shard(self) -> int:
        """The shard whose gradient is compared; -1 where no gradient is."""
        return self.demand.shard

    @property
    def name(self) -> str:
        """The name of the single-device value."""
        return self.demand.name

    @property
    def differs(self) -> bool:
        """Whether the relative error is more than rounding explains, or no number."""
        return not self.error <= TOLERANCE


def compare(
    demand: Demand, at: Coordinates, expected: Floats, actual: Floats, scale: float
) -> Comparison:
    """One comparison; NaN and infinity count as infinitely wrong unless both sides have them.

    Example: of expected [1, 2] and actual [1, 2.5] at the scale 2 the error is 0.25, worst at (1,).
    """
    with np.errstate(invalid="ignore"):
        off = np.abs(actual - expected)
    off = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0.0, off)
    off = np.where(np.isnan(off), np.inf, off)
    if not off.size:
        return Comparison(demand, at, expected, actual, 0.0, Worst((), 0.0, 0.0))
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
    return Comparison(
        demand,
        at,
        expected,
        actual,
        float(off[index]) / (scale if scale and np.isfinite(scale) else 1.0),
        Worst(index, float(expected[index]), float(actual[index])),
    )


def may_be_left(comparison: Comparison, *, small: bool) -> bool:
    """Whether a difference may be what is left of numbers that cancel; ``small``: of small ones.

    Example: of 0.5 and 0.50001, unless these are small; of 0.5 and 0.6, not.
    """
    return comparison.differs and difference(comparison) < (LEFT if small else COARSE)


def is_firm(comparison: Comparison, longer: Comparison) -> bool:
    """Whether a difference is as large among numbers with more digits, so that it is no rounding.

    Example: 0.0013416 beside 0.0013417, where it is 1.0e-7, too; 1e-16, which is 5e-20, is not.
    """
    here, there = (_largest(c.expected - c.actual) for c in (comparison, longer))
    return abs(here - there) <= FIRM * here


def settled(comparison: Comparison, near: Comparison) -> Comparison:
    """A comparison, without its difference where inputs next to these move a side about as far: a
    value that is zero over the reals, or a kink that the inputs lie on, tells nothing.

    Example: of -3e-17 beside 2e-17, where both are others a part of 1e-12 beside.
    """
    sides = ((comparison.expected, near.expected), (comparison.actual, near.actual))
    with np.errstate(invalid="ignore"):
        moved = [_largest(here - there) for here, there in sides if here.shape == there.shape]
    return _without(comparison, max(moved, default=0.0))


def straight(
    comparisons: Sequence[Comparison],
    ways: Iterable[tuple[Sequence[Comparison], Sequence[Comparison]]],
) -> tuple[Comparison, ...]:
    """Comparisons, without differences of values that do not go straight from inputs behind these
    to inputs before them, on some of several ways, about as far off: so do sums of numbers that
    cancel, of which rounding is left, and nothing else does on so short a way.

    Example: ``1 / s - s / s^2`` of numbers near 1 is 0 or 1.1e-16, and is multiplied by what is
    small; a way is long enough that s is not one and the same float.
    """
    bent: dict[str, float] = {}
    for way in ways:
        for here, after, before in zip(comparisons, *way, strict=True):
            off = max(
                _bend(here.expected, after.expected, before.expected),
                _bend(here.actual, after.actual, before.actual),
            )
            bent[here.name] = max(bent.get(here.name, 0.0), off)
    return tuple(_without(c, bent.get(c.name, 0.0)) for c in comparisons)


def unrounded(
    comparisons: Sequence[Comparison], longer: Sequence[Comparison]
) -> tuple[Comparison, ...]:
    """Comparisons, without differences that are far smaller among numbers with more digits: what is
    left of them there was rounding here.

    Example: ``log(1 - sigmoid(40))`` is minus infinity in double precision, and of a smaller number
    inexact; with eleven bits more it is nearly ``log(sigmoid(-40))``.
    """
    made = []
    for here, there in zip(comparisons, longer, strict=True):
        off, left = (_largest(c.expected - c.actual) for c in (here, there))
        same = here.differs and np.isfinite(here.error) and off >= FINER * left
        made.append(replace(here, error=0.0) if same else here)
    return tuple(made)


def seen_again(
    comparisons: Sequence[Comparison], again: Sequence[Comparison]
) -> tuple[Comparison, ...]:
    """Comparisons, without differences that are not there in other ones of the same values.

    Example: of 1 beside 2, where the other run has 3 beside 3, nothing is left.
    """
    pairs = zip(comparisons, again, strict=True)
    return tuple(here if there.differs else replace(here, error=0.0) for here, there in pairs)


def _bend(here: Floats, after: Floats, before: Floats) -> float:
    """How far values are from the middle between those on both sides, twice."""
    if not here.shape == after.shape == before.shape:
        return 0.0
    return _largest(after + before - 2 * here)


def _largest(change: Floats) -> float:
    """The largest magnitude of what is finite."""
    return float(np.abs(change).max(initial=0.0, where=np.isfinite(change)))


def difference(comparison: Comparison) -> float:
    """How far off the worst element is.

    Example: 1.5, where -1.19 is expected and 0.31 is there.
    """
    return abs(comparison.worst.expected - comparison.worst.actual)


def _without(comparison: Comparison, moved: float) -> Comparison:
    """A comparison, without a difference that is about as large as something else."""
    off = difference(comparison)
    return replace(comparison, error=0.0) if off <= MOVED * moved else comparison


def divides_by_zero(comparison: Comparison) -> bool:
    """Whether the single device has an infinite number where a rank has none at all.

    Example: 1 / 0 beside 0 / 0.
    """
    expected, actual = comparison.expected, comparison.actual
    return expected.shape == actual.shape and bool((np.isinf(expected) & np.isnan(actual)).any())


def is_no_number(comparison: Comparison) -> bool:
    """Whether a rank computes a number that is none, as a mean of no rows is, of a value that the
    single device has.

    Example: 0 / 0 beside 1.
    """
    return comparison.demand.program >= 0 and bool(np.isnan(comparison.actual).any())


def is_infinite(comparison: Comparison) -> bool:
    """Whether a rank computes what is no finite number, as a softmax by hand of a row without
    scores does, where the single device has one.

    Example: 0 / 0 or the logarithm of 0 beside 1.
    """
    expected, actual = comparison.expected, comparison.actual
    same = expected.shape == actual.shape and comparison.demand.program >= 0
    return same and bool((np.isfinite(expected) & ~np.isfinite(actual)).any())
