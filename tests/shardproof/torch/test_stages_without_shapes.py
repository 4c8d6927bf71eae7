"""Stages of `torch.distributed.pipelining` that are made without shapes, as most are: they send
these to each other, as objects, before the first microbatch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import (  # noqa: E402
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
)

import shardproof.torch as sp  # noqa: E402

RANKS, ROWS, WIDTH = 2, 8, 4
BATCH = {"x": sp.tensor((ROWS, WIDTH)), "y": sp.tensor((ROWS, WIDTH))}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def single(stages: int) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        blocks = nn.Sequential(*(Block() for _ in range(stages)))
        job.start(blocks)
        loss = F.mse_loss(blocks(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def pipeline(stages: int, mistake: bool = False) -> Callable[[sp.Job], None]:
    """``mistake``: gradients are not divided by the number of microbatches."""

    def step(job: sp.Job) -> None:
        numbers = range(job.rank, stages, RANKS)
        blocks = [Block() for _ in numbers]
        names = [n for n, _ in blocks[0].named_parameters()]
        own = {
            f"{place}.{name}" if place else name: sp.same(f"{number}.{name}")
            for place, number in enumerate(numbers)
            for name in names
        }
        job.start(blocks, parameters=own)
        device = torch.device("cpu")
        made = [
            PipelineStage(block, number, stages, device)
            for block, number in zip(blocks, numbers, strict=True)
        ]
        options = {"n_microbatches": 2, "loss_fn": F.mse_loss, "scale_grads": not mistake}
        runner = (
            ScheduleInterleaved1F1B(made, **options)
            if stages > RANKS
            else Schedule1F1B(made[0], **options)
        )
        losses: list[torch.Tensor] = []
        if job.rank == 0:
            runner.step(job.batch["x"])
        else:
            runner.step(target=job.batch["y"], losses=losses)
        job.end(loss=losses or None)

    return step


@pytest.mark.parametrize(
    ("stages", "mistake", "verdict"),
    [(2, False, "proved"), (2, True, "refuted"), (4, False, "proved")],
)
def test_stages_send_each_other_shapes(stages: int, mistake: bool, verdict: str) -> None:
    result = sp.verify(
        single(stages), pipeline(stages, mistake), world_size=RANKS, batch=BATCH, cache=False
    )
    assert result.verdict == verdict, sp.told(result)
    if verdict == "proved":
        assert any("shapes are sent ahead of values" in text for text in result.assumptions)


def test_stages_of_which_one_has_shapes_are_refused() -> None:
    def unlike(job: sp.Job) -> None:
        block = Block()
        names = [n for n, _ in block.named_parameters()]
        job.start(block, parameters={name: sp.same(f"{job.rank}.{name}") for name in names})
        rows = torch.empty(ROWS // 2, WIDTH)
        made = rows.clone().requires_grad_()
        shapes = {"input_args": (rows,), "output_args": (made,)} if job.rank == 0 else {}
        stage = PipelineStage(block, job.rank, 2, torch.device("cpu"), **shapes)
        runner = Schedule1F1B(stage, n_microbatches=2, loss_fn=F.mse_loss)
        if job.rank == 0:
            runner.step(job.batch["x"])
        else:
            runner.step(target=job.batch["y"])
        job.end()

    result = sp.verify(single(2), unlike, world_size=RANKS, batch=BATCH, cache=False)
    assert result.verdict == "invalid input"
    assert "Python objects that others never give" in result.reason
