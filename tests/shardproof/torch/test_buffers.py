"""Running statistics of batch norm, which its operator writes and its schema does not name."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp


def step(momentum: float) -> object:
    def run(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=momentum))
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), torch.zeros(6, 3))
        loss.backward()
        norm = model[1]
        job.end(loss=loss, outputs={"mean": norm.running_mean, "spread": norm.running_var})

    return run


def verify(folder: Path, momentum: float) -> sp.Result:
    return sp.verify(
        step(0.1),  # type: ignore[arg-type]
        step(momentum),  # type: ignore[arg-type]
        world_size=2,
        batch={"x": sp.tensor((6, 4))},
        executor="local",
        cache=False,
        out=folder / "run",
        validate=True,
    )


def test_running_statistics_are_what_the_operator_writes(tmp_path: Path) -> None:
    result = verify(tmp_path / "right", 0.1)
    assert result.verdict == "proved", sp.told(result)
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)
    assert verify(tmp_path / "wrong", 0.2).verdict == "refuted"


def averaged(way: str) -> object:
    """An average that begins with ones and goes a tenth of its way."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(4, 3)
        model.register_buffer("average", torch.ones(4))
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), torch.zeros(6, 3))
        loss.backward()
        new = job.batch["x"].square().mean(0)
        if way == "lerp":
            model.average.lerp_(new, 0.1)
        else:
            model.average.mul_(0.9).add_(new, alpha=0.2 if way == "twice" else 0.1)
        job.end(loss=loss, outputs={"average": model.average})

    return run


def test_what_a_buffer_of_ones_leaves_is_an_exact_number(tmp_path: Path) -> None:
    for way, verdict in (("mul", "proved"), ("twice", "refuted")):
        result = sp.verify(
            averaged("lerp"),  # type: ignore[arg-type]
            averaged(way),  # type: ignore[arg-type]
            world_size=2,
            batch={"x": sp.tensor((6, 4))},
            executor="local",
            cache=False,
            out=tmp_path / way,
        )
        assert result.verdict == verdict, sp.told(result)
