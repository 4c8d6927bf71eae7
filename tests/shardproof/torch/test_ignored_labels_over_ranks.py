"""Classes over ranks, and labels that may be ignored: DTensor's ``loss_parallel``, and masks behind
the sum by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step  # noqa: E402

ROWS, WIDTH, CLASSES, IGNORED = 6, 4, 6, -100
#: One has the name of a parameter.
BATCH = {
    "up.weight": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS,), torch.int64),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Classes(nn.Module):
    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.up(x).tanh())


def single(job: sp.Job) -> None:
    model = Classes()
    job.start(model)
    loss = F.cross_entropy(model(job.batch["up.weight"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def parallel(times: int) -> Step:
    def run(job: sp.Job) -> None:
        model = Classes()
        columns = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"head": columns})
        job.start(model)
        with loss_parallel():
            loss = F.cross_entropy(model(job.batch["up.weight"]), job.batch["y"])
            (loss * times).backward()
        job.end(loss=loss)

    return run


def test_loss_parallel() -> None:
    right = sp.verify(single, parallel(1), world_size=2, batch=BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(single, parallel(2), world_size=2, batch=BATCH)
    assert wrong.verdict == "refuted"


def forward(job: sp.Job) -> None:
    model = Classes()
    job.start(model)
    with torch.no_grad():
        loss = F.cross_entropy(model(job.batch["up.weight"]), job.batch["y"])
    job.end(outputs={"loss": loss})


def by_hand(masks: str, other: int = IGNORED) -> Step:
    """``masks``: how rank 1 takes 0 for labels that are ignored ("none": it does not); ``other``:
    what it takes for the class that is."""

    def run(job: sp.Job) -> None:
        size = CLASSES // 2
        model, start = Classes(size), size * job.rank
        rows = sp.piece("head.weight", dim=0, start=start, size=size)
        job.start(model, parameters={"head.weight": rows})
        with torch.no_grad():
            z, y = model(job.batch["up.weight"]), job.batch["y"]
            top = z.amax(-1, keepdim=True)
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
            total = (z - top).exp().sum(-1, keepdim=True)
            dist.all_reduce(total)
            own = torch.where(y != IGNORED, y, 0)
            out = (own < start) | (own >= start + size)
            places = (own - start).masked_fill(out, 0)
            logs = z - top - total.log()
            picked = logs.gather(1, places[:, None])[:, 0].masked_fill(out, 0.0)
            dist.all_reduce(picked)
            keep = y != (other if job.rank else IGNORED)
            how = masks if job.rank else "choice"
            kept = {"choice": torch.where(keep, picked, 0), "product": picked * keep.float()}
            loss = -kept.get(how, picked).sum() / (y != IGNORED).sum()
        job.end(outputs={"loss": loss})

    return run


@pytest.mark.parametrize("masks", ["choice", "product"])
def test_masks_behind_the_sum(masks: str) -> None:
    right = sp.verify(forward, by_hand(masks), world_size=2, batch=BATCH)
    assert right.verdict == "proved", sp.told(right)


@pytest.mark.parametrize(("masks", "other"), [("none", IGNORED), ("choice", 0)])
def test_masks_that_ranks_have_alone(masks: str, other: int) -> None:
    wrong = sp.verify(forward, by_hand(masks, other), world_size=2, batch=BATCH)
    assert wrong.verdict == "refuted"
