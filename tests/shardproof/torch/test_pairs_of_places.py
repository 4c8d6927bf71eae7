"""A bias for every pair of positions of a window, which a small network makes (as in Swin V2)."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.divided_rows import trained

ROWS, SIDE, WIDTH = 4, 2, 4


class Biased(nn.Module):
    """Attention over the positions of a window; ``swapped``: the bias of key and query."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.qkv, self.first, self.last = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(2, 3),
            nn.Linear(3, 1),
        )
        line = torch.arange(1.0 - SIDE, SIDE)
        self.offsets = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)
        side = torch.arange(SIDE)
        places = torch.stack(torch.meshgrid(side, side, indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + SIDE - 1
        chosen = apart[0] * (2 * SIDE - 1) + apart[1]
        self.chosen = (chosen.T if swapped else chosen).reshape(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        table = self.last(self.first(self.offsets).relu()).view(-1)
        bias = 16 * table[self.chosen].view(SIDE * SIDE, SIDE * SIDE).sigmoid()
        return (q @ k.transpose(1, 2) + bias).softmax(-1) @ v


@pytest.mark.parametrize(("swapped", "verdict"), [(False, "proved"), (True, "refuted")])
def test_rows_are_divided_beside_a_bias_of_pairs(swapped: bool, verdict: str) -> None:
    step = trained(lambda job: Biased(swapped and job.world_size > 1))
    batch = {"x": sp.tensor((ROWS, SIDE * SIDE, WIDTH))}
    result = sp.verify(step, step, world_size=2, batch=batch)
    assert result.verdict == verdict, sp.told(result)


IDS = torch.tensor([4, 3, 1, 0, 5, 4, 2, 1, 3, 0, 5, 2])


@pytest.mark.parametrize(
    ("kind", "swapped", "verdict"),
    [
        (torch.float32, False, "proved"),
        (torch.float32, True, "refuted"),
        (torch.int64, False, "proved"),
        (torch.int64, True, "refuted"),
    ],
)
def test_ranks_choose_by_their_ids(kind: torch.dtype, swapped: bool, verdict: str) -> None:
    """Ids of a rank are of fewer runs than all are; whole numbers are no product with a table."""

    def step(job: sp.Job) -> None:
        model = nn.Linear(6, 6, bias=False)
        job.start(model)
        own = len(IDS) // job.world_size
        ids = IDS[own * (job.rank ^ int(swapped and job.world_size > 1)) :][:own]
        y = (job.batch["x"] @ model.weight if kind.is_floating_point else job.batch["x"])[:, ids]
        if kind.is_floating_point:
            y.pow(2).sum().backward()
        if job.world_size > 1 and kind.is_floating_point:
            dist.all_reduce(model.weight.grad)
        piece = {"y": sp.piece("y", dim=1, start=own * job.rank, size=own)}
        job.end(outputs={"y": y.detach().float()}, pieces=piece if job.world_size > 1 else {})

    low, high = (None, None) if kind.is_floating_point else (0, 9)
    batch = {"x": sp.tensor((4, 6), kind, low=low, high=high)}
    result = sp.verify(step, step, world_size=2, batch=batch)
    assert result.verdict == verdict, sp.told(result)
