"""Known tables that DTensor distributes, and rows of them at positions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

import shardproof.torch as sp

ROWS, LENGTH, WIDTH = 4, 6, 8
BATCH = {"x": sp.tensor((ROWS, LENGTH, WIDTH)), "y": sp.tensor((ROWS, LENGTH, WIDTH))}


def table(scale: float) -> torch.Tensor:
    angles = torch.outer(torch.arange(LENGTH).float(), torch.arange(1, WIDTH // 2 + 1) * scale)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    at = torch.arange(LENGTH).view(1, LENGTH, 1).expand(x.shape[0], LENGTH, WIDTH // 2)
    rows = torch.gather(angles.expand(x.shape[0], -1, -1), 1, at)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rows).flatten(2)


def step(job: sp.Job, scales: tuple[float, float]) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    job.start(model)
    angles, x, y = table(0.1), job.batch["x"], job.batch["y"]
    if job.world_size > 1:
        mesh = init_device_mesh("cpu", (2,))
        sent = distribute_tensor(table(scales[dist.get_rank()]), mesh, [Replicate()])
        assert isinstance(sent, DTensor)
        angles = sent.to_local()
        x, y = (t.chunk(2)[job.rank] for t in (x, y))
    loss = nn.functional.mse_loss(rotated(model(x), angles), y)
    loss.backward()
    if job.world_size > 1:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    job.end(loss=loss)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((0.1, 0.1), "proved"), ((0.2, 0.2), "refuted"), ((0.1, 0.2), "invalid input")],
    ids=["right", "others on both", "others on one"],
)
def test_tables_that_ranks_distribute(
    tmp_path: Path, scales: tuple[float, float], expected: str
) -> None:
    """They are what every rank computes; ranks that compute others are not understood."""
    result = sp.verify(
        lambda job: step(job, (0.1, 0.1)),
        lambda job: step(job, scales),
        world_size=2,
        batch=BATCH,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == expected, sp.told(result)
    if expected == "proved":
        assert any(a.startswith("stand-in: DTensor's broadcast") for a in result.assumptions)
    if expected == "invalid input":
        assert "not alike" in result.reason
