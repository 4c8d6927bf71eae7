"""Canonical forms: what they do not depend on, and how long they take."""

from __future__ import annotations

import random

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.lineage import StridedInterval
from shardproof.partition.inference.canonical import Canonical, Draft, canonical

PAIRS = 24


def _sum(labels: list[tuple[int, int]], seed: int) -> Canonical:
    """The form of a sum over nodes, of which each is read twice at rows and columns of 3, in an
    order at random."""
    drafts: list[Draft] = []
    for k, pair in enumerate(labels):
        for row, column in (pair, pair[::-1]):
            reads = tuple(
                (StridedInterval(axis, 1, 3, affine(0), 3), label)
                for axis, label in enumerate((row, column))
            )
            drafts.append((k, reads, (), ()))
    random.Random(seed).shuffle(drafts)
    used = frozenset(x for pair in labels for x in pair)
    return canonical(drafts, used, dict.fromkeys(used, 3))


@pytest.mark.parametrize("seed", range(3))
def test_the_form_of_many_alike_pairs_does_not_depend_on_their_order(seed: int) -> None:
    # Each pair may be put in two orders: all of them together would be 2^24.
    straight = _sum([(5, 8)] * PAIRS, seed)
    assert straight.operands == _sum([(8, 5)] * PAIRS, seed + 10).operands
    assert len(straight.operands) == 2 * PAIRS


def test_pairs_of_labels_that_nothing_else_reads_are_put_in_order_one_by_one() -> None:
    own = [(2 * k, 2 * k + 1) for k in range(PAIRS)]
    assert _sum(own, 0).operands == _sum([pair[::-1] for pair in own], 1).operands


def test_another_sum_has_another_form() -> None:
    mixed = [(5, 8)] * (PAIRS - 1)
    assert _sum([*mixed, (5, 9)], 0).operands != _sum([*mixed, (5, 8)], 0).operands
