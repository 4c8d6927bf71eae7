"""Convolutions and token shifts whose positions ranks divide, with edges of their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as f

import shardproof.torch as sp
from tests.shardproof.torch.halos import beside
from tests.shardproof.torch.locally import locally

RANKS = 3
#: Along which dimension positions lie, and what a step makes of them, asking for edges.
Beside = Callable[[torch.Tensor, int, int, int], torch.Tensor]


class Net(nn.Module):
    """A linear layer over channels, the second dimension, and convolutions by ``kind``."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        make = nn.Conv2d if "images" in kind else nn.Conv1d
        groups = 2 if kind == "depthwise" else 1
        self.pre = nn.Linear(2, 2)
        self.a = make(2, 2, 3, groups=groups, stride=2 if kind == "strided" else 1)
        self.b = make(2, 2, 3) if kind.startswith("two") else None
        self.mu = nn.Parameter(torch.rand(2, 1))

    def forward(self, x: torch.Tensor, edges: Beside) -> torch.Tensor:
        if self.kind != "strided":
            x = self.pre(x.transpose(1, -1)).transpose(1, -1)
        if self.kind == "shifted":
            before = edges(x, 2, 1, 0)[:, :, :-1]
            return (x + (before - x) * self.mu).square()
        before, behind = {"causal": (2, 0), "depthwise": (2, 0), "strided": (1, 0)}.get(
            self.kind, (1, 1)
        )
        for layer in (self.a, self.b):
            if layer is not None:
                x = edges(x, 2, before, behind)
                x = layer(f.pad(x, (1, 1)) if "images" in self.kind else x)
                x = f.gelu(x)
        return x


def shape_of(kind: str, size: int) -> tuple[int, ...]:
    return (2, 2, size, 4) if "images" in kind else (2, 2, size)


def verified(folder: Path, kind: str, size: int, how: str) -> sp.Result:
    def single(job: sp.Job) -> None:
        model = Net(kind)
        job.start(model)
        loss = model(job.batch["x"], beside).square().sum()
        if kind != "strided":
            loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = Net(kind)
        job.start(model)
        x = job.batch["x"].chunk(RANKS, 2)[job.rank]
        loss = model(x, lambda *given: beside(*given, how)).square().sum()
        if kind != "strided":
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.end(loss=total)

    return locally(folder, single, parallel, {"x": sp.tensor(shape_of(kind, size))}, RANKS)


@pytest.mark.parametrize("how", ["right", "kept", "zeros"])
@pytest.mark.parametrize("kind", ["causal", "depthwise", "two", "shifted", "images", "two images"])
def test_positions_beside_a_seam_are_of_both_ranks(tmp_path: Path, kind: str, how: str) -> None:
    """``kept``: what comes back to edges is not added up; ``zeros``: there are no edges."""
    result = verified(tmp_path, kind, 12, how)
    assert result.verdict == ("proved" if how == "right" else "refuted"), sp.told(result)


@pytest.mark.parametrize("how", ["right", "zeros"])
def test_every_other_position_without_gradients(tmp_path: Path, how: str) -> None:
    result = verified(tmp_path, "strided", 12, how)
    assert result.verdict == ("proved" if how == "right" else "refuted"), sp.told(result)


@pytest.mark.parametrize("kind", ["causal", "depthwise", "two", "shifted", "images"])
def test_positions_beside_a_seam_at_size(tmp_path: Path, kind: str) -> None:
    """Of more positions than are kept whole: windows are tensors of their own."""
    result = verified(tmp_path, kind, 6144, "right")
    assert result.verdict == "proved", sp.told(result)


def test_a_wrong_seam_at_size(tmp_path: Path) -> None:
    result = verified(tmp_path, "causal", 6144, "kept")
    assert result.verdict == "refuted", sp.told(result)


def padded(how: str) -> Callable[[sp.Job], None]:
    """Images of four rows, of which two ranks have two each, and as many of their neighbour and of
    zeros: four again."""

    def step(job: sp.Job) -> None:
        layer = nn.Conv2d(1, 1, 3, padding=1)
        job.start(layer)
        x = job.batch["x"].chunk(job.world_size, 2)[job.rank]
        if how == "single":
            y = layer(x)
        else:
            y = f.conv2d(beside(x, 2, 1, 1, how), layer.weight, layer.bias, padding=(0, 1))
        loss = f.gelu(y).square().sum()
        loss.backward()
        for parameter in layer.parameters() if job.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("how", ["right", "zeros"])
def test_ranks_with_as_many_rows_as_the_single_device_pads(tmp_path: Path, how: str) -> None:
    batch = {"x": sp.tensor((2, 1, 4, 3))}
    result = locally(tmp_path, padded("single"), padded(how), batch)
    assert result.verdict == ("proved" if how == "right" else "refuted"), sp.told(result)
