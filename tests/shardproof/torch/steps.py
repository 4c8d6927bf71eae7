"""Steps that are verified: a small model, right and wrong parallel versions of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import shardproof.torch as sp

WIDTH, HIDDEN, BATCH = 4, 12, 8
SPEC = {"x": sp.tensor((BATCH, WIDTH)), "y": sp.tensor((BATCH, WIDTH))}


class CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class MLP(nn.Module):
    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) + self.bias


class Right(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + ReduceFrom.apply(self.inner(CopyTo.apply(self.norm(x)))) + self.bias

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class NoAllReduce(Right):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(CopyTo.apply(self.norm(x))) + self.bias


class BiasBeforeAllReduce(Right):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + ReduceFrom.apply(self.inner(CopyTo.apply(self.norm(x))) + self.bias)


class DividedByRanks(Right):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = ReduceFrom.apply(self.inner(CopyTo.apply(self.norm(x))))
        return x + y / dist.get_world_size() + self.bias


class NoCopyTo(Right):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + ReduceFrom.apply(self.inner(self.norm(x))) + self.bias


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).pow(2).mean()


def single(job: sp.Job) -> None:
    model = MLP()
    job.start(model)
    loss = loss_of(model, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def tensor_parallel(model: type[MLP]) -> Callable[[sp.Job], None]:
    """A step with a hand-written tensor-parallel model, whose parameters are stated."""

    def step(job: sp.Job) -> None:
        size = HIDDEN // job.world_size
        part = {"start": job.rank * size, "size": size}
        mlp = model(size)
        job.start(
            mlp,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **part),
                "up.bias": sp.piece("up.bias", dim=0, **part),
                "down.weight": sp.piece("down.weight", dim=1, **part),
            },
        )
        loss = loss_of(mlp, job.batch["x"], job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def dtensor(job: sp.Job) -> None:
    mesh = init_device_mesh("cpu", (job.world_size,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(MLP(), mesh, plan)
    job.start(model)
    loss = loss_of(model, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def computed(job: sp.Job) -> None:
    """Parameters that the program cuts from the full ones itself."""
    size = HIDDEN // job.world_size
    model = Right(size)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = job.full[name]
            for dim in range(full.dim()):
                if full.shape[dim] != parameter.shape[dim]:
                    full = full.chunk(job.world_size, dim)[job.rank]
            parameter.copy_(full)
    job.start(model)
    loss = loss_of(model, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def shard_of_another_rank(job: sp.Job) -> None:
    """The program cuts rank 0's part of the first weight on every rank, and says it has its own."""
    mesh = init_device_mesh("cpu", (job.world_size,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(MLP(), mesh, plan)
    with torch.no_grad():
        own = model.up.weight.to_local()
        own.copy_(job.full["up.weight"].chunk(job.world_size)[0])
    job.start(model)
    loss = loss_of(model, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def own_batch(job: sp.Job) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in ("x", "y"))
    return x, y


def fsdp(job: sp.Job) -> None:
    mesh = init_device_mesh("cpu", (job.world_size,))
    model = MLP()
    fully_shard(model, mesh=mesh)
    job.start(model)
    loss = loss_of(model, *own_batch(job))
    loss.backward()
    job.end(loss=loss)


def ddp(job: sp.Job) -> None:
    model = nn.parallel.DistributedDataParallel(MLP())
    job.start(model)
    loss = loss_of(model, *own_batch(job))
    loss.backward()
    job.end(loss=loss)


def averaged(how: str) -> Callable[[sp.Job], None]:
    """Data parallelism by hand: gradients are reduced by ``how``."""

    def step(job: sp.Job) -> None:
        model = MLP()
        job.start(model)
        loss = loss_of(model, *own_batch(job))
        loss.backward()
        for parameter in model.parameters():
            if how == "replicated parameter not reduced" and parameter is model.bias:
                continue
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(job.world_size)
            if how == "averaged twice":
                parameter.grad.div_(job.world_size)
        job.end(loss=loss)

    return step


def accumulated(scale: float) -> Callable[[sp.Job], None]:
    """Two microbatches on one rank after the other; every loss is scaled."""

    def step(job: sp.Job) -> None:
        model = MLP()
        job.start(model)
        losses = []
        for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
            loss = loss_of(model, x, y)
            (loss * scale).backward()
            losses.append(loss)
        job.end(loss=losses)

    return step


def exchanged(waits: bool) -> Callable[[sp.Job], None]:
    """Two ranks send each other their gradients, receives posted first."""

    def step(job: sp.Job) -> None:
        model = MLP()
        job.start(model)
        loss = loss_of(model, *own_batch(job))
        loss.backward()
        other, kept = 1 - job.rank, []
        for parameter in model.parameters():
            arrived = torch.empty_like(parameter)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.irecv, arrived, other),
                    dist.P2POp(dist.isend, parameter.grad.clone(), other),
                ]
            )
            kept += works  # a message whose handle nobody keeps may never arrive by gloo
            if waits:
                for work in works:
                    work.wait()
            parameter.grad.add_(arrived).div_(2)
        job.end(loss=loss)

    return step


