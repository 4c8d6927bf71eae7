"""Blocks of a dimension put together in another order: one view where digits are exchanged."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.unrolled import unrolled
from shardproof.engine.records.run import PARALLEL
from shardproof.frontends.builder.builder import BodyBuilder, along
from shardproof.partition.inference.memoise import Repeats
from shardproof.partition.stages.partition import partition
from tests.faults.plans import verify
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved
from tests.partition.inference.test_memoise import each_by_itself

ROWS, WIDTH = 4, 16
BATCH = [(ROWS, WIDTH), (ROWS, WIDTH)]
LAYERS = 4
WEIGHTS = {
    name: Weight(shape)
    for layer in range(LAYERS)
    for name, shape in ((f"v{layer}", (WIDTH, WIDTH)), (f"g{layer}", (WIDTH,)))
}
DIGITS, NO_DIGITS = (0, 2, 1, 3), (0, 3, 1, 2)


def in_order(b: BodyBuilder, x: int, order: tuple[int, ...]) -> int:
    """Blocks of the last dimension, put together in an order."""
    size = b.shape(x)[-1] // len(order)
    parts = [b.op("slice", x, dim=-1, start=n * size, size=size) for n in order]
    return b.op("concat", *parts, dim=-1)


def layers(order: tuple[int, ...] = (), weights_too: bool = True) -> Formula:
    """Two layers that norm and multiply; in an order, with or without the weights in it."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        for layer in range(2):
            v, g = given[f"v{layer}"], given[f"g{layer}"]
            if order:
                x = in_order(b, x, order)
                if weights_too:
                    v, g = in_order(b, v, order), in_order(b, g, order)
            squares = b.op("mean", b.mul(x, x), dim=-1, keepdim=True)
            x = b.mul(b.mul(x, b.op("rsqrt", b.op("add", squares, other=1))), g)
            x = b.linear(b.silu(x), v)
        return b.sum(b.mul(t, x))

    return formula


def made(order: tuple[int, ...], weights_too: bool) -> Plan:
    weights = {name: w for name, w in WEIGHTS.items() if name[1] in "01"}
    return pair(layers(), layers(order, weights_too), weights, BATCH, axes={"tp": 2})


@pytest.mark.parametrize("order", [DIGITS, NO_DIGITS])
def test_blocks_in_another_order_against_weights_in_it(order: tuple[int, ...]) -> None:
    proved(made(order, weights_too=True))
    assert verify(made(order, weights_too=False)).verdict == "refuted"


def test_exchanged_digits_are_one_view() -> None:
    """Every value is one addend, where other orders leave blocks."""
    for order, most in ((DIGITS, 1), (NO_DIGITS, 3)):
        lineages = partition(made(order, weights_too=True)).side(PARALLEL).lineages
        joined = [x for x in lineages if x is not None and x.shape == (ROWS, WIDTH)]
        assert max(len(x.addends) for x in joined) == most


def gathered(right: bool) -> Formula:
    """A sum over the ranks of what only they have."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        for layer in range(LAYERS):
            v = b.copy_to(given[f"v{layer}"], along("tp"))
            x = b.copy_to(x, along("tp"))
            y = b.linear(b.silu(x if right else in_order(b, x, DIGITS)), v)
            x = b.op("mul", b.reduce_from(y, along("tp")), other=Fraction(1, 2))
        return b.sum(b.mul(t, x))

    return formula


def alone(b: BodyBuilder, given: Given) -> int:
    x, t = given.batch
    for layer in range(LAYERS):
        x = b.linear(b.silu(x), given[f"v{layer}"])
    return b.sum(b.mul(t, x))


def test_layers_of_values_that_only_ranks_have_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And are what they are if every row is read by itself."""
    weights = {name: w for name, w in WEIGHTS.items() if name[0] == "v"}
    plan = unrolled(pair(alone, gathered(False), weights, BATCH, axes={"tp": 2}), "tp")
    once = partition(plan)
    rows = {repeat.row for repeat in once.side(PARALLEL).repeats.values()}
    assert len(once.side(PARALLEL).repeats) > 2 * len(rows)
    monkeypatch.setattr(Repeats, "read", each_by_itself)
    each = partition(plan)
    assert once.nodes.nodes == each.nodes.nodes
    assert once.side(PARALLEL).lineages == each.side(PARALLEL).lineages
    not_proved(plan)


def halves(order: tuple[int, ...], right: bool) -> Formula:
    """A product of blocks in an order with halves that begin inside of them."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        if order:
            x = in_order(b, x, order)
        bound = 6 if right or not order else 7
        low = b.op("slice", t, dim=-1, start=0, size=bound)
        high = b.op("slice", b.silu(t), dim=-1, start=bound, size=WIDTH - bound)
        y = b.mul(x, b.op("concat", low, high, dim=-1))
        return b.sum(b.silu(b.linear(y, given["v0"])))

    return formula


def unordered(b: BodyBuilder, given: Given) -> int:
    """`halves` with the input taken apart into blocks of one position each."""
    x, t = given.batch
    size = WIDTH // 4
    columns = [n * size + i for n in DIGITS for i in range(size)]
    parts = [b.op("slice", x, dim=-1, start=n, size=1) for n in columns]
    low = b.op("slice", t, dim=-1, start=0, size=6)
    high = b.op("slice", b.silu(t), dim=-1, start=6, size=WIDTH - 6)
    y = b.mul(b.op("concat", *parts, dim=-1), b.op("concat", low, high, dim=-1))
    return b.sum(b.silu(b.linear(y, given["v0"])))


def test_a_view_in_another_order_is_cut_inside_of_its_blocks() -> None:
    weights = {"v0": WEIGHTS["v0"]}
    proved(pair(unordered, halves(DIGITS, True), weights, BATCH, axes={"tp": 2}))
    not_proved(pair(unordered, halves(DIGITS, False), weights, BATCH, axes={"tp": 2}))
    not_proved(pair(unordered, halves(NO_DIGITS, True), weights, BATCH, axes={"tp": 2}))
