"""Models whose parameters get another type, or another order in memory, before the step begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp

WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "to bfloat16": lambda model: model.to(torch.bfloat16),
    "double": lambda model: model.double(),
    "half and back": lambda model: model.half().float(),
    "channels last": lambda model: model.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
}


def converted(way: str, *, adds: bool = True) -> Callable[[sp.Job], None]:
    """A step of a convolution, data parallel; ``adds``: whether ranks add up their gradients."""

    def step(job: sp.Job) -> None:
        model = WAYS[way](nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh()))
        job.start(model)
        kind = next(model.parameters()).dtype
        x, y = (job.batch[n].chunk(job.world_size)[job.rank].to(kind) for n in ("x", "y"))
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        for parameter in model.parameters() if job.world_size > 1 and adds else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("adds", "verdict"), [(True, "proved"), (False, "refuted")])
def test_parameters_are_converted(tmp_path: Path, way: str, adds: bool, verdict: str) -> None:
    result = sp.verify(
        converted(way),
        converted(way, adds=adds),
        world_size=2,
        batch={"x": sp.tensor((4, 1, 4, 4)), "y": sp.tensor((4, 2, 4, 4))},
        executor="local",
        cache=False,
        out=tmp_path,
    )
    assert result.verdict == verdict, sp.told(result)
