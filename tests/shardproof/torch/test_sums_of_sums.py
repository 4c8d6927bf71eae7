"""A sum over rows of sums over places is the sum over both: the bias of a convolution to which a
number for each row and channel is added, with one row on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

RANKS, CHANNELS, SIDE, STEPS = 2, 3, 4, 5


class Timed(nn.Module):
    """What a diffusion model does with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Conv2d(2, CHANNELS, kernel_size=1)
        self.time = nn.Linear(STEPS, CHANNELS)
        self.outward = nn.Conv2d(CHANNELS, 2, kernel_size=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.outward(F.silu(self.inward(x) + self.time(t)[:, :, None, None]))


def trained(job: sp.Job, ranks: int, divisor: int) -> None:
    model = Timed()
    job.start(model)
    own = {n: x.chunk(ranks)[job.rank if ranks > 1 else 0] for n, x in job.batch.items()}
    loss = (model(own["x"], own["t"]) - own["noise"]).pow(2).mean()
    loss.backward()
    for parameter in model.parameters() if ranks > 1 else ():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(divisor)
    job.end(loss=loss)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_time_of_one_row_on_each_rank(tmp_path: Path, rows: int) -> None:
    images = sp.tensor((RANKS * rows, 2, SIDE, SIDE))
    batch = {"x": images, "noise": images, "t": sp.tensor((RANKS * rows, STEPS))}

    def verdict(divisor: int) -> sp.Result:
        return sp.verify(
            lambda job: trained(job, 1, 1),
            lambda job: trained(job, RANKS, divisor),
            world_size=RANKS,
            batch=batch,
            executor="local",
            out=tmp_path / str(divisor),
        )

    result = verdict(RANKS)
    assert result.verdict == "proved", sp.told(result)
    assert check(result.run_dir).ok
    assert verdict(1).verdict == "refuted"
