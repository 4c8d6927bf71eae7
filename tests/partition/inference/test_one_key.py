"""Attention to one key alone: its weight is 1, so that nothing comes back through its score.

The backward of the softmax takes from the score's gradient the sum of it over that one key of many.
"""

from __future__ import annotations

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.model import softmax, softmax_pullback
from shardproof.frontends.builder.builder import BodyBuilder
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.views import local_view
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved

ROWS, POSITIONS, WIDTH = SHAPE = 2, 3, 4


@pytest.mark.parametrize("size", [1, 2, POSITIONS])
def test_the_gradient_of_a_score(size: int) -> None:
    table = NodeTable()
    single = LineageInterpreter(table)

    def given(name: str) -> Lineage:
        whole = local_view(table.define(Input(name), SHAPE), SHAPE)
        return single.slice(whole, 1, affine(0), size)

    weights = softmax(single, single.einsum("rki->rk", given("keys")), 1)
    gradient = single.einsum("rki->rk", given("gradient"))
    made = softmax_pullback(single, weights, gradient, 1)
    assert (made.addends == ()) is (size == 1)


def attended(keys: int, begins: int = 0) -> Formula:
    """sum(t silu(x + softmax(y q y') y')), keys and values ``y'`` being ``y`` at some positions."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"], given["b"])
        read = b.op("slice", y, dim=1, start=begins, size=keys)
        scores = b.matmul(b.linear(y, given["q"]), b.transpose(read, 1, 2))
        z = b.add(x, b.matmul(b.softmax(scores), read))
        return b.sum(b.mul(t, b.silu(z)))

    return formula


def test_a_bias_that_is_added_to_queries_and_to_the_one_key() -> None:
    weights = {
        "w": Weight((WIDTH, WIDTH), over=("dp",)),
        "b": Weight((WIDTH,), over=("dp",)),
        "q": Weight((WIDTH, WIDTH), over=("dp",)),
    }
    batch = [SHAPE] * 2
    axes, replicas = {"dp": 2}, ("dp",)
    proved(pair(attended(1), attended(1), weights, batch, axes=axes, replicas=replicas))
    for other in (attended(2), attended(1, 1)):
        not_proved(pair(attended(1), other, weights, batch, axes=axes, replicas=replicas))
