"""Ranks with some experts each, all of which read a row, and a router that reads what they read:
the gradient of what is read is made of a part of the router's softmax on each rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

WIDTH, INNER, WORDS = 6, 10, 12


class Experts(nn.Module):
    """``ranks``: how many have a part of ``experts``; ``mistake``: "no copy" of what they read, or
    "shifted" weights."""

    def __init__(self, rank: int, ranks: int, experts: int, mistake: str) -> None:
        super().__init__()
        each = experts // ranks
        self.mine = range(rank * each, (rank + 1) * each)
        self.ranks, self.mistake = ranks, mistake
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.ModuleDict({str(e): nn.Linear(WIDTH, INNER) for e in self.mine})
        self.down = nn.ModuleDict({str(e): nn.Linear(INNER, WIDTH, bias=False) for e in self.mine})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks > 1 and self.mistake != "no copy":
            x = CopyTo.apply(x)
        weights = self.router(x).softmax(-1)
        first = 0 if self.mistake == "shifted" else self.mine.start
        out = torch.zeros_like(x)
        for n, e in enumerate(self.mine):
            made = self.down[str(e)](F.silu(self.up[str(e)](x)))
            out = out + weights[..., first + n : first + n + 1] * made
        return ReduceFrom.apply(out) if self.ranks > 1 else out


def step(ranks: int, experts: int, mistake: str = "") -> Callable[[sp.Job], None]:
    """One layer between a table and its head."""

    def run(job: sp.Job) -> None:
        table, norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        moe = Experts(job.rank if ranks > 1 else 0, ranks, experts, mistake)
        head = nn.Linear(WIDTH, WORDS, bias=False)
        job.start(nn.ModuleDict({"table": table, "norm": norm, "moe": moe, "head": head}))
        x = table(job.batch["ids"])
        logits = head(x + moe(norm(x)))
        loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
        loss.backward()
        if ranks > 1 and mistake != "router":
            dist.all_reduce(moe.router.weight.grad)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("experts", "ranks", "mistake"),
    [
        *((4, 2, ""), (8, 2, ""), (6, 3, ""), (8, 4, "")),
        *((4, 2, "no copy"), (4, 2, "shifted"), (4, 2, "router")),
    ],
)
def test_experts_whose_router_reads_what_they_read(
    experts: int, ranks: int, mistake: str, tmp_path: Path
) -> None:
    words = sp.tensor((2, 4), torch.long, low=0, high=WORDS)
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    result = sp.verify(
        step(1, experts),
        step(ranks, experts, mistake),
        world_size=ranks,
        batch={"ids": words, "labels": words},
        **options,
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
