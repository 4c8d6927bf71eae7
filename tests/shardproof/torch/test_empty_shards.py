"""Dimensions that are too short for all ranks: some hold nothing of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardproof.torch as sp

BATCH = {"x": sp.tensor((4, 4)), "y": sp.tensor((4, 1))}


def step(ranks: int, scale: float = 1) -> Callable[[sp.Job], None]:
    """A head of one number, under FSDP2 (and AdamW) if there are several ranks."""

    def run(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        if ranks > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.AdamW(model.parameters())
        job.start(model, optimizer)
        loss = (model(x) - y).pow(2).mean()
        (loss * scale).backward()
        optimizer.step()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_a_head_of_one_number(tmp_path: Path, scale: float, verdict: str) -> None:
    result = sp.verify(
        step(1),
        step(2, scale),
        world_size=2,
        batch=BATCH,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == verdict, sp.told(result)
