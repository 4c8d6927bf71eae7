"""Pairs that are turned by products with sines and cosines, as complex numbers, of one row or several
on each rank: queries and keys of one projection."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

ROWS, LENGTH, WIDTH, HEADS, HEAD = 2, 3, 4, 2, 4


class Turned(nn.Module):
    """Scores of queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(WIDTH, HEADS * 2 * HEAD, bias=False)

    def forward(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        q, k = self.qk(x).view(len(x), LENGTH, HEADS, 2, HEAD).split(1, 3)
        angles = torch.outer(torch.arange(LENGTH) + float(start), torch.tensor([1.0, 0.5]))
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]

        def turned(t: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(t.reshape(len(x), LENGTH, HEADS, HEAD // 2, 2))
            return torch.view_as_real(pairs * turns).flatten(3)

        return torch.einsum("bqhd,bkhd->bhqk", turned(q), k.flatten(3))


def verdict(ranks: int, out: Path, start: int = 0) -> sp.Result:
    """``start``: the first position that ranks turn by."""

    def step(job: sp.Job, count: int) -> None:
        model = Turned()
        job.start(model)
        x = job.batch["x"].chunk(count)[job.rank]
        loss = model(x, start if count > 1 else 0).pow(2).mean()
        loss.backward()
        for parameter in model.parameters() if count > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return sp.verify(
        lambda job: step(job, 1),
        lambda job: step(job, ranks),
        world_size=ranks,
        batch={"x": sp.tensor((ROWS, LENGTH, WIDTH))},
        executor="local",
        out=out,
    )


def test_one_row_on_each_rank(tmp_path: Path) -> None:
    result = verdict(ROWS, tmp_path / "right")
    assert result.verdict == "proved", sp.told(result)
    assert check(result.run_dir).ok
    assert verdict(ROWS, tmp_path / "wrong", start=1).verdict == "refuted"
