"""Steps that ask by `data_ptr` whether tensors have one memory: tied weights are reduced once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

ADDRESSES: dict[str, Callable[[torch.Tensor], int]] = {
    "of a tensor": lambda x: x.data_ptr(),
    "of a memory": lambda x: x.untyped_storage().data_ptr(),
    "of a typed memory": lambda x: x.storage().data_ptr(),
}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.tanh(self.first(x)))


def single(job: sp.Job) -> None:
    model = Tied()
    job.start(model)
    loss = model(job.batch["x"]).square().mean()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("name", ADDRESSES)
def test_a_tied_weight_is_reduced_once(name: str, once: bool, tmp_path: Path) -> None:
    def parallel(job: sp.Job) -> None:
        model = Tied()
        job.start(model)
        loss = model(job.batch["x"].chunk(job.world_size)[job.rank]).square().mean()
        (loss / job.world_size).backward()
        seen = set[int]()
        for _, parameter in model.named_parameters(remove_duplicate=False):
            if once and ADDRESSES[name](parameter) in seen:
                continue
            seen.add(ADDRESSES[name](parameter))
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, {"x": sp.tensor((4, 4))})
    assert result.verdict == ("proved" if once else "refuted"), sp.told(result)


def test_views_lie_in_their_memory(tmp_path: Path) -> None:
    """Of a row of four numbers the second one lies four bytes behind the first."""

    def parallel(job: sp.Job) -> None:
        model = Tied()
        job.start(model)
        row, empty = model.first.weight[1], model.first.weight[:0]
        assert row.data_ptr() == model.first.weight.data_ptr() + 16
        assert row.untyped_storage().data_ptr() == model.first.weight.data_ptr()
        assert model.first.bias.data_ptr() not in (0, row.data_ptr())
        assert empty.data_ptr() == torch.empty(2, device="meta").data_ptr() == 0
        loss = model(job.batch["x"]).square().mean()
        loss.backward()
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, {"x": sp.tensor((4, 4))})
    assert result.verdict == "proved", sp.told(result)
