"""The largest of all entries of an activation whose features are over ranks, as the scale of a
fake-quantized tensor, or of a type of 8 bits, has it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

ROWS, WIDTH, HIDDEN = 3, 2, 4
BATCH = {"x": sp.tensor((ROWS, WIDTH))}


class Net(nn.Module):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN // ranks, bias=False)
        self.down = nn.Linear(HIDDEN // ranks, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, everywhere: bool = False) -> torch.Tensor:
        h = F.silu(self.up(x))
        largest = h.detach().abs().max()
        if everywhere:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return self.down(h / largest)


def single(job: sp.Job) -> None:
    model = Net(1)
    job.start(model)
    loss = model(job.batch["x"]).square().mean()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize(("everywhere", "verdict"), [(True, "proved"), (False, "refuted")])
def test_the_largest_of_all_ranks_is_that_of_all(
    tmp_path: Path, everywhere: bool, verdict: str
) -> None:
    def parallel(job: sp.Job) -> None:
        model, size = Net(2), HIDDEN // 2
        rows = {"start": size * job.rank, "size": size}
        dims = {"up.weight": 0, "down.weight": 1}
        job.start(model, parameters={n: sp.piece(n, dim=d, **rows) for n, d in dims.items()})
        y = ReduceFrom.apply(model(CopyTo.apply(job.batch["x"]), everywhere))
        loss = y.square().mean()
        loss.backward()
        job.end(loss=loss)

    given = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    result = sp.verify(single, parallel, world_size=2, batch=BATCH, **given)
    assert result.verdict == verdict, sp.told(result)
