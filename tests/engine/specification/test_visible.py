"""Rows of masked blocks that have a key, against the numbers that nodes have."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Combine,
    Einsum,
    Input,
    Operand,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import Addend, PartialRange, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.specification.boxes import box_of, read_at
from shardproof.engine.specification.definedness import Domain, Signs

ONE = Fraction(1)
QUERIES, KEYS = 6, 6
FUNCTIONS = {
    "exp": np.exp,
    "inv": np.reciprocal,
    "rsqrt": lambda x: x**-0.5,
    "log": np.log,
    "step": lambda x: 1.0 * (x > 0),
}


def rows(node: int, *fixed: tuple[int, int, int, Affine]) -> Operand:
    return Operand(node, ((0, 1, QUERIES, 0),), fixed)


def entries(node: int, keys: int = KEYS, *fixed: tuple[int, int, int, Affine]) -> Operand:
    return Operand(node, ((0, 1, QUERIES, 0), (1, 1, keys, 1)), fixed)


class Scores:
    """Masked scores, queries from ``first`` on of the keys', and what flash attention makes of
    blocks of them."""

    def __init__(self, first: int) -> None:
        nodes = self.nodes = NodeTable()
        x = nodes.define(Input("x"), (QUERIES, KEYS))
        mask = nodes.define(Causal(), (0, 0))
        if first:
            blocks = (Block(0, first, QUERIES, 0), Block(1, 0, KEYS, 0))
            mask = nodes.define(Restrict(mask, blocks), (QUERIES, KEYS))
        both = (entries(x), entries(mask))
        self.masked = nodes.define(Combine((ONE, Fraction(2)), both, (0, 1)), (QUERIES, KEYS))
        self.power = nodes.define(Unary("exp", ONE / 2, self.masked), (QUERIES, KEYS))
        self.sums = {size: self.blocks(size) for size in (1, 2, 3)}
        part = nodes.define(Restrict(self.power, (Block(1, 1, 4, KEYS),)), (QUERIES, 4))
        self.cut = nodes.define(Einsum((entries(part, 4),), (0,)), (QUERIES,))
        self.total = nodes.define(Einsum((entries(self.power),), (0,)), (QUERIES,))
        # What ranks of a zigzag ring have of their own: two blocks, some of them early.
        self.parts = [self.part(number) for number in range(KEYS // 2)]
        self.apart = self.added(self.parts[-1], self.parts[0])
        self.late = self.added(self.parts[2], self.parts[1])
        self.undefined = self.added(self.sums[2][2], self.parts[0])
        # A running sum, of which the largest score of a block has been taken.
        block = entries(self.masked, 2, (1, 2, KEYS // 2, Affine(1)))
        most = nodes.define(Amax(1, block, (0,)), (QUERIES,))
        fade = nodes.define(Unary("exp", -ONE, most), (QUERIES,))
        # The larger one of two blocks' largest scores, as autodiff has it.
        first = nodes.define(Amax(1, entries(self.masked, 2), (0,)), (QUERIES,))
        over = Combine((ONE, -ONE), (rows(first), rows(most)), (0,))
        chosen = nodes.define(Unary("step", ONE, nodes.define(over, (QUERIES,))), (QUERIES,))
        larger = nodes.define(Einsum((rows(chosen), rows(first)), (0,)), (QUERIES,))
        grown = nodes.define(Unary("exp", -ONE, larger), (QUERIES,))
        self.running = nodes.define(Einsum((rows(self.total), rows(grown)), (0,)), (QUERIES,))
        self.faded = nodes.define(Einsum((rows(self.total), rows(fade)), (0,)), (QUERIES,))
        for number in (*[n for own in self.sums.values() for n in own], self.cut):
            inverse = nodes.define(Unary("inv", ONE, number), (QUERIES,))
            nodes.define(Einsum((rows(inverse), rows(self.total)), (0,)), (QUERIES,))
            nodes.define(Unary("rsqrt", ONE, inverse), (QUERIES,))

    def part(self, number: int) -> int:
        own = entries(self.power, 2, (1, 2, KEYS // 2, Affine(number)))
        return self.nodes.define(Einsum((own,), (0,)), (QUERIES,))

    def added(self, first: int, second: int) -> int:
        total = Combine((ONE, ONE), (rows(first), rows(second)), (0,))
        return self.nodes.define(total, (QUERIES,))

    def blocks(self, size: int) -> list[int]:
        nodes, made = self.nodes, []
        for start in range(KEYS // size):
            block = entries(self.masked, size, (1, size, KEYS // size, Affine(start)))
            most = nodes.define(Amax(1, block, (0,)), (QUERIES,))
            less = (entries(self.masked), rows(most))
            gap = nodes.define(Combine((ONE, -ONE), less, (0, 1)), (QUERIES, KEYS))
            power = nodes.define(Unary("exp", ONE, gap), (QUERIES, KEYS))
            own = entries(power, size, (1, size, KEYS // size, Affine(start)))
            made.append(nodes.define(Einsum((own,), (0,)), (QUERIES,)))
        return made


def read(values: Sequence[NDArray[np.float64]], operand: Operand) -> NDArray[np.float64]:
    """What an operand reads: an axis for each of its labels, in their order."""
    sizes = [extent for _, _, extent, _ in operand.intervals]
    made = np.empty(sizes)
    for index in product(*map(range, sizes)):
        place = [0] * values[operand.node].ndim
        for at, (axis, stride, _, _) in zip(index, operand.intervals, strict=True):
            place[axis] += at * stride
        for axis, stride, _, start in operand.fixed:
            place[axis] += start.const * stride
        made[index] = values[operand.node][tuple(place)]
    return made


def evaluated(nodes: NodeTable, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """All nodes on random numbers; of axes without an end the first positions."""
    values: list[NDArray[np.float64]] = []
    names = "abcdef"
    for number in range(len(nodes)):
        match nodes[number].definition:
            case Input():
                value = rng.normal(size=nodes[number].extents)
            case Causal():
                places = np.arange(2 * QUERIES)
                value = np.where(places[:, None] < places[None, :], -np.inf, 0.0)
            case Restrict(node=node, blocks=blocks):
                at = [slice(None)] * values[node].ndim
                for block in blocks:
                    at[block.axis] = slice(block.start, block.start + block.size)
                value = values[node][tuple(at)]
            case Unary(function=function, factor=factor, node=node):
                value = FUNCTIONS[function](float(factor) * values[node])
            case Amax(operand=operand):
                value = read(values, operand).max(axis=-1)
            case Combine(factors=factors, operands=operands):
                shape = nodes[number].extents
                value = np.zeros(shape)
                for factor, operand in zip(factors, operands, strict=True):
                    own = read(values, operand)
                    value = value + float(factor) * own.reshape((*own.shape, 1)[: len(shape)])
            case Einsum(operands=operands, outputs=outputs):
                spec = ",".join("".join(names[x] for *_, x in o.intervals) for o in operands)
                left = "".join(names[x] for x in outputs)
                value = np.einsum(f"{spec}->{left}", *[read(values, o) for o in operands])
            case _:
                value = np.ones(())
        values.append(value)
    return values


@pytest.mark.parametrize("first", [0, 2, 5])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_said_to_be_positive_is(first: int) -> None:
    nodes = Scores(first).nodes
    signs, rng = Signs(nodes), np.random.default_rng(first)
    draws = [evaluated(nodes, rng) for _ in range(2)]
    said = 0
    for number in range(len(nodes)):
        if nodes[number].extents != (QUERIES,):
            continue
        for low, high in product(range(QUERIES), repeat=2):
            if low <= high and signs.within(ONE, number, Domain.POSITIVE, ((low, high),)):
                said += 1
                for values in draws:
                    own = values[number][low : high + 1]
                    assert (own > 0).all(), (number, low, high)
                    assert np.isfinite(own).all(), (number, low, high)
    assert said > 100


def test_rows_that_have_a_key_are_found() -> None:
    scores = Scores(0)
    signs = Signs(scores.nodes)

    def positive(number: int, low: int) -> bool:
        return signs.within(ONE, number, Domain.POSITIVE, ((low, QUERIES - 1),))

    for size, sums in scores.sums.items():
        for block, number in enumerate(sums):
            assert [positive(number, low) for low in range(QUERIES)] == [
                low >= block * size for low in range(QUERIES)
            ]
    assert [positive(scores.cut, low) for low in (0, 1)] == [False, True]
    assert positive(scores.total, 0)
    assert positive(scores.apart, 0)
    assert [positive(scores.late, low) for low in (0, 2)] == [False, True]
    assert [positive(scores.faded, low) for low in (1, 2)] == [False, True]
    assert [positive(scores.running, low) for low in (1, 2)] == [False, True]
    # Less the largest of a block, rows that have no key in it are no numbers.
    assert [positive(scores.undefined, low) for low in (3, 4)] == [False, True]
    # Without a box all rows are meant, and one of a block's has no key.
    assert not signs.within(ONE, scores.sums[3][1], Domain.POSITIVE)
    # One over a sum that is zero in some row is no number there; a mask that is taken away is none.
    assert not signs.within(-ONE, scores.sums[3][1], Domain.POSITIVE, ((3, 5),))
    away = Combine((ONE, -ONE), (entries(1), entries(2)), (0, 1))
    power = scores.nodes.define(away, (QUERIES, KEYS))
    number = scores.nodes.define(Unary("exp", ONE, power), (QUERIES, KEYS))
    assert not Signs(scores.nodes).within(ONE, number, Domain.POSITIVE, ((5, 5), (0, 0)))


def test_boxes_follow_what_is_read() -> None:
    scores = Scores(0)
    nodes, number = scores.nodes, scores.sums[3][1]
    late = StridedInterval(0, 1, QUERIES, Affine(3), 3)
    addend = Addend(ONE, number, View(((late,),)))
    assert box_of(nodes, addend) == ((3, 5),)
    boxes = read_at(nodes, [addend])
    power = nodes[number].definition.reads()[0].node
    assert boxes[power] == ((3, 5), (3, 5))
    moved = late._replace(start=Affine(0, (("tp", 3),)))
    assert box_of(nodes, Addend(ONE, number, View(((moved,),)))) == ((0, 5),)
    # Of part of a sum, the positions that it is the sum over.
    whole = StridedInterval(0, 1, QUERIES, ZERO, QUERIES)
    token = nodes.reduction(Reduction("sum", scores.total, 1))
    part = PartialRange(token, Affine(2), 2, KEYS)
    some = Addend(ONE, scores.total, View(((whole,),)), (part,))
    assert read_at(nodes, [some])[scores.power] == ((0, 5), (2, 3))
    assert read_at(nodes, [some, addend])[scores.masked] == ((0, 5), (2, 5))
