"""Gradients in one flat buffer, scaled out of place, as FSDP2 does on one rank: each stays what it
was, and is read from its own part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, ROWS, WIDTH, HEADS, SIZE = 2, 4, 3, 2, 2
BATCH = {"x": sp.tensor((ROWS, WIDTH))}


class Fused(nn.Module):
    """Queries, keys and values of every head in one weight: its gradient is three that lie in
    turns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 5)
        self.second = nn.Linear(5, HEADS * 3 * SIZE, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.second(self.first(x)).view(-1, HEADS, 3, SIZE).unbind(2)
        return (q.tanh() * k.sigmoid() * v.exp()).mean()


def single(job: sp.Job) -> None:
    model = Fused()
    job.start(model)
    loss = model(job.batch["x"])
    loss.backward()
    job.end(loss=loss)


def buffered(scale: Callable[[Any], Any], shift: int = 0) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = Fused()
        job.start(model)
        loss = model(job.batch["x"].chunk(RANKS)[job.rank])
        loss.backward()
        parameters = list(model.parameters())
        flat = torch.empty(sum(p.numel() for p in parameters))
        bounds, at = [], 0
        for p in parameters:
            flat[at : at + p.numel()].view_as(p).copy_(p.grad)
            bounds.append(at)
            at += p.numel()
        flat = scale(flat)
        dist.all_reduce(flat)
        for start, p in zip(bounds, parameters, strict=True):
            first = min(start + shift, flat.numel() - p.numel())
            p.grad = flat[first : first + p.numel()].view_as(p)
        job.end(loss=loss)

    return run


def verdict(tmp_path: Path, parallel: Callable[[sp.Job], None]) -> str:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    return sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options).verdict


def test_a_buffer_that_is_scaled_is_as_its_parts(tmp_path: Path) -> None:
    assert verdict(tmp_path, buffered(lambda x: x / RANKS)) == "proved"


@pytest.mark.parametrize(
    "wrong",
    [buffered(lambda x: x), buffered(lambda x: x / RANKS, shift=1)],
    ids=["not scaled", "read one entry on"],
)
def test_its_wrong_twins_are_refuted(tmp_path: Path, wrong: Any) -> None:
    assert verdict(tmp_path, wrong) == "refuted"