def early(waits: bool) -> Callable[[sp.Job], None]:
    """Data parallelism with asynchronous reductions: read before the wait, or after it."""

    def step(job: sp.Job) -> None:
        model = MLP()
        job.start(model)
        loss = loss_of(model, *own_batch(job))
        loss.backward()
        for parameter in model.parameters():
            work = dist.all_reduce(parameter.grad, async_op=True)
            if waits:
                work.wait()
            parameter.grad.div_(job.world_size)
            if not waits:
                work.wait()
        job.end(loss=loss)

    return step


def with_optimizer(
    make: Callable[[sp.Job], MLP], divided: bool = False, **options: Any
) -> Callable[[sp.Job], None]:
    """A step with AdamW: new parameters and states are compared."""

    def step(job: sp.Job) -> None:
        model = make(job)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
        job.start(model, optimizer)
        batch = own_batch(job) if divided else (job.batch["x"], job.batch["y"])
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


def plain(job: sp.Job) -> MLP:
    return MLP()


def sharded(job: sp.Job) -> MLP:
    model = MLP()
    fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))
    return model


class Stages(nn.Module):
    """A model whose layers are stages of a pipeline."""

    def __init__(self, own: Sequence[int] = range(4)) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(i): MLP(WIDTH) for i in own})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def staged(job: sp.Job) -> None:
    model = Stages()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def pipelined(
    schedule: type[Any], stages: Callable[[int], Sequence[int]]
) -> Callable[[sp.Job], None]:
    """Four stages on two ranks, four microbatches; ``stages(rank)``: those of a rank."""

    def step(job: sp.Job) -> None:
        given = torch.empty(BATCH // 4, WIDTH, requires_grad=True)
        models = {i: Stages([i]) for i in stages(job.rank)}
        held = [
            PipelineStage(
                model,
                i,
                4,
                torch.device("cpu"),
                input_args=(given if i else given.detach(),),
                output_args=(given,),
            )
            for i, model in models.items()
        ]
        runner = schedule(held, n_microbatches=4, loss_fn=F.mse_loss)
        job.start(list(models.values()))
        losses: list[torch.Tensor] = []
        last = {"target": job.batch["y"], "losses": losses} if 3 in models else {}
        runner.step(*([job.batch["x"]] if 0 in models else []), **last)
        job.end(loss=losses or None)

    return step


def weighted(shift: int) -> Callable[[sp.Job], None]:
    """Outputs times a table that depends on the position alone; ranks cut their batch."""

    def step(job: sp.Job) -> None:
        model = MLP()
        job.start(model)
        table = torch.cos((torch.arange(WIDTH) + shift).float() * 0.3)
        x, y = own_batch(job)
        loss = ((model(x) - y) * table).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(job.world_size)
        job.end(loss=loss)

    return step


def forward_only(job: sp.Job) -> None:
    model = MLP()
    job.start(model)
    with torch.no_grad():
        job.end(outputs={"y": model(job.batch["x"])})


def forward_only_parallel(job: sp.Job) -> None:
    mesh = init_device_mesh("cpu", (job.world_size,))
    model = MLP()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    job.start(model)
    with torch.no_grad():
        job.end(outputs={"y": model(job.batch["x"])})


class Kinked(Right):
    """Functions with a kink, and a choice by a comparison."""

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.up(x))
        h = torch.where(h > 1, h.clamp(max=2), F.leaky_relu(h - 0.5))
        return self.down(h + h.abs().sin())


class KinkedSingle(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + Kinked.inner(self, self.norm(x)) + self.bias  # type: ignore[arg-type]


class KinkedAfterTheSum(Kinked):
    """The choice is made of partial values: another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + ReduceFrom.apply(F.relu(self.inner(CopyTo.apply(self.norm(x))))) + self.bias


class KinkedAfterTheSumSingle(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(Kinked.inner(self, self.norm(x))) + self.bias  # type: ignore[arg-type]


def on_one_device(make: type[MLP]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = make()
        job.start(model)
        loss = loss_of(model, job.batch["x"], job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step
