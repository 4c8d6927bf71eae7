"""Constants that are added to scores: numbers up to the diagonal, minus infinity behind it (ALiBi)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH, HEADS, LENGTH = 8, 4, 5
BATCH = {"x": sp.tensor((2, LENGTH, WIDTH)), "y": sp.tensor((2, LENGTH, WIDTH))}


def slopes(first: int, heads: int) -> torch.Tensor:
    """Of some heads: what grows with the distance, minus infinity for later positions."""
    at = torch.arange(LENGTH)
    each = torch.tensor([0.5 ** (2 * (n + 1)) for n in range(HEADS)])[first : first + heads]
    near = (at[None] - at[:, None]).float() * each[:, None, None]
    return near + torch.full((LENGTH, LENGTH), -torch.inf).triu(1)


class Sloped(nn.Module):
    """Attention whose key heads serve two query heads each."""

    def __init__(self, ranks: int, first: int, fused: bool) -> None:
        super().__init__()
        self.ranks, self.heads, self.fused = ranks, HEADS // ranks, fused
        self.slopes = slopes(first, self.heads)
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, WIDTH // ranks // n, bias=False) for n in (1, 2, 2)
        )
        self.o = nn.Linear(WIDTH // ranks, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks > 1:
            x = CopyTo.apply(x)
        q, k, v = (
            f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, self.slopes[None], enable_gqa=True)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            y = (q @ k.transpose(2, 3) / 2**0.5 + self.slopes).softmax(-1) @ v
        y = self.o(y.transpose(1, 2).flatten(2))
        return ReduceFrom.apply(y) if self.ranks > 1 else y


def step(ranks: int, fused: bool, mistake: bool = False):
    def one(job: sp.Job) -> None:
        model = Sloped(ranks, 0 if mistake else job.rank * HEADS // ranks, fused)
        size = {"q": WIDTH // ranks, "k": WIDTH // 2 // ranks, "v": WIDTH // 2 // ranks}
        parts = {
            f"{n}.weight": sp.piece(f"{n}.weight", dim=0, start=job.rank * s, size=s)
            for n, s in size.items()
        }
        own = size["q"]
        parts["o.weight"] = sp.piece("o.weight", dim=1, start=job.rank * own, size=own)
        job.start(model, parameters=parts if ranks > 1 else None)
        loss = F.mse_loss(job.batch["x"] + model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return one


def test_slopes_under_a_causal_mask_are_added_to_the_scores_of_divided_heads() -> None:
    for fused in (False, True):
        result = sp.verify(step(1, not fused), step(2, fused), world_size=2, batch=BATCH)
        assert result.verdict == "proved", sp.told(result)


def test_slopes_of_other_heads_are_refuted() -> None:
    result = sp.verify(step(1, True), step(2, True, mistake=True), world_size=2, batch=BATCH)
    assert result.verdict == "refuted", sp.told(result)
