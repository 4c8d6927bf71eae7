"""Recorded steps with Fourier transforms: mixing by them, long convolutions, modes of a field;
beside a tensor-parallel MLP with and without the reduction in its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof  # noqa: E402
import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

WIDTH, LENGTH, INNER, MODES = 4, 6, 8, 3


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Net(nn.Module):
    """A kernel and modes that every rank has, and an MLP of which each has a part."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.kernel = nn.Parameter(torch.randn(WIDTH, LENGTH))
        self.modes = nn.Parameter(torch.randn(WIDTH, WIDTH, MODES, 2))
        self.up = nn.Linear(WIDTH, INNER // parts)
        self.down = nn.Linear(INNER // parts, WIDTH, bias=False)


def mixed(net: Net, x: Tensor) -> Tensor:
    return torch.fft.fft2(x).real


def convolved(net: Net, x: Tensor) -> Tensor:
    size = 2 * LENGTH
    spectrum = torch.fft.rfft(x.mT, n=size) * torch.fft.rfft(net.kernel, n=size)
    return torch.fft.irfft(spectrum, n=size)[..., :LENGTH].mT


def mapped(net: Net, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x.mT, norm="ortho")
    made = torch.zeros_like(spectrum)
    weight = torch.view_as_complex(net.modes)
    made[:, :, :MODES] = torch.einsum("bim,iom->bom", spectrum[:, :, :MODES], weight)
    return torch.fft.irfft(made, n=LENGTH, norm="ortho").mT


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("layer", [mixed, convolved, mapped])
def test_a_fourier_layer_before_a_divided_mlp(
    layer: Callable[[Net, Tensor], Tensor], wrong: bool, tmp_path: Path
) -> None:
    def loss(net: Net, x: Tensor, parts: int) -> Tensor:
        x = net.first(x)
        x = x + layer(net, x)
        h = Copied.apply(x) if parts > 1 and not wrong else x
        y = net.down(F.gelu(net.up(h)))
        y = Reduced.apply(y) if parts > 1 else y
        return (x + y).square().mean()

    def single(job: sp.Job) -> None:
        net = Net(1)
        job.start(net)
        made = loss(net, job.batch["x"], 1)
        made.backward()
        job.end(loss=made)

    def parallel(job: sp.Job) -> None:
        net = Net(2)
        own = INNER // 2
        rows = {
            name: sp.piece(name, dim=dim, start=own * job.rank, size=own)
            for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1))
        }
        names = ("first.weight", "first.bias", "kernel", "modes")
        job.start(net, parameters=rows | {name: sp.same(name) for name in names})
        made = loss(net, job.batch["x"], 2)
        made.backward()
        job.end(loss=made)

    batch = {"x": sp.tensor((2, LENGTH, WIDTH))}
    result = locally(tmp_path, single, parallel, batch, validate=True)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert any("the translation was replayed" in text for text in result.assumptions)
    assert wrong or shardproof.check(tmp_path / "run").ok
