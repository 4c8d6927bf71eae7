"""PyTorch's own ways: DTensor, FSDP2, HSDP, meshes of two dimensions, stages by messages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    WIDTH,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
    rows,
)

# -- 1. A tied language model, two stages by messages, two microbatches. ---------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embed.weight


def tied(job: sp.Job) -> None:
    model = Tied()
    job.start(model)
    losses = []
    for tokens, labels in zip(job.batch["ids"].chunk(2), job.batch["labels"].chunk(2), strict=True):
        logits = model.head(torch.relu(model.inner(model.embed(tokens))))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        (loss / 2).backward()
        losses.append(loss)
    job.end(loss=losses)


def tied_stages(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        first = job.rank == 0
        parts: dict[str, nn.Module] = (
            {"embed": nn.Embedding(CLASSES, WIDTH)}
            if first
            else {"inner": nn.Linear(WIDTH, WIDTH), "head": nn.Linear(WIDTH, CLASSES, bias=False)}
        )
        model = nn.ModuleDict(parts)
        sames = None if first else {"head.weight": sp.same("embed.weight")}
        job.start(model, parameters=sames)
        tokens, labels = (job.batch[n].chunk(2) for n in ("ids", "labels"))
        losses = []
        sent = []
        for i in range(2):
            if first:
                out = model["embed"](tokens[i])
                dist.send(out.detach(), 1)
                sent.append(out)
            else:
                got = torch.empty(*tokens[i].shape, WIDTH)
                dist.recv(got, 0)
                got.requires_grad_()
                logits = model["head"](torch.relu(model["inner"](got)))
                loss = F.cross_entropy(logits.flatten(0, 1), labels[i].flatten())
                (loss if mistake == "microbatches not divided" else loss / 2).backward()
                dist.send(got.grad, 0)
                losses.append(loss)
        for out in sent:
            grad = torch.empty_like(out)
            dist.recv(grad, 1)
            out.backward(grad)
        weight = (model["embed"] if first else model["head"]).weight
        if mistake != "tied gradients not summed":
            dist.all_reduce(weight.grad)
        job.end(loss=losses)

    return step


TIED = Case(
    "tied embeddings over two stages by messages",
    tied,
    tied_stages(),
    {m: tied_stages(m) for m in ("tied gradients not summed", "microbatches not divided")},
    ids("ids", "labels"),
)

# -- 2. DTensor: columns, rows, and a loss over a vocabulary in shards. ----------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.up = nn.Linear(WIDTH, 16)
        self.down = nn.Linear(16, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(x + self.down(F.gelu(self.up(x))))


def small(job: sp.Job) -> None:
    model = Small()
    job.start(model)
    logits = model(job.batch["ids"])
    loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
    loss.backward()
    job.end(loss=loss)


def small_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,), mesh_dim_names=("tp",))
        plan: dict[str, Any] = {
            "embed": RowwiseParallel(input_layouts=Replicate()),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        model = parallelize_module(Small(), mesh, plan)
        job.start(model)
        logits = model(job.batch["ids"])
        if mistake == "loss over the local vocabulary":
            logits = logits.to_local()
            labels = job.batch["labels"].flatten() % logits.size(-1)
            loss = F.cross_entropy(logits.flatten(0, 1), labels)
            loss.backward()
        else:
            with loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
                loss.backward()
        job.end(loss=loss)

    return step


LOSS_PARALLEL = Case(
    "DTensor with a vocabulary in shards and loss_parallel",
    small,
    small_parallel(),
    {"loss over the local vocabulary": small_parallel("loss over the local vocabulary")},
    ids("ids", "labels"),
)

# -- 3. HSDP with accumulation: gradients reduced at the last microbatch only. ---------------------


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def deep(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: Any = Deep()
        if parallel:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
        job.start(model, optimizer)
        x, y = rows(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        losses = []
        for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            if parallel:
                model.set_requires_gradient_sync(i == 1)
            loss = F.smooth_l1_loss(model(a), b)
            (loss if mistake == "microbatches not divided" else loss / 2).backward()
            losses.append(loss)
        optimizer.step()
        job.end(loss=losses)

    return step


HSDP = Case(
    "HSDP with accumulation, AdamW",
    deep(False),
    deep(True),
    {"microbatches not divided": deep(True, "microbatches not divided")},
    floats(x=(8, WIDTH), y=(8, WIDTH)),
    4,
)

# -- 4. A mesh of data and tensor parallelism by hand, with process groups. ------------------------


class Pair(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH, bias=False)


def pair(job: sp.Job) -> None:
    model = Pair()
    job.start(model)
    x = job.batch["x"]
    y = checkpoint(lambda t: model.down(F.silu(model.up(model.norm(t)))), x, use_reentrant=False)
    loss = F.mse_loss(x + y, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def pair_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][job.rank // 2]
        dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][job.rank % 2]
        at, row = dist.get_rank(tp), dist.get_rank(dp)
        model = Pair(8)
        cut = {"start": at * 8, "size": 8}
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **cut),
                "up.bias": sp.piece("up.bias", dim=0, **cut),
                "down.weight": sp.piece("down.weight", dim=1, **cut),
            },
        )
        x, y = rows(job, "x", "y", size=2, at=row)

        def inner(t: torch.Tensor) -> torch.Tensor:
            h = copy_to(model.norm(t), tp)
            return reduce_from(model.down(F.silu(model.up(h))), tp)

        found = x + checkpoint(inner, x, use_reentrant=False)
        loss = F.mse_loss(found, y)
        loss.backward()
        group = tp if mistake == "gradients over the wrong group" else dp
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad.div_(4 if mistake == "divided by the world" else 2)
        job.end(loss=loss)

    return step


PAIR = Case(
    "data and tensor parallelism by groups, checkpointed",
    pair,
    pair_parallel(),
    {m: pair_parallel(m) for m in ("gradients over the wrong group", "divided by the world")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
    4,
)

# -- 5. FSDP2 with mixed precision: bfloat16 in forward, gradients reduced in float32. -------------


def half(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = Deep()
        if parallel:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            mesh = init_device_mesh("cpu", (job.world_size,))
            fully_shard(model, mesh=mesh, mp_policy=policy)
        job.start(model)
        x, y = rows(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        if parallel:
            found = model(x).float()
        else:
            with torch.autocast("cpu", torch.bfloat16):
                found = model(x.bfloat16()).float()
        loss = F.mse_loss(found, y)
        scale = 1024.0
        (loss * scale).backward()
        for p in model.parameters():
            if mistake != "gradients not unscaled":
                p.grad = p.grad / scale
        job.end(loss=loss)

    return step


HALF = Case(
    "FSDP2 in bfloat16 with a scaled loss",
    half(False),
    half(True),
    {"gradients not unscaled": half(True, "gradients not unscaled")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 6. distribute_tensor by hand, a sum over shards read as a whole. ------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(WIDTH, 16))
        self.v = nn.Parameter(torch.empty(16, WIDTH))


def products(job: sp.Job) -> None:
    model = Plain()
    job.start(model)
    y = torch.sigmoid(job.batch["x"] @ model.w) @ model.v
    loss = (y - job.batch["y"]).abs().mean() + 0.01 * model.w.pow(2).sum()
    loss.backward()
    job.end(loss=loss)


def distributed(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Plain()
        model.w = nn.Parameter(distribute_tensor(model.w.detach(), mesh, [Shard(1)]))
        model.v = nn.Parameter(distribute_tensor(model.v.detach(), mesh, [Shard(0)]))
        job.start(model)
        x = DTensor.from_local(job.batch["x"], mesh, [Replicate()])
        y = torch.sigmoid(x @ model.w) @ model.v
        if mistake == "partial read as local":
            y = y.to_local()
        else:
            y = y.full_tensor()
        loss = (y - job.batch["y"]).abs().mean()
        w = model.w
        penalty = 0.01 * (w.to_local() if mistake == "penalty of a shard" else w).pow(2).sum()
        penalty = penalty if mistake == "penalty of a shard" else penalty.full_tensor()
        (loss + penalty).backward()
        job.end(loss=loss + penalty)

    return step


DISTRIBUTED = Case(
    "distribute_tensor and full_tensor by hand",
    products,
    distributed(),
    {m: distributed(m) for m in ("partial read as local", "penalty of a shard")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 7. DDP with a loss of preferences: log-sigmoid of differences to a frozen reference. ----------


def preferences(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        policy: nn.Module = nn.Linear(WIDTH, CLASSES)
        reference = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
        held = nn.ModuleDict({"policy": policy, "reference": reference})
        wrapped = DistributedDataParallel(policy) if parallel else policy
        job.start(held)
        names = ("x", "good", "bad")
        x, good, bad = rows(job, *names) if parallel else (job.batch[n] for n in names)
        log = F.log_softmax(wrapped(x), dim=-1)
        with torch.no_grad():
            base = F.log_softmax(reference(x), dim=-1)
        ratios = [(log - base).gather(1, chosen.unsqueeze(1)).squeeze(1) for chosen in (good, bad)]
        loss = -F.logsigmoid(0.1 * (ratios[0] - ratios[1])).mean()
        (loss * job.world_size if mistake == "loss times ranks" else loss).backward()
        job.end(loss=loss)

    return step


PREFERENCES = Case(
    "preferences against a frozen reference, DDP",
    preferences(False),
    preferences(True),
    {"loss times ranks": preferences(True, "loss times ranks")},
    {
        "x": sp.tensor((4, WIDTH)),
        "good": sp.tensor((4,), torch.int64, low=0, high=CLASSES),
        "bad": sp.tensor((4,), torch.int64, low=0, high=CLASSES),
    },
)

# -- 8. Advantages normalised over all ranks, clipped ratios. --------------------------------------


def advantage(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, 1)
    job.start(model)
    a = job.batch["a"]
    a = (a - a.mean()) / (a.std() + 1e-8)
    ratio = torch.exp(model(job.batch["x"]).squeeze(1) - job.batch["old"])
    loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    loss.backward()
    job.end(loss=loss)


def advantage_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, 1)
        job.start(model)
        x, a, old = rows(job, "x", "a", "old")
        if mistake == "normalised over own rows":
            a = (a - a.mean()) / (a.std() + 1e-8)
        else:
            count = a.numel() * job.world_size
            sums = a.sum()
            dist.all_reduce(sums)
            mean = sums / count
            squares = (a - mean).pow(2).sum()
            dist.all_reduce(squares)
            n = count if mistake == "variance by n" else count - 1
            a = (a - mean) / ((squares / n).sqrt() + 1e-8)
        ratio = torch.exp(model(x).squeeze(1) - old)
        loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
        job.end(loss=loss)

    return step


ADVANTAGE = Case(
    "clipped ratios with advantages normalised over ranks",
    advantage,
    advantage_parallel(),
    {m: advantage_parallel(m) for m in ("normalised over own rows", "variance by n")},
    floats(x=(4, WIDTH), a=(4,), old=(4,)),
)

CASES = [TIED, LOSS_PARALLEL, HSDP, PAIR, HALF, DISTRIBUTED, PREFERENCES, ADVANTAGE]
