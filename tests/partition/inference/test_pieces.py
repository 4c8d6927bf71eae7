"""Tensors of different values side by side: stacks, rotated halves, pads, flat buckets, chunks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.frontends.builder.builder import BodyBuilder, along
from tests.partition.formulas import (
    Formula,
    Given,
    Weight,
    not_proved,
    pair,
    proved,
    taken_apart,
)

ROWS, WIDTH, HALF = 4, 6, 8
BATCH = [(ROWS, WIDTH), (ROWS, HALF)]


def cut(b: BodyBuilder, x: int, start: int, size: int, dim: int = -1) -> int:
    return b.op("slice", x, dim=dim, start=start, size=size)


def rotated(parallel: bool, right: bool = True) -> Formula:
    """Scores of rows against rows, both of them with rotated halves; sharded by heads."""
    heads, head = 4, 4

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        own = heads // given.extents.get("tp", 1)
        if parallel:
            x = b.copy_to(x, along("tp"))
        angles = cut(b, t, 0, head)

        def turned(y: int) -> int:
            y = b.transpose(b.view(y, ROWS, own, head), 0, 1)
            half = head // 2
            low, high = cut(b, y, 0, half), cut(b, y, half, half)
            if not right:
                low, high = high, low
            other = b.op("concat", b.mul_constant(high, Fraction(-1)), low, dim=-1)
            shape = b.shape(y)
            spread = b.op("expand", b.view(angles, 1, ROWS, head), size=shape)
            return b.add(y, b.mul(other, spread))

        q, k = turned(b.linear(x, given["q"])), turned(b.linear(x, given["k"]))
        mixed = b.matmul(b.softmax(b.matmul(q, b.transpose(k, 1, 2))), k)
        z = b.linear(b.view(b.transpose(mixed, 0, 1), ROWS, own * head), given["o"])
        if parallel:
            z = b.reduce_from(z, along("tp"))
        return b.sum(b.mul(t, b.silu(z)))

    return formula


ROTATED = {
    "q": Weight((16, WIDTH), {0: "tp"}),
    "k": Weight((16, WIDTH), {0: "tp"}),
    "o": Weight((HALF, 16), {1: "tp"}),
}


@pytest.mark.parametrize(
    ("tp", "apart"),
    [(1, False), (2, False), (4, False), pytest.param(4, True, marks=pytest.mark.slow)],
)
def test_rotated_halves(tp: int, apart: bool) -> None:
    def made(right: bool) -> Plan:
        plan = pair(rotated(False), rotated(True, right), ROTATED, BATCH, axes={"tp": tp})
        return taken_apart(plan, "tp") if apart else plan

    proved(made(True))
    not_proved(made(False))


def stacked(right: bool = True) -> Formula:
    """A stack of two projections that is normed together and taken apart again."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y, z = b.linear(x, given["w"]), b.silu(b.linear(x, given["v"]))
        rows = b.shape(y)[0]
        both = b.op("concat", b.view(y, 1, rows, HALF), b.view(z, 1, rows, HALF), dim=0)
        both = b.silu(both)
        squares = b.sum(b.mul(both, both), 0)
        one = b.view(cut(b, both, 0 if right else 1, 1, 0), rows, HALF)
        return b.sum(b.mul(b.mul(t, one), b.op("rsqrt", b.op("add", squares, other=Fraction(1)))))

    return formula


def chunks(parallel: bool, right: bool = True) -> Formula:
    """A loss in chunks of rows, as one device has it whole."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        if not parallel:
            return b.sum(b.mul(t, b.softmax(b.linear(x, given["w"]))))
        rows = b.shape(x)[0]
        losses = []
        for start in range(0, rows, rows // 2):
            own, target = (cut(b, v, start, rows // 2, 0) for v in (x, t))
            if not right:
                target = cut(b, t, 0, rows // 2, 0)
            losses.append(b.view(b.sum(b.mul(target, b.softmax(b.linear(own, given["w"])))), 1))
        return b.sum(b.op("concat", *losses, dim=0))

    return formula


def padded(parallel: bool, right: bool = True) -> Formula:
    """A projection beside the input, shifted by one column."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"])
        nothing = b.mul_constant(cut(b, y, 0, 1), Fraction(0))
        parts = [cut(b, y, 1, HALF - 1), nothing]
        shifted = b.op("concat", *(parts if right else parts[::-1]), dim=-1)
        return b.sum(b.mul(t, b.silu(b.add(y, b.mul_constant(shifted, Fraction(1, 2))))))

    return formula


REPLICATED = {"w": Weight((HALF, WIDTH), over=("dp",)), "v": Weight((HALF, WIDTH), over=("dp",))}


@pytest.mark.parametrize(
    ("single", "right", "wrong"),
    [
        (stacked(), stacked(), stacked(False)),
        (chunks(False), chunks(True), chunks(True, False)),
        (padded(False), padded(True), padded(True, False)),
    ],
    ids=["stacked", "chunks", "padded"],
)
def test_replicas(single: Formula, right: Formula, wrong: Formula) -> None:
    weights = {n: w for n, w in REPLICATED.items() if n == "w" or "stacked" in single.__qualname__}

    def made(formula: Formula) -> Plan:
        return pair(single, formula, weights, BATCH, axes={"dp": 2}, replicas=("dp",))

    proved(made(right))
    not_proved(made(wrong))


def layers(b: BodyBuilder, given: Given) -> int:
    x, t = given.batch
    y = b.silu(b.linear(x, given["w"]))
    return b.sum(b.mul(t, b.silu(b.linear(y, given["u"], given["c"]))))


@pytest.mark.parametrize("width", [2, 5])
def test_a_flat_bucket_of_gradients(width: int) -> None:
    """Gradients flattened, joined, reduced at once and taken apart."""
    weights = {
        "w": Weight((width, WIDTH), over=("dp",)),
        "u": Weight((HALF, width), over=("dp",)),
        "c": Weight((HALF,), over=("dp",)),
    }

    def made(bucket: list[str]) -> Plan:
        return pair(
            layers, layers, weights, BATCH, axes={"dp": 2}, replicas=("dp",), buckets=[bucket]
        )

    proved(made(["c", "w", "u"]))
    plan = made(["c", "w", "u"])
    (program,) = plan.programs
    body = program.bodies[-1]
    # The parts of the bucket are taken apart elsewhere than they were joined.
    wrong = tuple(
        replace(op, attrs={**op.attrs, "start": op.attrs["start"] - 1})  # type: ignore[operator]
        if op.name == "slice" and op.attrs["start"]
        else op
        for op in body.ops
    )
    bodies = (*program.bodies[:-1], replace(body, ops=wrong))
    not_proved(replace(plan, programs=(replace(program, bodies=bodies),)))
