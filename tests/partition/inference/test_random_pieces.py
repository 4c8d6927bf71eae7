"""Random formulas of slices, concatenations and norms of slices, against NumPy: none that differs
is proved, none that is equal is refuted, and equal ones that are written otherwise are mostly
proved.

A formula is a tree.  NumPy evaluates it on the whole batch; the plan's parallel side builds another
tree on two replicas: the same one rewritten (a tensor cut and joined again, a function taken of the
parts), or one with a mistake in it.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.frontends.builder.builder import BodyBuilder
from tests.faults.plans import verify
from tests.partition.formulas import Formula, Given, Weight, pair

ROWS, WIDTH, COLUMNS = 4, 3, 6
#: Seeds, and how many of their plans are equal and proved, different and refuted, at the least.
FEW = (0, 2, 4, 5, 7, 9, 11), 4, 2
#: Two that are equal, and take long to be inconclusive.
MORE = (1, 13), 0, 0


class Tree(NamedTuple):
    """An operator of trees; ``width``: how many columns it has; ``start``: of a slice."""

    kind: str
    of: tuple[Tree, ...]
    width: int
    start: int = 0


INPUT = Tree("linear", (), COLUMNS)
TARGET = Tree("target", (), COLUMNS)


def cut(x: Tree, start: int, width: int) -> Tree:
    return Tree("slice", (x,), width, start)


def joined(*parts: Tree) -> Tree:
    return Tree("concat", parts, sum(p.width for p in parts))


def grown(random: Random, depth: int) -> Tree:
    """A random tree of `COLUMNS` columns."""
    if not depth:
        return INPUT if random.random() < 0.7 else TARGET
    x = grown(random, depth - 1)
    half = COLUMNS // 2
    match random.choice(["silu", "add", "mul", "swap", "roll", "halves", "norm"]):
        case "silu":
            return Tree("silu", (x,), COLUMNS)
        case "swap":
            return joined(cut(x, half, half), cut(x, 0, half))
        case "roll":
            at = random.choice([2, 4])
            return joined(cut(x, at, COLUMNS - at), cut(x, 0, at))
        case "halves":
            both = Tree("mul", (cut(x, 0, half), cut(x, half, half)), half)
            return joined(both, Tree("silu", (cut(x, 0, half),), half))
        case "norm":
            return joined(Tree("norm", (cut(x, 0, 4),), 4), cut(x, 4, 2))
        case kind:
            return Tree(kind, (x, grown(random, depth - 1)), COLUMNS)


def rewritten(random: Random, x: Tree) -> Tree:
    """The same value, written otherwise."""
    x = x._replace(of=tuple(rewritten(random, y) for y in x.of))
    if x.kind == "silu" and x.of[0].kind == "concat":
        return joined(*(Tree("silu", (y,), y.width) for y in x.of[0].of))
    if x.width > 2 and random.random() < 0.3:
        at = x.width // 2
        return joined(cut(x, 0, at), cut(x, at, x.width - at))
    return x


def places(x: Tree) -> int:
    """How many slices and concatenations there are."""
    return (x.kind in ("slice", "concat")) + sum(places(y) for y in x.of)


def mistaken(x: Tree, number: int) -> Tree:
    """One slice begins elsewhere, or one concatenation is in another order."""
    mine = x.kind in ("slice", "concat")
    if mine and number == 0:
        if x.kind == "concat":
            return x._replace(of=x.of[::-1])
        room = x.of[0].width - x.width
        return x._replace(start=(x.start + 1) % (room + 1))
    number -= mine
    parts = []
    for y in x.of:
        inside = places(y)
        parts.append(mistaken(y, number) if 0 <= number < inside else y)
        number -= inside
    return x._replace(of=tuple(parts))


def value(x: Tree, data: dict[str, Any]) -> Any:
    """What NumPy makes of a tree."""
    below = [value(y, data) for y in x.of]
    match x.kind:
        case "silu":
            return below[0] / (1 + np.exp(-below[0]))
        case "slice":
            return below[0][:, x.start : x.start + x.width]
        case "concat":
            return np.concatenate(below, axis=1)
        case "add":
            return below[0] + below[1]
        case "mul":
            return below[0] * below[1]
        case "norm":
            return below[0] / np.sqrt((below[0] ** 2).sum(axis=1, keepdims=True) + 1)
    return data[x.kind]


def formula(x: Tree) -> Formula:
    """A tree as a step: the loss is the sum of its entries, weighted."""

    def made(b: BodyBuilder, given: Given) -> int:
        def build(y: Tree) -> int:
            below = [build(z) for z in y.of]
            match y.kind:
                case "slice":
                    return b.op("slice", *below, dim=1, start=y.start, size=y.width)
                case "concat":
                    return b.op("concat", *below, dim=1)
                case "norm":
                    squares = b.sum(b.mul(below[0], below[0]), 1, keepdim=True)
                    scale = b.op("rsqrt", b.op("add", squares, other=Fraction(1)))
                    return b.mul(below[0], b.op("expand", scale, size=b.shape(below[0])))
                case "linear":
                    return b.linear(given.batch[0], given["w"])
                case "target":
                    return given.batch[1]
                case kind:
                    return b.op(kind, *below)

        own = b.linear(given.batch[0], given["w"])
        return b.sum(b.mul(b.add(build(x), own), given.batch[2]))

    return made


def plan(single: Tree, parallel: Tree) -> Plan:
    shapes = [(ROWS, WIDTH), (ROWS, COLUMNS), (ROWS, COLUMNS)]
    weights = {"w": Weight((COLUMNS, WIDTH), over=("dp",))}
    formulas = formula(single), formula(parallel)
    return pair(*formulas, weights, shapes, axes={"dp": 2}, replicas=("dp",))


def is_equal(one: Tree, other: Tree) -> bool:
    random = np.random.default_rng(0)
    for _ in range(3):
        data = {k: random.normal(size=(ROWS, COLUMNS)) for k in ("linear", "target")}
        if not np.allclose(value(one, data), value(other, data)):
            return False
    return True


@pytest.mark.parametrize(
    ("seeds", "proved", "refuted"),
    [pytest.param(*FEW, id="few"), pytest.param(*MORE, id="more", marks=pytest.mark.slow)],
)
def test_random_formulas(seeds: tuple[int, ...], proved: int, refuted: int) -> None:
    verdicts: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        random = Random(seed)
        single = grown(random, 3)
        parallel = rewritten(random, single)
        assert is_equal(single, parallel)
        if seed % 2 and places(parallel):
            parallel = mistaken(parallel, random.randrange(places(parallel)))
        label = "equal" if is_equal(single, parallel) else "different"
        verdict = verify(plan(single, parallel)).verdict
        assert (label, verdict) not in {("equal", "refuted"), ("different", "proved")}, seed
        verdicts[label, verdict] += 1
    assert verdicts["equal", "proved"] >= proved
    assert verdicts["different", "refuted"] >= refuted
