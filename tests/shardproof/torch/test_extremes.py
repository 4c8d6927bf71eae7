"""``min`` and ``max`` of Python's over numbers that nobody knows: clipping by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

RANKS = 2


def verified(folder: Path, read: bool, late: bool) -> sp.Result:
    """``read``: the norm is a number of Python's; ``late``: ranks clip by their own norms, and
    then average."""

    def clipped(model: nn.Module) -> None:
        norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
        factor = min(1.0, 1.0 / max(norm.item() if read else norm, 1e-6))
        for parameter in model.parameters():
            parameter.grad.mul_(factor)

    def single(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = model(job.batch["x"]).square().mean()
        loss.backward()
        clipped(model)
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        own = nn.Linear(3, 2)
        model = own if late else DistributedDataParallel(own)
        job.start(model)
        loss = model(job.batch["x"].chunk(RANKS)[job.rank]).square().mean()
        loss.backward()
        clipped(model)
        for parameter in own.parameters() if late else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS
        job.end(loss=loss)

    return locally(folder, single, parallel, {"x": sp.tensor((4, 3))}, RANKS)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_clipping_by_hand(read: bool, late: bool, tmp_path: Path) -> None:
    result = verified(tmp_path, read, late)
    assert result.verdict == ("refuted" if late else "proved"), sp.told(result)
    assert any("max and min of tensors" in said for said in result.assumptions) == (not read)


@pytest.mark.parametrize("numbers", [(1, 2.5), (2.5, 1), (0, False)])
def test_known_numbers_are_pythons(numbers: tuple[float, ...]) -> None:
    from shardproof.frontends.torch.extremes import NAMES

    assert NAMES["max"](*numbers) is max(*numbers)
    assert NAMES["min"](numbers, key=lambda x: -x) is max(*numbers)
    assert NAMES["max"]([], default=7) == 7
