"""Losses with a margin at the label (ArcFace), written with one-hot rows: also a score that a product
with a one-hot row picks is the score of the label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, ROWS, WIDTH, copy_to, reduce_from  # noqa: E402

OWN = CLASSES // 2
BATCH = {
    "x": sp.tensor((ROWS, 6)),
    "y": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.centres = nn.Linear(6, WIDTH), nn.Parameter(torch.randn(classes, WIDTH))


def scores(x: torch.Tensor, centres: torch.Tensor, hot: torch.Tensor) -> torch.Tensor:
    return 16.0 * (F.normalize(x) @ F.normalize(centres).T - 0.5 * hot)


def single(job: sp.Job) -> None:
    model = Model(CLASSES)
    job.start(model)
    hot = F.one_hot(job.batch["y"], CLASSES).float()
    made = scores(model.body(job.batch["x"]), model.centres, hot)
    loss = F.cross_entropy(made, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job, own_alone: bool = True) -> None:
    model, first = Model(OWN), job.rank * OWN
    job.start(model, parameters={"centres": sp.piece("centres", dim=0, start=first, size=OWN)})
    place = job.batch["y"] - first
    hot = F.one_hot(place.clamp(0, OWN - 1), OWN).float()
    if own_alone:
        hot = hot * ((place >= 0) & (place < OWN))[:, None].float()
    made = scores(copy_to(model.body(job.batch["x"])), model.centres, hot)
    most = made.detach().amax(1)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    total = reduce_from((made - most[:, None]).exp().sum(1))
    loss = (total.log() + most - reduce_from((made * hot).sum(1))).mean()
    loss.backward()
    job.end(loss=loss)


def test_margins_by_one_hot_rows_are_proved() -> None:
    assert sp.verify(single, parallel, world_size=2, batch=BATCH).verdict == "proved"


def test_labels_of_other_ranks_that_count_are_refuted() -> None:
    def wrong(job: sp.Job) -> None:
        parallel(job, own_alone=False)

    assert sp.verify(single, wrong, world_size=2, batch=BATCH).verdict == "refuted"


def classes(z: torch.Tensor, x: torch.Tensor, y: torch.Tensor, margin: float) -> torch.Tensor:
    return F.multi_margin_loss(z, y, margin=margin)


def squares(z: torch.Tensor, x: torch.Tensor, y: torch.Tensor, margin: float) -> torch.Tensor:
    return F.multi_margin_loss(z, y, p=2, margin=margin, reduction="none").mean()


def pairs(z: torch.Tensor, x: torch.Tensor, y: torch.Tensor, margin: float) -> torch.Tensor:
    """Whether two belong together is told by a number of the batch."""
    together = torch.where(x[:, 0] > 0, 1, -1)
    return F.cosine_embedding_loss(z, F.one_hot(y, CLASSES).float(), together, margin=margin)


def replicas(loss: Callable[..., torch.Tensor], margin: float) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = nn.Linear(6, CLASSES)
        job.start(model)
        x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in ("x", "y"))
        value = loss(model(x), x, y, margin)
        value.backward()
        for p in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
        job.end(loss=value)

    return step


@pytest.mark.parametrize("loss", [classes, squares, pairs])
def test_margins_of_pytorch(loss: Callable[..., torch.Tensor]) -> None:
    single = replicas(loss, 0.25)
    right = sp.verify(single, single, world_size=2, batch=BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(single, replicas(loss, 0.125), world_size=2, batch=BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)
