"""The derivative of a gated layer, by hand, in several orders of its factors: gate and up projection
are one parameter, of which a rank has some rows of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH, INNER, RANKS = 8, 16, 2
BATCH = {"x": sp.tensor((4, WIDTH)), "y": sp.tensor((4, WIDTH))}

Slope = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
#: The gradient of the gate, of the gradient, gate, up and the sigmoid of the gate.
SLOPES: dict[str, Slope] = {
    "megatron": lambda d, g, u, s: d * s * (1 + g * (1 - s)) * u,
    "liger": lambda d, g, u, s: d * (F.silu(g) * (1 - s) + s) * u,
    "slope first": lambda d, g, u, s: torch.ops.aten.silu_backward(torch.ones_like(g), g) * d * u,
}


def gated(slope: Slope) -> type[torch.autograd.Function]:
    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, up):
            ctx.save_for_backward(gate, up)
            return F.silu(gate) * up

        @staticmethod
        def backward(ctx, gradient):
            gate, up = ctx.saved_tensors
            return slope(gradient, gate, up, gate.sigmoid()), gradient * F.silu(gate)

    return Gated


class Layer(nn.Module):
    def __init__(self, ranks: int, slope: Slope | None) -> None:
        super().__init__()
        self.ranks, self.slope = ranks, slope
        self.gate_up = nn.Linear(WIDTH, 2 * INNER // ranks, bias=False)
        self.down = nn.Linear(INNER // ranks, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(CopyTo.apply(x) if self.ranks > 1 else x).chunk(2, -1)
        inner = gated(self.slope).apply(gate, up) if self.slope else F.silu(gate) * up
        y = self.down(inner)
        return ReduceFrom.apply(y) if self.ranks > 1 else y


def step(ranks: int, slope: Slope | None = None):
    def one(job: sp.Job) -> None:
        own = INNER // ranks
        rows = [
            sp.piece("gate_up.weight", dim=0, start=start + own * job.rank, size=own)
            for start in (0, INNER)
        ]
        columns = sp.piece("down.weight", dim=1, start=own * job.rank, size=own)
        parts = {"gate_up.weight": rows, "down.weight": columns} if ranks > 1 else None
        model = Layer(ranks, slope)
        job.start(model, parameters=parts)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return one


@pytest.mark.parametrize("slope", SLOPES.values(), ids=SLOPES)
def test_factors_in_another_order(slope: Slope) -> None:
    result = sp.verify(step(1), step(RANKS, slope), world_size=RANKS, batch=BATCH)
    assert result.verdict == "proved", sp.told(result)


def test_a_wrong_derivative_is_refuted() -> None:
    wrong: Slope = lambda d, g, u, s: d * s * (1 + g * s) * u  # noqa: E731
    result = sp.verify(step(1), step(RANKS, wrong), world_size=RANKS, batch=BATCH)
    assert result.verdict == "refuted", sp.told(result)
