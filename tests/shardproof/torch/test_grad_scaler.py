"""Steps with a `GradScaler`: losses times a scale, gradients over it, clipped in between."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402


def step(how: str, device: str, unscales: bool = True, steps: int = 1) -> Step:
    """``how``: "one" device, "ddp", "fsdp"; without ``unscales``, what is clipped is scaled."""

    def run(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        if how == "ddp":
            model = DistributedDataParallel(model)
        elif how == "fsdp":
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=1)
        job.start(model, optimizer)
        ranks = 1 if how == "one" else job.world_size
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (model(x).float() - y).square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        job.end(loss=loss)

    return run


BATCH = {"x": sp.tensor((4, 4)), "y": sp.tensor((4, 2))}


@pytest.mark.parametrize(("how", "device"), [("ddp", "cpu"), ("ddp", "cuda"), ("fsdp", "cpu")])
def test_scaled_losses(how: str, device: str, tmp_path: Path) -> None:
    right = locally(tmp_path / "right", step("one", device), step(how, device), BATCH)
    assert right.verdict == "proved", sp.told(right)
    assert any("are finite" in text for text in right.assumptions)
    wrong = locally(tmp_path / "wrong", step("one", device), step(how, device, False), BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)


def test_a_scale_that_grows(tmp_path: Path) -> None:
    """Each step's gradients are over the scale of that step."""
    result = locally(
        tmp_path, step("one", "cpu", steps=2), step("ddp", "cpu", steps=2), BATCH, validate=True
    )
    assert result.verdict == "proved", sp.told(result)
