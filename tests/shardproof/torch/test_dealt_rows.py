"""Rows that are dealt to ranks one by one, as torch's DistributedSampler does: rank r of n has rows
r, r + n, r + 2n ..."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

ROWS, TOKENS, RANKS, WIDTH, CLASSES = 8, 3, 2, 4, 6
BATCH = {
    "x": sp.tensor((ROWS, TOKENS), torch.int64, low=0, high=CLASSES),
    "y": sp.tensor((ROWS, TOKENS), torch.int64, low=0, high=CLASSES),
}
#: What a rank takes of a full tensor: of the inputs, and of the labels.
Cut = Callable[["torch.Tensor", int], "torch.Tensor"]


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES))


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(x).reshape(-1, CLASSES), y.reshape(-1))


def single(job: sp.Job) -> None:
    net = model()
    job.start(net)
    loss = loss_of(net, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def verify(folder: Path, inputs: Cut, labels: Cut, microbatches: int = 1) -> sp.Result:
    def parallel(job: sp.Job) -> None:
        net = model()
        job.start(net)
        x, y = inputs(job.batch["x"], job.rank), labels(job.batch["y"], job.rank)
        losses = []
        for own in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            loss = loss_of(net, *own) / microbatches
            loss.backward()
            losses.append(loss.detach())
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=losses)

    return decided(folder, parallel)


def decided(folder: Path, parallel: Callable[[sp.Job], None]) -> sp.Result:
    options = {"out": folder / "run", "executor": "local", "cache": False}
    return sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)


def dealt(x: torch.Tensor, rank: int) -> torch.Tensor:
    return x[rank::RANKS]


def listed(x: torch.Tensor, rank: int) -> torch.Tensor:
    sampler = DistributedSampler(range(ROWS), RANKS, rank, shuffle=False)
    return x[list(sampler)]


def stacked(x: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.stack([x[i] for i in range(rank, ROWS, RANKS)])


def first(x: torch.Tensor, rank: int) -> torch.Tensor:
    return x[::RANKS]


def chunk(x: torch.Tensor, rank: int) -> torch.Tensor:
    return x.chunk(RANKS)[rank]


@pytest.mark.parametrize("cut", [dealt, listed, stacked], ids=lambda f: f.__name__)
def test_dealt_rows_are_proved(tmp_path: Path, cut: Cut) -> None:
    result = verify(tmp_path, cut, cut)
    assert result.verdict == "proved", result.reason
    assert check(result.run_dir).ok


def test_microbatches_of_dealt_rows_are_proved(tmp_path: Path) -> None:
    result = verify(tmp_path, dealt, dealt, microbatches=2)
    assert result.verdict == "proved", result.reason
    assert check(result.run_dir).ok


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [(first, first), (dealt, chunk), (listed, chunk)],
    ids=["same rows on all ranks", "labels of others", "labels of others than listed"],
)
def test_wrong_rows_are_refuted(tmp_path: Path, inputs: Cut, labels: Cut) -> None:
    assert verify(tmp_path, inputs, labels).verdict == "refuted"


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]


@pytest.mark.parametrize(("share", "verdict"), [(2, "proved"), (1, "refuted")])
def test_a_loader_with_a_sampler(tmp_path: Path, share: int, verdict: str) -> None:
    """Batches of two rows, of which each loss counts half; the twin forgets to divide."""

    def parallel(job: sp.Job) -> None:
        net = model()
        job.start(net)
        rows = Rows(job.batch["x"], job.batch["y"])
        sampler = DistributedSampler(rows, RANKS, job.rank, shuffle=False)
        losses = []
        for x, y in DataLoader(rows, batch_size=2, sampler=sampler):
            loss = loss_of(net, x, y)
            (loss / share).backward()
            losses.append(loss.detach() / 2)
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=losses)

    assert decided(tmp_path, parallel).verdict == verdict
