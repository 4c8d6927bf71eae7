"""Losses that choose among classes: entries by labels, from the end, masks of labels, weights of
classes; under data parallelism, each beside gradients that are summed where they are averaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
ROWS = 8
LOSSES: dict[str, Loss] = {
    "the last class and the first": lambda z, t: z[:, [-1, 0]].square().mean(),
    "classes from the end": lambda z, t: z[:, torch.tensor([-1, -2])].exp().mean(),
    "the label's own": lambda z, t: (z.logsumexp(-1) - z[torch.arange(len(t)), t]).mean(),
    "between two labels": lambda z, t: (z.sum(-1) * ((t > 1) * (t < 4))).mean(),
    "beside a label": lambda z, t: (z.sum(-1) * ((t < 1) + (t > 4))).mean(),
    "not one label": lambda z, t: (z.sum(-1) * ~(t == 0)).mean(),
    "numbers of classes": lambda z, t: (z.sort(-1).values * torch.arange(CLASSES)).mean(),
    "labels by two": lambda z, t: F.cross_entropy(z, t // 2),
    "labels modulo 3": lambda z, t: F.cross_entropy(z, t % 3),
    "labels shifted": lambda z, t: F.cross_entropy(z, t >> 1),
    "labels of at most 3": lambda z, t: F.cross_entropy(z, t.clamp(max=3)),
    "entries along labels": lambda z, t: torch.take_along_dim(z, t[:, None], -1).mean(),
    "a sign, whose gradient is nothing": lambda z, t: torch.sgn(z * 2.0).cos().mean() + z.mean(),
    "weights of classes": lambda z, t: F.cross_entropy(
        z, t, weight=torch.arange(1.0, CLASSES + 1), reduction="none"
    ).mean(),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def step(loss_of: Loss, ranks: int, op: dist.ReduceOp.RedOpType | None = None) -> Step:
    """One step of a linear model on the rank's rows; gradients are reduced over the ranks."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = rows(job, "x", "t") if ranks > 1 else (job.batch["x"], job.batch["t"])
        loss = loss_of(model(x), t)
        loss.backward()
        for parameter in model.parameters() if op is not None else ():
            dist.all_reduce(parameter.grad, op=op)
        job.end(loss=loss)

    return run


def verdict(loss_of: Loss, op: dist.ReduceOp.RedOpType) -> str:
    batch = {
        "x": sp.tensor((ROWS, WIDTH)),
        "t": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
    }
    return sp.verify(step(loss_of, 1), step(loss_of, 2, op), world_size=2, batch=batch).verdict


@pytest.mark.parametrize("name", LOSSES)
def test_means_over_ranks_are_proved_and_sums_refuted(name: str) -> None:
    assert verdict(LOSSES[name], dist.ReduceOp.AVG) == "proved"
    assert verdict(LOSSES[name], dist.ReduceOp.SUM) == "refuted"


def test_the_mean_of_means_by_weight_is_another() -> None:
    """Weighted losses are divided by the sum of their labels' weights, which ranks have of their
    own rows alone."""

    def loss(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(z, t, weight=torch.arange(1.0, CLASSES + 1))

    assert verdict(loss, dist.ReduceOp.AVG) == "refuted"
