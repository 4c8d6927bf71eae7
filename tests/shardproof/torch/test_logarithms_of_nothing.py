"""Losses of probabilities that may be 0: PyTorch's own are 0 there, and a product with a logarithm is
no number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

Tensor = torch.Tensor
#: Of what a rank's rows give and the logarithms of the model's probabilities, a loss of each entry.
Loss = Callable[[Tensor, Tensor], Tensor]


def _own(target: Tensor, logs: Tensor) -> Tensor:
    return F.kl_div(logs, target, reduction="none")


def _by_hand(target: Tensor, logs: Tensor) -> Tensor:
    return target * (target.log() - logs)


def _mixed(target: Tensor, logs: Tensor) -> Tensor:
    return torch.xlogy(target, target.square()) - torch.special.entr(target) * logs


def _mixed_by_hand(target: Tensor, logs: Tensor) -> Tensor:
    return target * target.square().log() + target * target.log() * logs


@pytest.mark.parametrize(
    ("target", "loss", "ranks", "verdict"),
    [
        ("softmax", _own, _by_hand, "proved"),
        ("relu", _own, _own, "proved"),
        ("relu", _own, _by_hand, "refuted"),
        ("softmax", _mixed, _mixed_by_hand, "proved"),
        ("relu", _mixed, _mixed_by_hand, "refuted"),
    ],
)
def test_what_is_nothing_has_no_logarithm(
    target: str, loss: Loss, ranks: Loss, verdict: str, tmp_path: Path
) -> None:
    def step(job: sp.Job, loss: Loss) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        job.start(model)
        rows = 4 // job.world_size
        x = job.batch["x"][job.rank * rows :][:rows]
        given = x.softmax(-1) if target == "softmax" else x.relu()
        value = loss(given, model(x).log_softmax(-1)).mean()
        value.backward()
        for p in model.parameters() if job.world_size > 1 else ():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
        job.end(loss=value)

    result = sp.verify(
        lambda job: step(job, loss),
        lambda job: step(job, ranks),
        world_size=2,
        batch={"x": sp.tensor((4, 3))},
        out=tmp_path / "run",
        cache=False,
    )
    assert result.verdict == verdict, sp.told(result)
