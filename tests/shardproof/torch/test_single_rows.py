"""A rank or a microbatch with one row: its loss is a position of the sum over all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

WIDTH, CLASSES, RANKS = 4, 5, 2


def single(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["t"])
    loss.backward()
    job.end(loss=loss)


def verify(
    folder: Path, microbatches: int, divisor: int, repeated: bool = False, combine: str = "mean"
) -> sp.Result:
    """One row in every microbatch of every rank; ``repeated``: all are of the first microbatch."""

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = (job.batch[n].chunk(RANKS)[job.rank].chunk(microbatches) for n in ("x", "t"))
        losses = []
        for at in range(microbatches):
            at = 0 if repeated else at
            losses.append(F.cross_entropy(model(x[at]), t[at]))
            (losses[-1] / microbatches).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(divisor)
        job.end(loss=losses)

    count = RANKS * microbatches
    batch = {
        "x": sp.tensor((count, WIDTH)),
        "t": sp.tensor((count,), torch.int64, low=0, high=CLASSES),
    }
    out = folder / f"{microbatches} {divisor} {repeated} {combine}"
    options = {"out": out, "executor": "local", "combine": combine}
    return sp.verify(single, parallel, world_size=RANKS, batch=batch, **options)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_one_row_each(tmp_path: Path, microbatches: int) -> None:
    result = verify(tmp_path, microbatches, RANKS)
    assert result.verdict == "proved", result.reason
    assert check(result.run_dir).ok
    assert verify(tmp_path, microbatches, 1).verdict == "refuted"
    assert verify(tmp_path, microbatches, RANKS, combine="sum").verdict == "refuted"


def test_a_row_twice_is_refuted(tmp_path: Path) -> None:
    assert verify(tmp_path, 2, RANKS, repeated=True).verdict == "refuted"
