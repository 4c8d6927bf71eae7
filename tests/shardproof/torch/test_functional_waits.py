"""Functional collectives as operators, whose results are there once ``wait_tensor`` is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

BATCH = {"x": sp.tensor((4, 8))}


def loss_of(job: sp.Job, model: torch.nn.Linear, rows: int) -> torch.Tensor:
    x = job.batch["x"][job.rank * rows : (job.rank + 1) * rows]
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    return loss


def single(job: sp.Job) -> None:
    model = torch.nn.Linear(8, 2)
    job.start(model)
    job.end(loss=loss_of(job, model, 4))


def parallel(mistake: str) -> Callable[[sp.Job], None]:
    """A mean of gradients: of the weight by a reduce-scatter and an all-gather, of the bias in
    place, and a result that nobody reads."""

    def step(job: sp.Job) -> None:
        model, ops = torch.nn.Linear(8, 2), torch.ops._c10d_functional
        job.start(model)
        loss = loss_of(job, model, 2)
        name = dist.group.WORLD.group_name  # type: ignore[attr-defined]
        flat, bias = model.weight.grad.clone(), model.bias.grad
        part = ops.reduce_scatter_tensor(flat, "sum", 2, name)
        if mistake == "operand":
            flat.zero_()
        part = ops.wait_tensor(part) / 2
        whole = ops.all_gather_into_tensor(part, 2, name)
        if mistake != "result":
            whole = ops.wait_tensor(whole)
        model.weight.grad = whole * 1
        ops.all_reduce_(bias, "sum", name)
        if mistake != "in place":
            ops.wait_tensor(bias.view(1, 2))
        bias.div_(2)
        ops.all_gather_into_tensor(flat, 2, name)
        flat.zero_()
        job.end(loss=loss)

    return step


def test_what_is_waited_for_is_proved(tmp_path: Path) -> None:
    result = locally(tmp_path, single, parallel(""), BATCH)
    assert result.verdict == "proved", sp.told(result)


@pytest.mark.parametrize("mistake", ["operand", "result", "in place"])
def test_what_is_touched_before_its_wait_is_refuted(mistake: str, tmp_path: Path) -> None:
    result = locally(tmp_path, single, parallel(mistake), BATCH)
    assert result.verdict == "refuted", sp.told(result)
    assert result.findings[0].kind == "read before wait"
