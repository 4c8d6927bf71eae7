"""Small training programs in the styles that people write, each beside its parallel version.

They were written before any of them was run; docs/pytorch.md says what the first run said.  A
program is a function of `job` (`shardproof.torch.Job`); `PROGRAMS` has both sides of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.style_models import (
    GPT,
    IDS,
    VECTORS,
    Net,
    Step,
    divided,
    gpt,
    mse,
    own,
    plain,
    program,
)

# 1, 2. nanoGPT under DDP, with tied embeddings, and with checkpointed blocks.
program("nanoGPT, tied, DDP", gpt(GPT), gpt(GPT, DistributedDataParallel), IDS)
program(
    "nanoGPT, checkpointed, FSDP2",
    gpt(functools.partial(GPT, False, True)),
    gpt(functools.partial(GPT, False, True), lambda m: _sharded_blocks(m)),
    IDS,
)


def _sharded_blocks(model: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# 3. Weight decay groups, clipping to a norm, AdamW.
def grouped(wrap: Callable[[nn.Module], nn.Module], parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = wrap(Net())
        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        job.start(model, optimizer)
        batch = own(job, "x", "y") if parallel else [job.batch["x"], job.batch["y"]]
        loss = mse(model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.end(loss=loss)

    return step


program(
    "decay groups, clipping, AdamW, DDP",
    grouped(lambda m: m, False),
    grouped(DistributedDataParallel, True),
    VECTORS,
)


# 4. Mixed precision by autocast.
def autocast(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x)
    return F.mse_loss(found.float(), y)


program(
    "autocast bfloat16, DDP",
    plain(loss=autocast),
    divided(lambda m, _: DistributedDataParallel(m), autocast),
    VECTORS,
)


# 5. FSDP1.
def fsdp1(model: nn.Module, job: sp.Job) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


program("FSDP1", plain(), divided(fsdp1), VECTORS)


# 6. HSDP.
def hsdp(model: nn.Module, job: sp.Job) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(model, mesh=mesh)


program("HSDP", plain(), divided(hsdp), VECTORS, 4)


# 7. FSDP2 with parameters that do not divide evenly.
def uneven(model: nn.Module, job: sp.Job) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))


def odd(wrap: Any) -> Step:
    def step(job: sp.Job) -> None:
        model = Net(15)
        if wrap:
            uneven(model, job)
        job.start(model)
        batch = own(job, "x", "y") if wrap else [job.batch["x"], job.batch["y"]]
        loss = mse(model, *batch)
        loss.backward()
        job.end(loss=loss)

    return step


program("FSDP2, uneven", odd(False), odd(True), VECTORS)


# 8. ZeroRedundancyOptimizer.
def zero(parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = Net()
        if parallel:
            model = DistributedDataParallel(model)
            optimizer: Any = ZeroRedundancyOptimizer(
                model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01
            )
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        batch = own(job, "x", "y") if parallel else [job.batch["x"], job.batch["y"]]
        loss = mse(model, *batch)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


program("ZeroRedundancyOptimizer", zero(False), zero(True), VECTORS)


# 9. An optimizer with earlier states.
def resumed(wrap: Callable[[nn.Module], nn.Module], parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = wrap(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        job.start(model, optimizer)
        batch = own(job, "x", "y") if parallel else [job.batch["x"], job.batch["y"]]
        loss = mse(model, *batch)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


program(
    "SGD with earlier momentum, DDP",
    resumed(lambda m: m, False),
    resumed(DistributedDataParallel, True),
    VECTORS,
)


# 10. Accumulation under no_sync.
def accumulated(parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        model: Any = Net()
        if parallel:
            model = DistributedDataParallel(model)
        job.start(model)
        batch = own(job, "x", "y") if parallel else [job.batch["x"], job.batch["y"]]
        losses = []
        parts = list(zip(*(t.chunk(2) for t in batch), strict=True))
        for number, (x, y) in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last or not parallel else model.no_sync():
                loss = mse(model, x, y)
                (loss / len(parts)).backward()
            losses.append(loss)
        job.end(loss=losses)

    return step


program("no_sync accumulation, DDP", accumulated(False), accumulated(True), VECTORS)
