"""What is written at the labels of rows, beside a sum over ranks that a mask of the labels hides: it
is 0 where the mask hides its row only if nothing reads it otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

import shardproof.torch as sp  # noqa: E402

#: As many rows as classes: a mask of rows may stand for one of columns.
ROWS, WIDTH, IGNORED = 4, 2, -100
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "beside": sp.tensor((ROWS, ROWS)),
    "factor": sp.tensor((ROWS,)),
    "value": sp.tensor((ROWS,)),
    "y": sp.tensor((ROWS,), torch.int64),
}
Read = Callable[[torch.Tensor, sp.Job], dict[str, torch.Tensor]]


def _product(written: torch.Tensor, job: sp.Job, columns: bool = False) -> torch.Tensor:
    y, factor = job.batch["y"], job.batch["factor"]
    if not columns:
        y, factor = y[:, None], factor[:, None]
    return (written + job.batch["beside"]) * torch.where(y != IGNORED, factor, 0)


def written_too(written: torch.Tensor, job: sp.Job) -> dict[str, torch.Tensor]:
    return {"product": _product(written, job), "written": written}


def summed_too(written: torch.Tensor, job: sp.Job) -> dict[str, torch.Tensor]:
    sums = written + job.batch["beside"]
    mask = job.batch["y"][:, None] != IGNORED
    product = sums * torch.where(mask, job.batch["factor"][:, None], 0)
    return {"product": product, "sums": sums}


def by_columns(written: torch.Tensor, job: sp.Job) -> dict[str, torch.Tensor]:
    return {"product": _product(written, job, columns=True)}


def step(read: Read, divided: bool, hidden: bool) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, ROWS, bias=False))
        if divided:
            columns = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
            parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": columns})
        job.start(model)
        y, value = job.batch["y"], job.batch["value"]
        if divided:
            with loss_parallel():
                loss = F.cross_entropy(model(job.batch["x"]), y)
                loss.backward()
        else:
            loss = F.cross_entropy(model(job.batch["x"]), y)
            loss.backward()
        written = torch.zeros_like(job.batch["beside"])
        values = torch.where(y != IGNORED, value, 0) if hidden else value
        written[torch.arange(ROWS), torch.where(y == IGNORED, 0, y)] = values
        job.end(loss=loss, outputs=read(written, job))

    return run


@pytest.mark.parametrize("read", [written_too, summed_too, by_columns])
def test_what_is_written_is_read_otherwise(read: Read) -> None:
    right = sp.verify(step(read, False, False), step(read, True, False), world_size=2, batch=BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(step(read, False, True), step(read, True, False), world_size=2, batch=BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)
