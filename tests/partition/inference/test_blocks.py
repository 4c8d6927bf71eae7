"""Blocks of one axis that one label runs along: halves, fused projections, norms of a slice."""

from __future__ import annotations

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


def gated(parallel: bool, right: bool = True) -> Formula:
    """silu(x[:h]) x[h:] of one projection to 2h columns; ranks hold [2, h / tp] of them."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        tp = given.extents.get("tp", 1)
        half = HALF // tp
        if parallel:
            x = b.copy_to(x, along("tp"))
        y = b.linear(x, b.view(given["w"], 2 * half, WIDTH))
        gate, up = cut(b, y, 0, half), cut(b, y, half, half)
        if not right:
            gate, up = up, gate
        z = b.linear(b.mul(b.silu(gate), up), given["v"])
        if parallel:
            z = b.reduce_from(z, along("tp"))
        return b.sum(b.mul(t, b.silu(z)))

    return formula


GATED = {"w": Weight((2, HALF, WIDTH), {1: "tp"}), "v": Weight((HALF, HALF), {1: "tp"})}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("tp", "apart"), [(1, False), (2, False), pytest.param(4, True, marks=pytest.mark.slow)]
)
def test_gate_and_up_in_one_projection(tp: int, apart: bool, backward: bool) -> None:
    def made(right: bool) -> Plan:
        formulas = gated(False), gated(True, right)
        plan = pair(*formulas, GATED, BATCH, axes={"tp": tp}, backward=backward)
        return taken_apart(plan, "tp") if apart else plan

    proved(made(True))
    not_proved(made(False))


GROUPS, QUERIES, HEAD, SEQUENCE = 4, 3, 2, 4
#: One key and one value head beside every group of query heads.
FUSED = {
    "w": Weight((GROUPS, (QUERIES + 2) * HEAD, WIDTH), {0: "tp"}),
    "o": Weight((WIDTH, GROUPS * QUERIES * HEAD), {1: "tp"}),
}


def attention(parallel: bool, right: bool = True) -> Formula:
    """Grouped-query attention of a fused projection [group, 3 queries + key + value, head]."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        groups = GROUPS // given.extents.get("tp", 1)
        if parallel:
            x = b.copy_to(x, along("tp"))
        y = b.linear(x, b.view(given["w"], groups * (QUERIES + 2) * HEAD, WIDTH))
        y = b.view(y, SEQUENCE, groups, (QUERIES + 2) * HEAD)
        queries = cut(b, y, 0, QUERIES * HEAD)
        key = cut(b, y, QUERIES * HEAD, HEAD)
        value = cut(b, y, (QUERIES + 1) * HEAD, HEAD)
        if not right:
            key, value = value, key
        q = b.view(queries, SEQUENCE, groups * QUERIES, HEAD)
        k, v = (b.repeat_interleave(h, QUERIES, 1) for h in (key, value))
        q, k, v = (b.transpose(h, 0, 1) for h in (q, k, v))
        scores = b.softmax(b.matmul(q, b.transpose(k, 1, 2)))
        mixed = b.transpose(b.matmul(scores, v), 0, 1)
        z = b.linear(b.view(mixed, SEQUENCE, groups * QUERIES * HEAD), given["o"])
        if parallel:
            z = b.reduce_from(z, along("tp"))
        return b.sum(b.mul(t, b.silu(z)))

    return formula


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("tp", "apart"),
    [
        (1, False),
        (2, True),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((2, False), (4, False), (4, True))),
    ],
)
def test_fused_projection_of_groups_of_heads(tp: int, apart: bool, backward: bool) -> None:
    def made(right: bool) -> Plan:
        formulas = attention(False), attention(True, right)
        shapes = [(SEQUENCE, WIDTH), (SEQUENCE, WIDTH)]
        plan = pair(*formulas, FUSED, shapes, axes={"tp": tp}, backward=backward)
        return taken_apart(plan, "tp") if apart else plan

    proved(made(True))
    not_proved(made(False))


def normed(parallel: bool, right: bool = True) -> Formula:
    """A norm over the first columns of a projection, beside the rest."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"])
        start = 0 if right else 1
        first = cut(b, y, start, 5)
        squares = b.sum(b.mul(first, first), 1, keepdim=True)
        scale = b.op("rsqrt", b.op("add", squares, other=Fraction(1)))
        scaled = b.mul(b.op("expand", scale, size=b.shape(first)), first)
        return b.add(b.sum(b.silu(scaled)), b.sum(b.mul(t, b.silu(y))))

    return formula


@pytest.mark.parametrize("backward", [False, True])
def test_norm_of_a_slice(backward: bool) -> None:
    weights = {"w": Weight((HALF, WIDTH), over=("dp",))}

    def made(right: bool) -> Plan:
        formulas = normed(False), normed(True, right)
        axes, over = {"dp": 2}, ("dp",)
        return pair(*formulas, weights, BATCH, axes=axes, replicas=over, backward=backward)

    proved(made(True))
    not_proved(made(False))
