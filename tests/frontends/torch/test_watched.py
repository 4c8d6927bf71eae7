"""Which ranks a program tells from the others, by the numbers that it compares."""

from __future__ import annotations

from shardproof.frontends.torch.watched import Splits, Watched


def test_numbers_of_ranks_are_compared_with_each_other() -> None:
    splits = Splits(lambda path: path == __file__)
    rank = Watched.of(5, {r: r for r in range(8)}, splits)
    place = Watched.of(1, {r: r // 4 for r in range(8)}, splits)
    assert rank % 4 == place
    assert splits.found == {(0, 5): None}
    assert rank != place
    assert splits.found == {(0, 5): None, (0,): None}


def test_numbers_of_ranks_are_compared_with_constants() -> None:
    splits = Splits(lambda path: path == __file__)
    rank = Watched.of(5, {r: r for r in range(8)}, splits)
    assert rank + 1 == 6.0
    assert rank < 6
    assert rank >= 0
    assert splits.found == {(5,): None, (6, 7): None}
