"""A state or an output that one side alone has: nothing says what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS = 2


def verdict(folder: Path, single: float, parallel: float, named: bool = False) -> sp.Result:
    """SGD with these momenta; ``named``: the parallel side names its loss as an output, too."""

    def step(job: sp.Job, momentum: float, outputs: bool) -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
        job.start(model, optimizer)
        loss = (model(job.batch["x"].chunk(job.world_size)[job.rank]) ** 2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= job.world_size
        optimizer.step()
        job.end(loss=loss, outputs={"mean": loss} if outputs else None)

    return sp.verify(
        lambda job: step(job, single, False),
        lambda job: step(job, parallel, named),
        world_size=RANKS,
        batch={"x": sp.tensor((4, 4))},
        out=folder,
        executor="local",
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_both_have_is_proved(tmp_path: Path, momentum: float) -> None:
    assert verdict(tmp_path, momentum, momentum).verdict == "proved"


def test_a_momentum_of_the_parallel_side_alone_is_refused(tmp_path: Path) -> None:
    """Its buffer is the gradient itself in the first step, and so are the new parameters."""
    result = verdict(tmp_path, 0.0, 0.9)
    assert result.verdict == "invalid input", result
    assert "the state weight: momentum_buffer, the single side has none of that name" in str(result)


def test_a_momentum_of_the_single_side_alone_is_not_proved(tmp_path: Path) -> None:
    result = verdict(tmp_path, 0.9, 0.0)
    assert result.verdict == "inconclusive", result
    assert "momentum_buffer has no counterpart" in str(result)


def test_an_output_of_the_parallel_side_alone_is_refused(tmp_path: Path) -> None:
    result = verdict(tmp_path, 0.0, 0.0, named=True)
    assert result.verdict == "invalid input", result
    assert "the output mean, the single side has none of that name" in str(result)
