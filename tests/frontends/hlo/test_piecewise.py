"""Functions of one integer against evaluation at every integer."""

from __future__ import annotations

import random

import pytest

from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function

LOW, HIGH = -7, 19
RULES = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "maximum": max,
    "minimum": min,
}
DIRECTIONS = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def at(f: Function, x: int) -> int:
    (piece,) = [p for p in f if p.low <= x < p.high]
    return piece.at(x)


def values(f: Function) -> list[int]:
    return [at(f, x) for x in range(LOW, HIGH)]


@pytest.mark.parametrize("seed", range(40))
def test_arithmetic_is_exact_at_every_integer(seed: int) -> None:
    rng = random.Random(seed)
    identity = piecewise.identity(LOW, HIGH)
    known = [(identity, list(range(LOW, HIGH)))]
    for _ in range(8):
        (f, a), (g, b) = rng.choice(known), rng.choice(known)
        number = rng.randrange(-9, 25)
        if rng.random() < 0.5:
            g, b = piecewise.constant(identity, number), [number] * (HIGH - LOW)
        name = rng.choice([*RULES, *DIRECTIONS, "select"])
        if name in RULES:
            made = piecewise.combine(name, f, g)
            expected = [RULES[name](x, y) for x, y in zip(a, b, strict=True)]
        elif name in DIRECTIONS:
            made = piecewise.compare(name, f, g)
            expected = [int(DIRECTIONS[name](x, y)) for x, y in zip(a, b, strict=True)]
        else:
            p = piecewise.compare("GT", f, g)
            made = piecewise.select(p, f, g)
            expected = [x if x > y else y for x, y in zip(a, b, strict=True)]
        assert values(made) == expected
        assert (made[0].low, made[-1].high) == (LOW, HIGH)
        known.append((made, expected))
        single = set(expected)
        assert piecewise.value(made) in (None, *single)
        assert len(single) > 1 or piecewise.value(made) == single.pop()


def test_a_negative_index_counts_from_the_end() -> None:
    ids = piecewise.identity(0, 64)
    zero, rows = (piecewise.constant(ids, n) for n in (0, 64))
    wrapped = piecewise.combine("add", ids, rows)
    assert piecewise.select(piecewise.compare("LT", ids, zero), wrapped, ids) == ids


@pytest.mark.parametrize("seed", range(20))
def test_quotients_and_rests_are_rounded_down(seed: int) -> None:
    rng = random.Random(seed)
    identity = piecewise.identity(LOW, HIGH)
    shifted = piecewise.combine("add", identity, piecewise.constant(identity, rng.randrange(-9, 9)))
    number = piecewise.constant(identity, rng.randrange(-9, 25))
    chosen = piecewise.compare(
        "LT", identity, piecewise.constant(identity, rng.randrange(LOW, HIGH))
    )
    f = piecewise.select(chosen, *rng.sample([identity, shifted, number], 2))
    divisor = rng.randint(1, 30)
    both = piecewise.divided(f, divisor)
    if both is None:  # too many pieces
        assert len({x // divisor for x in values(f)}) > piecewise.MOST_DIVIDED // 2
        return
    quotients, rests = both
    assert values(quotients) == [x // divisor for x in values(f)]
    assert values(rests) == [x % divisor for x in values(f)]


def test_multiples_of_ids_are_not_divided() -> None:
    identity = piecewise.identity(LOW, HIGH)
    doubled = piecewise.combine("multiply", identity, piecewise.constant(identity, 2))
    assert piecewise.divided(doubled, 3) is None
