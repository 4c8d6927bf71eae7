"""Merges of blocks by logarithms of their sums: what they are written as is what PyTorch computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.lowering import Real
from tests.frontends.aten.evaluated import evaluated

ROWS, KEYS, WIDTH = 2, 3, 4


def rule(lo: Lowering, name: str, shape: tuple[int, ...], *args: Any) -> Any:
    lowered = rule_of(name)
    assert lowered is not None
    lo.expected = [(shape, "float32")]
    return lowered(lo, *args)


class Blocks:
    """Two blocks of scores and what they give, as values and as tensors."""

    def __init__(self) -> None:
        self.lo = Lowering()
        torch.manual_seed(0)
        self.tensors: dict[int, torch.Tensor] = {}
        self.scores = [self.given(f"s{n}", (ROWS, KEYS)) for n in range(2)]
        self.out, self.part = (self.given(name, (ROWS, WIDTH)) for name in ("out", "part"))
        self.a, self.b = (
            rule(self.lo, "aten.logsumexp.default", (ROWS, 1), s, [-1], True) for s in self.scores
        )

    def given(self, name: str, shape: tuple[int, ...]) -> Real:
        x = self.lo.hold(Shard(name, shape, shape, (ZERO,) * len(shape), "float32"))
        self.tensors[x.number] = torch.randn(shape, dtype=torch.float64)
        return x

    def difference(self, x: Real, y: Real) -> Real:
        made = rule(self.lo, "aten.sub.Tensor", x.shape, x, y)
        assert isinstance(made, Real)
        return made

    def gated(self, gap: Real, other: Real) -> Real:
        """``out - sigmoid(gap) (out - other)``."""
        gate = rule(self.lo, "aten.sigmoid.default", gap.shape, gap)
        product = rule(
            self.lo, "aten.mul.Tensor", (ROWS, WIDTH), gate, self.difference(self.out, other)
        )
        return self.difference(self.out, product)

    def value(self, x: Real) -> np.ndarray:
        given = {number: t.numpy() for number, t in self.tensors.items()}
        return np.asarray(evaluated(self.lo, given)[x.number], dtype=float)

    def tensor(self, x: Real) -> torch.Tensor:
        return self.tensors[x.number]

    def lse(self, block: int) -> torch.Tensor:
        return self.tensor(self.scores[block]).logsumexp(-1, keepdim=True)

    def names(self) -> list[str]:
        return [op.name for op in self.lo.ops]


@pytest.mark.parametrize("exchanged", [False, True])
def test_shares_by_a_sigmoid(exchanged: bool) -> None:
    blocks = Blocks()
    first, second = (blocks.a, blocks.b) if exchanged else (blocks.b, blocks.a)
    before = len(blocks.lo.ops)
    made = blocks.gated(blocks.difference(first, second), blocks.part)
    gap = blocks.lse(0) - blocks.lse(1) if exchanged else blocks.lse(1) - blocks.lse(0)
    out, part = blocks.tensor(blocks.out), blocks.tensor(blocks.part)
    expected = out - torch.sigmoid(gap) * (out - part)
    assert blocks.names()[before:].count("exp") == 4
    np.testing.assert_allclose(blocks.value(made), expected.numpy(), rtol=1e-9)


def test_the_logarithm_of_both_sums() -> None:
    blocks = Blocks()
    gap = blocks.difference(blocks.a, blocks.b)
    soft = blocks.lo.unary("log_sigmoid", gap)
    made = blocks.difference(blocks.a, soft)
    expected = blocks.lse(0) - F.logsigmoid(blocks.lse(0) - blocks.lse(1))
    assert blocks.names()[-1] == "log"
    np.testing.assert_allclose(blocks.value(made), expected.numpy(), rtol=1e-9)


@pytest.mark.parametrize("other", ["gap of inputs", "another minuend"])
def test_other_gates_stay(other: str) -> None:
    """A gate of what are no logarithms, and a difference from another tensor, are no merges."""
    blocks = Blocks()
    if other == "gap of inputs":
        one, two = (blocks.given(name, (ROWS, 1)) for name in ("one", "two"))
        made = blocks.gated(blocks.difference(one, two), blocks.part)
    else:
        gap = blocks.difference(blocks.b, blocks.a)
        gate = rule(blocks.lo, "aten.sigmoid.default", gap.shape, gap)
        inner = blocks.difference(blocks.part, blocks.out)
        product = rule(blocks.lo, "aten.mul.Tensor", (ROWS, WIDTH), gate, inner)
        made = blocks.difference(blocks.out, product)
    last = blocks.lo.ops[-1]
    assert (last.name, last.outputs) == ("sub", (made.number,))
