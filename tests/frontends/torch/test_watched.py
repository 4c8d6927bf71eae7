"""What a program computes of a rank's number, and compares: the ranks that it tells from others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from shardproof.frontends.torch.watched import COMPUTED, Splits, Watched

RANKS = range(12)
UNARY = ("neg", "pos", "abs", "invert", "round", "floor", "ceil", "trunc")


def apart(program: Callable[[Any], object], rank: int) -> set[tuple[int, ...]]:
    splits = Splits(lambda _: True)
    bool(program(Watched.of(rank, {r: r for r in RANKS}, splits)))
    return set(splits.minorities)


@pytest.mark.parametrize(
    "program",
    [
        lambda rank: rank == 5,
        lambda rank: rank >> 2 == 1,
        lambda rank: rank & 6 == 6,
        lambda rank: (rank | 3) == 7,
        lambda rank: 1 ^ rank == 4,
        lambda rank: rank << 1 > 20,
        lambda rank: divmod(rank, 5)[0] == 2,
        lambda rank: divmod(rank, 4)[1] - 3 + rank == 3,
        lambda rank: -rank < -9,
        lambda rank: ~rank == -2,
        lambda rank: abs(rank - 11) < 2,
        lambda rank: 11 // (rank + 1) == 3,
        lambda rank: 23 % (rank + 1) == 5,
        lambda rank: rank**2 == 25,
        lambda rank: pow(rank, 2, 7) == 4,
        lambda rank: round(rank) + math.floor(rank) == 6,
        lambda rank: math.ceil(rank) * math.trunc(rank) > 100,
    ],
)
@pytest.mark.parametrize("rank", [0, 5])
def test_ranks_that_are_treated_apart_are_named(
    program: Callable[[Any], object], rank: int
) -> None:
    """Whichever rank runs the program: against what it computes on each of them."""
    assert apart(program, rank) == {tuple(r for r in RANKS if program(r))}


def test_numbers_are_those_that_integers_give() -> None:
    own = Watched.of(5, {r: r for r in RANKS}, Splits(lambda _: True))
    for name in COMPUTED:
        others = () if name in UNARY else (3,)
        actual, plain = (getattr(x, f"__{name}__")(*others) for x in (own, 5))
        assert (int(actual), actual.values[5]) == (plain, plain)
    assert own.__add__("3") is NotImplemented
    with pytest.raises(ZeroDivisionError):
        own // 0


def test_numbers_of_ranks_are_compared_with_each_other() -> None:
    splits = Splits(lambda path: path == __file__)
    rank = Watched.of(5, {r: r for r in range(8)}, splits)
    place = Watched.of(1, {r: r // 4 for r in range(8)}, splits)
    assert rank % 4 == place
    assert splits.minorities == {(0, 5): None}
    assert rank != place
    assert splits.minorities == {(0, 5): None, (0,): None}


def test_numbers_of_ranks_are_compared_with_constants() -> None:
    splits = Splits(lambda path: path == __file__)
    rank = Watched.of(5, {r: r for r in range(8)}, splits)
    assert rank + 1 == 6.0
    assert rank < 6
    assert rank >= 0
    assert splits.minorities == {(5,): None, (6, 7): None}
