"""Small training programs in the styles that people write, each beside its parallel version.

They were written before any of them was run; docs/pytorch.md says what the first run said.  A
program is a function of `job` (`shardproof.torch.Job`); `PROGRAMS` has both sides of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import shardproof.torch as sp

Step = Callable[[sp.Job], None]
ROWS, LENGTH, WIDTH, HEADS, CLASSES = 4, 4, 8, 2, 12
IDS = {
    name: sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=CLASSES) for name in ("ids", "labels")
}
VECTORS = {"x": sp.tensor((8, WIDTH)), "y": sp.tensor((8, WIDTH))}


class Program(NamedTuple):
    name: str
    single: Step
    parallel: Step
    world_size: int
    batch: dict[str, Any]


PROGRAMS: list[Program] = []


def program(name: str, single: Step, parallel: Step, batch: Any, world_size: int = 2) -> None:
    PROGRAMS.append(Program(name, single, parallel, world_size, dict(batch)))


# -- models ------------------------------------------------------------------------------------


class Attention(nn.Module):
    """As in nanoGPT: one projection for queries, keys and values; a mask that is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        mask = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
        self.register_buffer("bias", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        k = k.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        q = q.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        v = v.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / (k.size(-1) ** 0.5))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, tied: bool = True, checkpointed: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(CLASSES, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList([Block()])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES, bias=False)
        if tied:
            self.wte.weight = self.lm_head.weight
        self.checkpointed = checkpointed

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pos = torch.arange(0, ids.size(1), dtype=torch.long)
        x = self.wte(ids) + self.wpe(pos)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-1)


class MLP(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))


class Net(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.first, self.norm, self.second = MLP(hidden), nn.RMSNorm(WIDTH), MLP(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(x + self.first(x)))


def own(job: sp.Job, *names: str, over: int = 0, at: int = -1) -> list[torch.Tensor]:
    """This rank's rows of the batch."""
    size, rank = over or job.world_size, job.rank if at < 0 else at
    return [job.batch[name].chunk(size)[rank] for name in names]


def gpt(make: Callable[[], GPT], wrap: Callable[[nn.Module], nn.Module] | None = None) -> Step:
    def step(job: sp.Job) -> None:
        model = make() if wrap is None else wrap(make())
        job.start(model)
        batch = own(job, "ids", "labels") if wrap else [job.batch[n] for n in ("ids", "labels")]
        loss = model(*batch)
        loss.backward()
        job.end(loss=loss)

    return step


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def plain(make: Callable[[], nn.Module] = Net, loss: Any = mse) -> Step:
    def step(job: sp.Job) -> None:
        model = make()
        job.start(model)
        found = loss(model, job.batch["x"], job.batch["y"])
        found.backward()
        job.end(loss=found)

    return step


def divided(wrap: Callable[[nn.Module, sp.Job], nn.Module], loss: Any = mse) -> Step:
    def step(job: sp.Job) -> None:
        model = wrap(Net(), job)
        job.start(model)
        found = loss(model, *own(job, "x", "y"))
        found.backward()
        job.end(loss=found)

    return step


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
