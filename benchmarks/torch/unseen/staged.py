"""Pipelines: PyTorch's schedules with data parallelism inside of stages, GPipe by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, Case, Step, floats, ids

D, H, LENGTH = 8, 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """A language model, or the stage of it that has ``which`` layers."""

    def __init__(self, layers: int, which: range) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, D) if 0 in which else None
        self.layers = nn.ModuleDict({str(i): Block() for i in which})
        self.head = nn.Linear(D, CLASSES, bias=False) if layers - 1 in which else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x) if self.head is not None else x


def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def single(layers: int) -> Step:
    def step(job: sp.Job) -> None:
        model = Model(layers, range(layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.start(model, optimizer)
        loss = entropy(model(job.batch["tokens"]), job.batch["labels"])
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


def staged(job: sp.Job, kind: Any, per_rank: int, mistake: str = "", replicas: int = 1) -> None:
    mesh = init_device_mesh(
        "cpu", (replicas, job.world_size // replicas), mesh_dim_names=("dp", "pp")
    )
    ranks, r = mesh["pp"].size(), mesh["pp"].get_local_rank()
    total = ranks * per_rank
    at = [r + i * ranks for i in range(per_rank)]
    if kind is ScheduleZBVZeroBubble:
        at = [r, total - 1 - r]
    modules: list[Any] = [Model(total, range(i, i + 1)) for i in at]
    tokens, labels = (
        job.batch[k].chunk(replicas)[mesh["dp"].get_local_rank()] for k in ("tokens", "labels")
    )
    per = len(tokens) // 4
    one = torch.zeros(per, LENGTH, dtype=torch.int64)
    many = torch.zeros(per, LENGTH, D, requires_grad=True)
    last = torch.zeros(per, LENGTH, CLASSES)
    stages = []
    for i, m in zip(at, modules, strict=True):
        if replicas > 1:
            fully_shard(m, mesh=mesh["dp"])
        ends = {"input_args": (one if i == 0 else many,)}
        ends["output_args"] = (last if i == total - 1 else many,)
        stages.append(
            PipelineStage(m, i, total, torch.device("cpu"), group=mesh.get_group("pp"), **ends)
        )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in modules]
    job.start(modules if per_rank > 1 else modules[0], optimizers[0] if per_rank == 1 else None)
    scaled = mistake != "microbatches summed"
    given: Any = stages[0] if per_rank == 1 else stages
    schedule = kind(given, 4, loss_fn=entropy, scale_grads=scaled)
    losses: list[torch.Tensor] = []
    args = (tokens,) if 0 in at else ()
    target = labels.flip(0) if mistake == "labels of other microbatches" else labels
    ends = {"target": target, "losses": losses} if total - 1 in at else {}
    schedule.step(*args, **ends)
    if per_rank == 1 and mistake != "no step":
        optimizers[0].step()
    job.end(loss=losses or None)


def schedule_case(
    name: str, kind: Any, per_rank: int, ranks: int, replicas: int, *wrong: str
) -> Case:
    def parallel(mistake: str = "") -> Step:
        return lambda job: staged(job, kind, per_rank, mistake, replicas)

    layers = ranks // replicas * per_rank

    def one(job: sp.Job) -> None:
        if per_rank == 1:
            return single(layers)(job)
        model = Model(layers, range(layers))
        job.start(model)
        loss = entropy(model(job.batch["tokens"]), job.batch["labels"])
        loss.backward()
        return job.end(loss=loss)

    batch = ids("tokens", "labels", rows=8)
    return Case(name, one, parallel(), {m: parallel(m) for m in wrong}, batch, ranks)


ONE = schedule_case(
    "1F1B of FSDP2 stages, SGD", Schedule1F1B, 1, 4, 2, "microbatches summed", "no step"
)
ZERO_BUBBLE = schedule_case(
    "interleaved zero bubble", ScheduleInterleavedZeroBubble, 2, 2, 1, "microbatches summed"
)
ZBV = schedule_case(
    "zero bubble in a V", ScheduleZBVZeroBubble, 2, 2, 1, "labels of other microbatches"
)
INTERLEAVED = schedule_case(
    "interleaved 1F1B of FSDP2 stages", ScheduleInterleaved1F1B, 2, 4, 2, "microbatches summed"
)

# -- GPipe by hand: send and recv, two replicas, gradients of replicas averaged in the end. --------


def regression(job: sp.Job) -> None:
    model = nn.Sequential(*(Block() for _ in range(2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    job.start(model, optimizer)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss)


def gpipe(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        """Ranks 0 and 1 are one pipeline, 2 and 3 another."""
        replica, stage = divmod(job.rank, 2)
        pipes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        copies = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        model = nn.ModuleDict({str(stage): Block()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        peer = job.rank + 1 if stage == 0 else job.rank - 1
        block = model[str(stage)]
        xs = job.batch["x"].chunk(2)[replica].chunk(2)
        ys = job.batch["y"].chunk(2)[replica].chunk(2)
        losses, kept = [], []
        for x, y in zip(xs, ys, strict=True):
            if stage == 0:
                kept.append(block(x))
                dist.send(kept[-1].detach(), peer)
            else:
                into = torch.empty_like(x)
                dist.recv(into, peer)
                into.requires_grad_()
                losses.append(F.mse_loss(block(into), y) / 2)
                kept.append(into)
        for i, held in enumerate(kept):
            if stage == 1:
                losses[i].backward()
                dist.send(held.grad, peer)
            else:
                grad = torch.empty_like(held)
                dist.recv(grad, peer)
                held.backward(grad)
        grads = [p.grad for p in model.parameters()]
        flat = torch.cat([g.reshape(-1) for g in grads])  # type: ignore[union-attr]
        dist.all_reduce(flat, group=copies[stage])
        for g, mean in zip(grads, flat.split([p.numel() for p in model.parameters()]), strict=True):
            g.copy_(mean.view_as(g) / 2)  # type: ignore[union-attr]
        norm = sum(g.square().sum() for g in grads)  # type: ignore[union-attr, misc]
        if mistake != "norm of own stage":
            dist.all_reduce(
                norm, group=copies[stage] if mistake == "norm over replicas" else pipes[replica]
            )
        scale = (1.0 / (norm.sqrt() + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(scale)  # type: ignore[union-attr]
        optimizer.step()
        job.end(loss=losses or None)

    return step


GPIPE = Case(
    "GPipe by hand, two replicas, clipped over stages, AdamW",
    regression,
    gpipe(),
    {m: gpipe(m) for m in ("norm of own stage", "norm over replicas")},
    floats(x=(8, D), y=(8, D)),
    4,
)

CASES = [ONE, ZERO_BUBBLE, ZBV, INTERLEAVED, GPIPE]
