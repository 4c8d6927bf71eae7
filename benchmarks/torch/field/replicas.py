"""Bugs of data parallelism: accumulation, counts, buckets, groups, orders."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

import shardproof.torch as sp
from benchmarks.torch.field.parts import (
    ROWS,
    VECTORS,
    WIDTH,
    Bug,
    Step,
    Two,
    averaged,
    cut,
    grad,
    own,
    plain,
)
from benchmarks.torch.ordinary.parts import copy_to, reduce_from


def last_microbatch(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        kept = [torch.zeros_like(p) for p in model.parameters()]
        losses = []
        for x, y in zip(*(part.chunk(2) for part in own(job, "x", "y")), strict=True):
            losses.append(F.mse_loss(model(x), y))
            (losses[-1] / 2).backward()
            for buffer, parameter in zip(kept, model.parameters(), strict=True):
                if wrong:
                    buffer.copy_(grad(parameter))
                else:
                    buffer.add_(grad(parameter))
                parameter.grad = None
        for buffer, parameter in zip(kept, model.parameters(), strict=True):
            dist.all_reduce(buffer)
            parameter.grad = buffer / job.world_size
        job.end(loss=losses)

    return step


def divided_each_time(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        kept = [torch.zeros_like(p) for p in model.parameters()]
        losses = []
        for x, y in zip(*(part.chunk(2) for part in own(job, "x", "y")), strict=True):
            losses.append(F.mse_loss(model(x), y))
            (losses[-1] / 2).backward()
            for buffer, parameter in zip(kept, model.parameters(), strict=True):
                dist.all_reduce(parameter.grad)
                buffer.add_(grad(parameter))
                if wrong:
                    buffer.div_(job.world_size)
                parameter.grad = None
        for buffer, parameter in zip(kept, model.parameters(), strict=True):
            parameter.grad = buffer if wrong else buffer / job.world_size
        job.end(loss=losses)

    return step


def rescaled(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        losses = []
        for x, y in zip(*(part.chunk(2) for part in own(job, "x", "y")), strict=True):
            losses.append(F.mse_loss(model(x), y))
            losses[-1].backward()
            if wrong:
                for parameter in model.parameters():
                    grad(parameter).div_(2)
        averaged(model.parameters(), job.world_size * (1 if wrong else 2))
        job.end(loss=losses)

    return step


def unsynchronised(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        loss = F.mse_loss(model(own(job, "x")[0]), own(job, "y")[0])
        loss.backward()
        if not wrong:
            averaged(model.parameters(), job.world_size)
        job.end(loss=loss)

    return step


def bucket(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        loss = F.mse_loss(model(own(job, "x")[0]), own(job, "y")[0])
        loss.backward()
        flat = torch.empty(WIDTH * 6)
        for parameter in model.parameters():
            flat.copy_(grad(parameter).flatten())
            work = dist.all_reduce(flat, async_op=True)
            if wrong:
                flat.div_(job.world_size)
                work.wait()
            else:
                work.wait()
                flat.div_(job.world_size)
            parameter.grad = flat.view_as(parameter).clone()
        job.end(loss=loss)

    return step


WEIGHTED = {**VECTORS, "mask": sp.tensor((ROWS,))}


def weighted(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    mask = torch.exp(job.batch["mask"])  # a number of tokens is positive
    each = (model(job.batch["x"]) - job.batch["y"]).pow(2).sum(-1)
    loss = (each * mask).sum() / mask.sum()
    loss.backward()
    job.end(loss=loss)


def local_count(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        x, y, mask = own(job, "x", "y", "mask")
        mask = torch.exp(mask)
        count = mask.sum()
        if not wrong:
            dist.all_reduce(count)
        each = (model(x) - y).pow(2).sum(-1)
        loss = (each * mask).sum() / count
        loss.backward()
        averaged(model.parameters(), job.world_size if wrong else 1)
        job.end(loss=loss)

    return step


def thrown_away(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        loss = F.mse_loss(model(own(job, "x")[0]), own(job, "y")[0])
        loss.backward()
        for parameter in model.parameters():
            turned = grad(parameter).t()
            if wrong:
                dist.all_reduce(turned.contiguous())
            else:
                turned = turned.contiguous()
                dist.all_reduce(turned)
            parameter.grad = turned.t().contiguous() / job.world_size
        job.end(loss=loss)

    return step


def orders(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        model = Two()
        job.start(model)
        loss = F.mse_loss(model(own(job, "x")[0]), own(job, "y")[0])
        loss.backward()
        pairs = list(zip(model.parameters(), groups, strict=True))
        for parameter, group in pairs[::-1] if wrong and job.rank else pairs:
            dist.all_reduce(parameter.grad, group=group)
            grad(parameter).div_(job.world_size)
        job.end(loss=loss)

    return step


def relabelled(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Two()
        job.start(model)
        x, y = own(job, "x", "y")
        loss = (model(x) - y).pow(2).sum() / job.batch["y"].numel()
        loss.backward()
        for parameter in model.parameters():
            how = Partial("avg") if wrong else Partial("sum")
            part = DTensor.from_local(grad(parameter), mesh, [how])
            parameter.grad = part.redistribute(mesh, [Replicate()]).to_local()
        job.end(loss=loss)

    return step


def replicated_summed(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        if wrong:
            averaged(model.parameters(), 1)
        job.end(loss=loss)

    return step


def counted_by_ranks(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two(6 // job.world_size)
        cut(job, model, {"up.weight": 0, "down.weight": 1}, job.world_size, job.rank)
        job.start(model)
        y = reduce_from(model(copy_to(job.batch["x"])))
        loss = F.mse_loss(y, job.batch["y"])
        if wrong:
            loss = reduce_from(loss)
        loss.backward()
        job.end(loss=loss)

    return step


def scaled_by_ranks(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two()
        job.start(model)
        x, y = own(job, "x", "y")
        loss = (model(x) - y).pow(2).sum() / job.batch["y"].numel()
        (loss * job.world_size if wrong else loss).backward()
        averaged(model.parameters(), 1)
        job.end(loss=loss)

    return step


def divided_twice(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
        model = Two()
        job.start(model)
        x, y = own(job, "x", "y")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for name in ("sp", "dp"):
            averaged(model.parameters(), 4 if wrong and name == "dp" else 2, mesh.get_group(name))
        job.end(loss=loss)

    return step


BUGS = [
    Bug(
        "accumulation keeps the last microbatch",
        "open-instruct PR 1498",
        plain,
        last_microbatch,
        VECTORS,
    ),
    Bug(
        "the accumulated shard is divided at each microbatch",
        "Megatron-LM PR 3023",
        plain,
        divided_each_time,
        VECTORS,
    ),
    Bug(
        "accumulated gradients are rescaled at every step",
        "torchtitan #1733",
        plain,
        rescaled,
        VECTORS,
    ),
    Bug("replicas are never synchronised", "pytorch #154888", plain, unsynchronised, VECTORS),
    Bug(
        "a bucket is rewritten while its reduction runs", "DeepSpeed #5545", plain, bucket, VECTORS
    ),
    Bug("normalised by the local count", "Megatron-LM #7452 (3)", weighted, local_count, WEIGHTED),
    Bug("the reduced copy is thrown away", "SkyRL PR 1886", plain, thrown_away, VECTORS),
    Bug("collectives of two groups in opposite orders", "Megatron-LM #107", plain, orders, VECTORS),
    Bug("a partial sum taken for a partial mean", "pytorch PR 172041", plain, relabelled, VECTORS),
    Bug(
        "the gradient of a replicated operand is summed",
        "jax #36886",
        plain,
        replicated_summed,
        VECTORS,
    ),
    Bug(
        "the loss is counted once by each rank",
        "transformers PR 45994",
        plain,
        counted_by_ranks,
        VECTORS,
    ),
    Bug(
        "the loss is scaled by the size of the group that sums it",
        "Megatron-LM #906",
        plain,
        scaled_by_ranks,
        VECTORS,
    ),
    Bug(
        "divided by the sequence's ranks and by all of them",
        "DeepSpeed PR 5555",
        plain,
        divided_twice,
        VECTORS,
        4,
    ),
]
