"""A side that adds up which positions come before others counts them: what the same plan does with
fewer positions says nothing of it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.engine.simulation import true_size
from shardproof.engine.simulation.simulate import simulate
from shardproof.frontends.builder.builder import BodyBuilder
from shardproof.partition.stages.partition import partition
from tests.faults.plans import verify
from tests.faults.rows import WIDTH, plan

PAIRS = WIDTH * (WIDTH + 1) // 2


def pairs(b: BodyBuilder, y: int) -> int:
    """Of each row 1 where one position comes before another, or is the same."""
    ones = b.op("add", b.op("mul", y, other=Fraction(0)), other=Fraction(1))
    return b.op("tril", b.op("einsum", ones, ones, equation="ri,rj->rij"))


def running(b: BodyBuilder, x: int, w: int) -> int:
    """Sums of all numbers of a row up to each one."""
    y = b.linear(x, w)
    return b.op("einsum", y, pairs(b, y), equation="rj,rij->ri")


def by_number(b: BodyBuilder, x: int, w: int, number: int = PAIRS) -> int:
    return b.mul_constant(running(b, x, w), Fraction(1, number))


def by_sum(b: BodyBuilder, x: int, w: int) -> int:
    h = running(b, x, w)
    total = b.sum(b.sum(pairs(b, h), 2), 1, keepdim=True)
    return b.op("div", h, total)


def of_mistake(b: BodyBuilder, x: int, w: int) -> int:
    return by_number(b, x, w, PAIRS + 1)


RIGHT, WRONG = plan(by_number, by_sum), plan(of_mistake, by_sum)


@pytest.mark.parametrize("made", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_sum_of_which_comes_before_which_counts_positions(
    made: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = partition(made)
    fewer = simulate(made, result.derived, result.parallel.unrolled)
    assert fewer.differs
    assert fewer.fewer
    assert fewer.counts(result.counted)
    assert verify(made).verdict == ("inconclusive" if made is RIGHT else "refuted")
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    assert verify(made).verdict == "inconclusive"


def test_a_running_sum_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not partition(plan(running)).counted
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    assert verify(plan(running, by_number)).verdict == "refuted"


def shares(b: BodyBuilder, y: int) -> int:
    """Of each row the softmax of a product of any two of its numbers."""
    return b.softmax(b.op("einsum", y, y, equation="ri,rj->rij"))


def by_law(b: BodyBuilder, x: int, w: int) -> int:
    h = running(b, x, w)
    return b.op("div", h, b.sum(b.sum(shares(b, h), 2), 1, keepdim=True))


def by_width(b: BodyBuilder, x: int, w: int) -> int:
    return by_number(b, x, w, WIDTH)


def of_squares(b: BodyBuilder, x: int, w: int) -> int:
    h = running(b, x, w)
    return b.mul_constant(b.mul(h, h), Fraction(1, WIDTH))


def test_sums_that_are_one_by_a_law_count_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference does not see that: where each position counts as often as it stands for others,
    both sides agree, and the wrong one does not."""
    right = plan(by_law, by_width)
    result = partition(right)
    fewer = simulate(right, result.derived, result.parallel.unrolled)
    assert fewer.differs
    assert not fewer.counts(result.counted)
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    assert verify(right).verdict == "inconclusive"
    assert verify(plan(by_law, of_squares)).verdict == "refuted"
