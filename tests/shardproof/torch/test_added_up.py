"""DTensors that stay parts of sums: gradients, losses and states of a model, and of a batch, that
are DTensors altogether."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

import shardproof.torch as sp  # noqa: E402

WIDTH, HIDDEN = 3, 4
BATCH = {"x": sp.tensor((4, WIDTH)), "y": sp.tensor((4, WIDTH))}
PLACED = {"up.weight": Shard(0), "gate.weight": Shard(0), "down.weight": Shard(1)}
Step = Callable[[sp.Job], None]
Make = Callable[[Any], torch.optim.Optimizer]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.gate = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def single(make: Make) -> Step:
    def step(job: sp.Job) -> None:
        model = Block()
        trained(job, model, job.batch["x"], job.batch["y"], make(model.parameters()))

    return step


def trained(job: sp.Job, model: nn.Module, x: Any, y: Any, optimizer: Any, whole: str = "") -> None:
    """``whole``: the parameter whose gradient is taken for all of the sum."""
    job.start(model, optimizer)
    loss = (model(x) - y).square().mean()
    loss.backward()
    if whole:
        own: Any = model.get_parameter(whole)
        mesh = own.device_mesh
        assert any(isinstance(p, Partial) for p in own.grad.placements)
        own.grad = DTensor.from_local(own.grad.to_local(), mesh, [Replicate()] * mesh.ndim)
    optimizer.step()
    job.end(loss=loss)


def distributed(dims: tuple[int, ...], make: Make, whole: str = "") -> Step:
    """Parameters over the last dimension of the mesh, rows over the one before, if there is one."""

    def step(job: sp.Job) -> None:
        mesh, model = init_device_mesh("cpu", dims), Block()
        before, rows = [Replicate()] * (len(dims) - 1), [Shard(0)] * (len(dims) - 1)
        for name, parameter in list(model.named_parameters()):
            module, _, own = name.rpartition(".")
            placements = [*before, PLACED.get(name, Replicate())]
            placed = distribute_tensor(parameter.detach(), mesh, placements)
            setattr(model.get_submodule(module), own, nn.Parameter(placed))
        x, y = (distribute_tensor(job.batch[n], mesh, [*rows, Replicate()]) for n in "xy")
        trained(job, model, x, y, make(model.parameters()), whole)

    return step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def result(tmp_path: Path, dims: tuple[int, ...], make: Make, whole: str = "") -> sp.Result:
    given = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    world = dims[0] * dims[-1] if len(dims) > 1 else dims[0]
    parallel = distributed(dims, make, whole)
    return sp.verify(single(make), parallel, world_size=world, batch=BATCH, **given)


@pytest.mark.parametrize(("dims", "make"), [((2,), sgd), ((2, 2), adamw)])
def test_partial_gradients_and_states_are_those_of_the_sum(
    tmp_path: Path, dims: tuple[int, ...], make: Make
) -> None:
    """Of SGD the momentum is a part of the sum, too."""
    given = result(tmp_path, dims, make)
    assert given.verdict == "proved", sp.told(given)
    assert any("partial at job.end" in note for note in given.assumptions)
    assert {"gradient", "state", "updated parameter"} <= {c.kind for c in given.conclusions}


def test_a_gradient_that_is_taken_for_the_sum_is_refuted(tmp_path: Path) -> None:
    assert result(tmp_path, (2,), sgd, "norm.weight").verdict == "refuted"


def test_a_parameter_of_which_ranks_have_parts_of_a_sum_is_refused() -> None:
    def parallel(job: sp.Job) -> None:
        mesh, model = init_device_mesh("cpu", (2,)), Block()
        part = DTensor.from_local(torch.zeros(WIDTH), mesh, [Partial()])
        model.norm.weight = nn.Parameter(part)
        job.start(model)

    given = sp.verify(single(sgd), parallel, world_size=2, batch=BATCH, executor="local")
    assert given.verdict == "invalid input"
    assert "norm.weight is a DTensor with [Partial" in sp.told(given)
