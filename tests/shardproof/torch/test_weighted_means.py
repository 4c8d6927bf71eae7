"""Means of a rank's own rows, weighed by how many it has: proved, and wrong weights refuted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

ROWS, WIDTH, CLASSES = 4, 4, 5
BATCH = {
    "ids": sp.tensor((ROWS, 3), torch.long, low=0, high=CLASSES),
    "labels": sp.tensor((ROWS, 3), torch.long, low=0, high=CLASSES),
    "keep": sp.tensor((ROWS, 3), torch.bool),
}
#: The same with labels of which -100 does not count.
IGNORING = {**BATCH, "labels": sp.tensor((ROWS, 3), torch.long)}

Tensor = torch.Tensor
Job = Any
Mean = Callable[[Tensor, Tensor], Tensor]
#: Of a mean, how many rows it is of, and how many all ranks have.
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]


def _squares(scores: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(scores, F.one_hot(labels, CLASSES).float())


def _binary(scores: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores[:, 0], (labels > 2).float())


def _plain(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores - 1.0).pow(2).mean()


def _share(mean: Tensor, own: Tensor, every: Tensor) -> Tensor:
    return mean * (own / every)


def _product(mean: Tensor, own: Tensor, every: Tensor) -> Tensor:
    return mean * own / every


def _late(mean: Tensor, own: Tensor, every: Tensor) -> Tensor:
    return mean / every.float() * own.float()


def _verdict(
    folder: Path, mean: Mean, weigh: Weigh, wrong: str = "", *, ignoring: bool = False
) -> sp.Result:
    def step(job: Job, wrong: str) -> None:
        model = nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        job.start(model)
        ids, labels, keep = (job.batch[k].chunk(job.world_size)[job.rank] for k in BATCH)
        keep = labels != -100 if ignoring else keep
        own = keep.sum()
        every = own.clone()
        if job.world_size > 1:
            dist.all_reduce(every)
        if wrong == "rows that are not chosen":
            own = (~keep).sum()
        if wrong == "not weighed":
            own = every / job.world_size
        loss = weigh(mean(model(ids)[keep], labels[keep]), own, every)
        loss.backward()
        for parameter in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    batch = IGNORING if ignoring else BATCH
    return locally(folder, lambda job: step(job, ""), lambda job: step(job, wrong), batch)


def test_a_mean_of_chosen_rows_is_weighed(tmp_path: Path) -> None:
    assert _verdict(tmp_path, F.cross_entropy, _product).verdict == "proved"


def test_a_mean_of_chosen_rows_is_not_weighed(tmp_path: Path) -> None:
    assert _verdict(tmp_path, F.cross_entropy, _product, "not weighed").verdict == "refuted"


@pytest.mark.parametrize(
    ("mean", "weigh"),
    [
        (F.cross_entropy, _share),
        (F.cross_entropy, _late),
        (_squares, _share),
        (_binary, _product),
        (_plain, _product),
    ],
)
def test_means_are_weighed(tmp_path: Path, mean: Mean, weigh: Weigh) -> None:
    assert _verdict(tmp_path, mean, weigh).verdict == "proved"


def test_a_mean_of_labels_that_count_is_weighed(tmp_path: Path) -> None:
    made = _verdict(tmp_path, F.cross_entropy, _product, ignoring=True)
    assert made.verdict == "proved"


@pytest.mark.parametrize("mean", [F.cross_entropy, _squares])
def test_another_count_is_not_cancelled(tmp_path: Path, mean: Mean) -> None:
    made = _verdict(tmp_path, mean, _share, "rows that are not chosen")
    assert made.verdict == "refuted"
