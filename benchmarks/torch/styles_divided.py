"""Programs in the styles of `styles` that divide more than the batch: sequences, attention,
experts, heads.  Importing this file adds them to `style_models.PROGRAMS`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import shardproof.torch as sp
from benchmarks.torch.style_models import (
    CLASSES,
    HEADS,
    IDS,
    MLP,
    VECTORS,
    WIDTH,
    Step,
    own,
    plain,
    program,
)


# 11. Sequence parallelism.
class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)
        self.down, self.last = nn.Linear(16, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.down(F.relu(self.up(self.norm(x)))))


def sequence(job: sp.Job) -> None:
    mesh = init_device_mesh("cpu", (job.world_size,))
    model = parallelize_module(
        Sequence(),
        mesh,
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
            "last": SequenceParallel(),
        },
    )
    parallelize_module(
        model,
        mesh,
        PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
    )
    job.start(model)
    found = model(job.batch["x"])
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    loss = F.mse_loss(found, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


LONG = {"x": sp.tensor((2, 4, WIDTH)), "y": sp.tensor((2, 4, WIDTH))}
program("sequence parallel, DTensor", plain(Sequence), sequence, LONG)


# 12. Ring attention over two ranks: keys and values of the other one by messages, softmax online.
class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)


def whole_attention(job: sp.Job) -> None:
    model = Ring()
    job.start(model)
    q, k, v = model.qkv(job.batch["x"]).chunk(3, dim=-1)
    p = torch.softmax(q @ k.transpose(-1, -2) / WIDTH**0.5, dim=-1)
    loss = F.mse_loss(model.out(p @ v), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class Exchange(torch.autograd.Function):
    """The other rank's tensor; its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _swapped(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _swapped(gradient)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    other, found = 1 - dist.get_rank(), torch.empty_like(x)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x.contiguous(), other), dist.P2POp(dist.irecv, found, other)]
    )
    for work in works:
        work.wait()
    return found


def ring(job: sp.Job) -> None:
    model = Ring()
    job.start(model)
    x, y = (job.batch[n].chunk(2, dim=1)[job.rank] for n in ("x", "y"))
    q, k, v = model.qkv(x).chunk(3, dim=-1)
    held = torch.cat((k, v), dim=-1)
    top = bottom = None
    most: Any = None
    for turn in range(2):
        if turn:
            held = Exchange.apply(held)
        keys, values = held.chunk(2, dim=-1)
        scores = q @ keys.transpose(-1, -2) / WIDTH**0.5
        high = scores.detach().amax(dim=-1, keepdim=True)
        new = high if most is None else torch.maximum(most, high)
        e = torch.exp(scores - new)
        if top is None or bottom is None:
            top, bottom = e @ values, e.sum(dim=-1, keepdim=True)
        else:
            scale = torch.exp(most - new)
            top, bottom = top * scale + e @ values, bottom * scale + e.sum(dim=-1, keepdim=True)
        most = new
    loss = F.mse_loss(model.out(top / bottom), y)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    job.end(loss=loss)


program("ring attention by messages", whole_attention, ring, LONG)


# 13. A mixture of experts in which every expert sees every token, weighted by a softmax.
class Mixture(nn.Module):
    def __init__(self, own: range = range(4)) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleDict({str(i): MLP() for i in own})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(dim=-1)
        parts = [weights[..., int(i), None] * e(x) for i, e in self.experts.items()]
        return torch.stack(parts).sum(dim=0)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def experts(job: sp.Job) -> None:
    model = Mixture(range(2 * job.rank, 2 * job.rank + 2))
    job.start(model)
    loss = F.mse_loss(Sum.apply(model(job.batch["x"])), job.batch["y"])
    loss.backward()
    dist.all_reduce(model.router.weight.grad)
    job.end(loss=loss)


program("dense mixture of experts, EP2", plain(Mixture), experts, VECTORS)


# 14. Own attention with a mask of padding, label smoothing, TP by hand over heads.
class Padded(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * size) for _ in range(3))
        self.o = nn.Linear(heads * size, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.heads, self.size = heads, size

    def attend(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, self.heads, self.size) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.size**0.5
        scores = scores + (1.0 - keep[:, None, None, :]) * -10000.0
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return self.o(mixed.reshape(b, t, -1))


class CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def padded(parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        count = HEADS // job.world_size if parallel else HEADS
        model = Padded(count)
        size = count * model.size
        part = {"start": job.rank * size, "size": size}
        cut = {
            f"{n}.{p}": sp.piece(f"{n}.{p}", dim=0, **part)
            for n in "qkv"
            for p in ("weight", "bias")
        }
        cut["o.weight"] = sp.piece("o.weight", dim=1, **part)
        job.start(model, parameters=cut if parallel else None)
        ids, labels = job.batch["ids"], job.batch["labels"]
        keep = (ids != 0).float()
        x = model.embed(ids)
        mixed = (
            Sum.apply(model.attend(CopyTo.apply(x), keep)) if parallel else (model.attend(x, keep))
        )
        logits = model.head(x + mixed)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        job.end(loss=loss)

    return step


program("padding mask, label smoothing, TP2 by hand", padded(False), padded(True), IDS)


# 15. A convolution with a norm over groups, data parallel by hand.
class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.GroupNorm(2, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.conv(x.transpose(1, 2)))).mean(dim=2))


def convolved(parallel: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Conv()
        job.start(model)
        x, y = own(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        loss = F.smooth_l1_loss(model(x), y[:, 0])
        loss.backward()
        if parallel:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= job.world_size
        job.end(loss=loss)

    return step


program("convolution, GroupNorm, smooth L1, DP by hand", convolved(False), convolved(True), LONG)
