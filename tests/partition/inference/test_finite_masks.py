"""Masks that are numbers: what they hide is another number, not minus infinity."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.frontends.builder.builder import BodyBuilder, along
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved
from tests.partition.truth import truth

SEQUENCE, WIDTH = 8, 6
BATCH = [(SEQUENCE, WIDTH), (SEQUENCE, WIDTH)]


def attention(parallel: bool, hidden: int = -3) -> Formula:
    """Causal attention of four heads whose mask is ``hidden``."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        own = 4 // given.extents.get("tp", 1)
        inner = b.copy_to(x, along("tp")) if parallel else x
        q, k, v = (
            b.transpose(b.view(b.linear(inner, given[n]), SEQUENCE, own, 2), 0, 1) for n in "qkv"
        )
        scores = b.matmul(q, b.transpose(k, 1, 2))
        masked = b.softmax(b.op("fill_after", scores, value=Fraction(hidden)))
        mixed = b.view(b.transpose(b.matmul(masked, v), 0, 1), SEQUENCE, own * 2)
        y = b.linear(mixed, given["o"])
        y = b.reduce_from(y, along("tp")) if parallel else y
        return b.sum(b.mul(t, b.silu(y)))

    return formula


def linear_attention(parallel: bool, right: bool = True) -> Formula:
    """The lower triangle of q k times v; ranks hold a part of the rows."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        q, k, v = (b.linear(x, given[n]) for n in "qkv")
        zeros = b.mul_constant(b.sum(x, 1, keepdim=True), Fraction(0))
        ones = b.op("expand", b.op("add", zeros, other=Fraction(1)), size=(SEQUENCE, SEQUENCE))
        mask = b.op("tril", ones)
        if parallel:
            q, t = b.chunk(q, 0, along("tp")), b.chunk(t, 0, along("tp"))
            rows = b.shape(q)[0]
            first = b.op("slice", mask, dim=0, start=0, size=rows)
            mask = b.chunk(mask, 0, along("tp")) if right else first
        y = b.matmul(b.mul(b.matmul(q, b.transpose(k, 0, 1)), mask), v)
        loss = b.sum(b.mul(t, b.silu(y)))
        return b.reduce_from(loss, along("tp")) if parallel else loss

    return formula


@pytest.mark.parametrize("tp", [2, 4])
def test_heads(tp: int) -> None:
    weights = {n: Weight((8, WIDTH), {0: "tp"}) for n in "qkv"}
    weights["o"] = Weight((WIDTH, 8), {1: "tp"})
    plan = pair(attention(False), attention(True), weights, BATCH, axes={"tp": tp})
    assert truth(plan).wrong == ()
    proved(plan)
    not_proved(pair(attention(False), attention(True, -4), weights, BATCH, axes={"tp": tp}))


@pytest.mark.parametrize("tp", [2, 4])
def test_rows(tp: int) -> None:
    weights = {n: Weight((WIDTH, WIDTH)) for n in "qkv"}

    def made(right: bool = True):  # type: ignore[no-untyped-def]
        formulas = linear_attention(False), linear_attention(True, right)
        return pair(*formulas, weights, BATCH, axes={"tp": tp}, backward=False)

    assert truth(made()).wrong == ()
    proved(made())
    not_proved(made(False))
