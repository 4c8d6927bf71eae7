"""Models that a step copies (`copy.deepcopy`), or that PyTorch copies: a teacher, an average."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shardproof import torch as sp
from shardproof.frontends.torch import cloned

BATCH = {"x": sp.tensor((4, 6))}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))


def distilled(job: sp.Job, ranks: int, mistake: str = "") -> None:
    """A student against a copy of itself, which follows it by a moving average."""
    student = network()
    job.start(student)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    x = job.batch["x"].chunk(ranks)[job.rank]
    aim = F.softmax((student if mistake == "teacher trains" else teacher)(x) / 2, -1)
    loss = -(aim * F.log_softmax(student(x), -1)).sum(-1).mean()
    loss.backward()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            assert new.grad is not None
            if ranks > 1 and mistake != "not reduced":
                dist.all_reduce(new.grad, op=dist.ReduceOp.AVG)
            old.mul_(0.9).add_(new - new.grad, alpha=0.1)
    job.end(loss=loss, outputs=dict(teacher.named_parameters()))


def averaged(job: sp.Job, ranks: int, mistake: str = "") -> None:
    """PyTorch's own average of weights, which copies the model."""
    model = nn.Linear(6, 4)
    decay = 0.99 if mistake == "another decay" else 0.9
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    job.start(model)
    average.update_parameters(model)
    loss = model(job.batch["x"].chunk(ranks)[job.rank]).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            if ranks > 1 and mistake != "not reduced":
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            p -= p.grad
    average.update_parameters(model)
    job.end(loss=loss, outputs=dict(average.module.named_parameters()))


Steps = Callable[[sp.Job, int, str], None]


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        (distilled, ""),
        (distilled, "teacher trains"),
        (averaged, ""),
        (averaged, "another decay"),
        (averaged, "not reduced"),
    ],
)
def test_a_copied_model_is_read_as_what_it_copies(
    step: Steps, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sp.verify(
        lambda job: step(job, 1, ""),
        lambda job: step(job, 2, mistake),
        world_size=2,
        batch=BATCH,
    )
    assert result.verdict == ("refuted" if mistake else "proved"), result


def test_deep_copies_are_those_of_tensors_with_memory() -> None:
    """A parameter is copied without its gradient and attributes, a tensor with them; what shares
    memory shares it afterwards; what was computed is no leaf."""

    def copied(rows: torch.Tensor) -> tuple[object, ...]:
        weight = nn.Parameter(rows + 0)
        weight.grad, weight.own = torch.zeros_like(weight), "w"  # type: ignore[attr-defined]
        buffer = rows * 2
        buffer.own = "b"  # type: ignore[attr-defined]
        column = buffer[:, 1]
        w, b, c, again = copy.deepcopy([weight, buffer, column, weight])
        with pytest.raises(RuntimeError, match="leaves"):
            copy.deepcopy(weight * 2)
        memory = {t.untyped_storage()._cdata for t in (weight, buffer, w, b)}
        shared = b.untyped_storage()._cdata == c.untyped_storage()._cdata
        return (
            *(isinstance(t, nn.Parameter) for t in (w, b, c)),
            *(t.requires_grad for t in (w, b, c)),
            *(getattr(t, "own", "") for t in (w, b, c)),
            (w.grad is None, w is again, len(memory), shared),
            (c.stride(), c.storage_offset(), b.shape),
        )

    real = copied(torch.ones(3, 4))
    cloned.install()
    with FakeTensorMode():
        assert copied(torch.ones(3, 4)) == real
