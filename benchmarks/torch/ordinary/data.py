"""Data parallelism by hand: buckets, shards of optimizers, counts, norms over the batch, losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Case, Step, floats, ids, rows


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))


VECTORS = floats(x=(8, WIDTH), y=(8, WIDTH))


def plain(job: sp.Job) -> None:
    model = perceptron()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


# -- 1. Hooks that fill flat buckets, reduced while backward goes on. ------------------------------


def buckets(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = perceptron()
        job.start(model)
        x, y = rows(job, "x", "y")
        pending: list[Any] = []
        waiting: list[nn.Parameter] = []

        def flush() -> None:
            flat = _flatten_dense_tensors([p.grad for p in waiting])
            if mistake != "not divided":
                flat /= job.world_size
            pending.append((dist.all_reduce(flat, async_op=True), flat, list(waiting)))
            waiting.clear()

        def ready(p: nn.Parameter) -> None:
            waiting.append(p)
            if len(waiting) == 2:
                flush()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(ready)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if waiting:
            flush()
        if mistake == "last bucket forgotten":
            pending.pop()
        for work, flat, held in pending:
            if mistake != "copied before the wait":
                work.wait()
            grads = [p.grad for p in held]
            for grad, new in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
                grad.copy_(new)
            work.wait()
        job.end(loss=loss)

    return step


BUCKETS = Case(
    "flat buckets reduced by hooks",
    plain,
    buckets(),
    {m: buckets(m) for m in ("not divided", "last bucket forgotten", "copied before the wait")},
    VECTORS,
    4,
)

# -- 2. ZeRO-1: a flat gradient is reduce-scattered, Adam on a shard, parameters gathered. ---------


def adam(job: sp.Job) -> None:
    model = perceptron()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            updated(p, p.grad)
    job.end(loss=loss, outputs={n: p.detach() for n, p in model.named_parameters()})


def updated(p: torch.Tensor, g: torch.Tensor, lr: float = 0.1) -> None:
    """A first step of Adam, whose states are zero before it."""
    m, v = 0.1 * g, 0.05 * g * g
    p.mul_(1 - lr * 0.01).sub_(lr * (m / 0.1) / ((v / 0.05).sqrt() + 1e-8))


def zero1(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = perceptron()
        job.start(model)
        loss = F.mse_loss(model(rows(job, "x")[0]), rows(job, "y")[0])
        loss.backward()
        with torch.no_grad():
            held = list(model.parameters())
            flat_g = torch.cat([p.grad.reshape(-1) for p in held])
            flat_p = torch.cat([p.reshape(-1) for p in held])
            size = flat_p.numel() // n
            g = torch.empty(size)
            dist.reduce_scatter_tensor(g, flat_g)
            if mistake != "sum of gradients":
                g /= n
            at = n - 1 - r if mistake == "shard of another rank" else r
            p = flat_p[at * size : (at + 1) * size].clone()
            updated(p, g)
            gathered = torch.empty_like(flat_p)
            dist.all_gather_into_tensor(gathered, p)
            begin = 0
            for q in held:
                q.copy_(gathered[begin : begin + q.numel()].view_as(q))
                begin += q.numel()
        for q in held:
            dist.all_reduce(q.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss, outputs={k: q.detach() for k, q in model.named_parameters()})

    return step


ZERO1 = Case(
    "ZeRO-1 by hand over one flat buffer",
    adam,
    zero1(),
    {m: zero1(m) for m in ("sum of gradients", "shard of another rank")},
    VECTORS,
)

# -- 3. Ignored labels: the mean over all valid positions of all ranks. ----------------------------


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH, padding_idx=0)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def tagged(job: sp.Job) -> None:
    model = Tagger()
    job.start(model)
    logits, labels = model(job.batch["ids"]), job.batch["labels"]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)
    loss.backward()
    job.end(loss=loss)


def tagged_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Tagger()
        job.start(model)
        tokens, labels = rows(job, "ids", "labels")
        logits = model(tokens).flatten(0, 1)
        total = F.cross_entropy(logits, labels.flatten(), ignore_index=0, reduction="sum")
        count = (labels != 0).sum().float()
        if mistake == "positions instead of labels":
            count = torch.tensor(float(labels.numel()))
        if mistake != "mean over the rank's labels":
            dist.all_reduce(count)
        loss = total / count
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        job.end(loss=shown)

    return step


TAGGED = Case(
    "ignored labels with the count of all ranks",
    tagged,
    tagged_parallel(),
    {m: tagged_parallel(m) for m in ("mean over the rank's labels", "positions instead of labels")},
    ids("ids", "labels"),
)

# -- 4. Accumulation over microbatches of unlike sizes. --------------------------------------------


def uneven(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = perceptron()
        job.start(model)
        x, y = rows(job, "x", "y")
        sizes = [1, x.size(0) - 1]
        losses = []
        for a, b in zip(x.split(sizes), y.split(sizes), strict=True):
            weight = 1 / len(sizes) if mistake == "mean of means" else a.size(0) / x.size(0)
            loss = F.mse_loss(model(a), b) * weight
            loss.backward()
            losses.append(loss.detach())
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
        job.end(loss=sum(losses))

    return step


UNEVEN = Case(
    "accumulation over uneven microbatches",
    plain,
    uneven(),
    {"mean of means": uneven("mean of means")},
    VECTORS,
)

# -- 5. Batch norm over the global batch, by sums that are reduced with gradients. -----------------


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.down = nn.Linear(WIDTH, WIDTH)


def normed(job: sp.Job) -> None:
    model = Normed()
    job.start(model)
    h = model.up(job.batch["x"])
    h = F.batch_norm(h, None, None, model.gain, model.shift, training=True)
    loss = F.mse_loss(model.down(h.relu()), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def normed_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = job.world_size
        model = Normed()
        job.start(model)
        x, y = rows(job, "x", "y")
        h = model.up(x)
        if mistake == "statistics of the rank's rows":
            h = F.batch_norm(h, None, None, model.gain, model.shift, training=True)
        else:
            count = n * h.size(0)
            mean = AllReduce.apply(h.sum(0)) / count
            if mistake == "statistics without gradient":
                mean = mean.detach()
            square = AllReduce.apply((h - mean).square().sum(0)) / count
            h = (h - mean) * torch.rsqrt(square + 1e-5) * model.gain + model.shift
        loss = F.mse_loss(model.down(h.relu()), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        job.end(loss=loss)

    return step


NORMED = Case(
    "batch norm over the global batch, by hand",
    normed,
    normed_parallel(),
    {
        m: normed_parallel(m)
        for m in ("statistics of the rank's rows", "statistics without gradient")
    },
    VECTORS,
)

# -- 6. A convolutional net under DDP. -------------------------------------------------------------


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.conv2 = nn.Conv2d(4, 4, 3, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv1(x)))
        x = F.relu(self.conv2(x))
        return self.head(x.mean(dim=(2, 3)))


def images(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = ConvNet()
        if parallel and not mistake:
            model = DistributedDataParallel(model)
        job.start(model)
        x, y = rows(job, "x", "y", size=0 if parallel else 1, at=None if parallel else 0)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        job.end(loss=loss)

    return step


IMAGES = Case(
    "convolutions and GroupNorm under DDP",
    images(False),
    images(True),
    {"no DDP": images(True, "no DDP")},
    {"x": sp.tensor((4, 3, 5, 5)), "y": sp.tensor((4,), torch.int64, low=0, high=5)},
)

# -- 7. Distillation: a frozen teacher, a temperature, KL. -----------------------------------------


def distilled(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        student, teacher = nn.Linear(WIDTH, CLASSES), perceptron()
        both = nn.ModuleDict({"student": student, "teacher": teacher})
        teacher.requires_grad_(False)
        job.start(both)
        (x,) = rows(job, "x") if parallel else [job.batch["x"]]
        with torch.no_grad():
            target = F.softmax(teacher(x) @ torch.ones(WIDTH, CLASSES) / 2.0, dim=-1)
        log = F.log_softmax(student(x) / 2.0, dim=-1)
        reduction = "sum" if mistake == "sum over the batch" else "batchmean"
        loss = F.kl_div(log, target, reduction=reduction) * 4.0
        loss.backward()
        if parallel:
            for p in student.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


DISTILLED = Case(
    "distillation with KL",
    distilled(False),
    distilled(True),
    {"sum over the batch": distilled(True, "sum over the batch")},
    floats(x=(4, WIDTH)),
)

# -- 8. CLIP: similarities of all pairs of all ranks. ----------------------------------------------


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return F.normalize(self.image(x), dim=-1), F.normalize(self.text(y), dim=-1)


def paired(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    logits = scale.exp() * a @ b.T
    target = torch.arange(logits.size(0))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def clip(job: sp.Job) -> None:
    model = Towers()
    job.start(model)
    loss = paired(*model(job.batch["x"], job.batch["y"]), model.scale)
    loss.backward()
    job.end(loss=loss)


def clip_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Towers()
        job.start(model)
        a, b = model(*rows(job, "x", "y"))
        if mistake == "gathered without gradient":
            pairs = []
            for t in (a, b):
                parts = [torch.empty_like(t) for _ in range(job.world_size)]
                dist.all_gather(parts, t)
                parts[job.rank] = t
                pairs.append(torch.cat(parts))
            a, b = pairs
        elif mistake != "pairs of one rank":
            a, b = torch.cat(dnn.all_gather(a)), torch.cat(dnn.all_gather(b))
        loss = paired(a, b, model.scale)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


CLIP = Case(
    "contrastive loss over gathered embeddings",
    clip,
    clip_parallel(),
    {m: clip_parallel(m) for m in ("gathered without gradient", "pairs of one rank")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

CASES = [BUCKETS, ZERO1, TAGGED, UNEVEN, NORMED, IMAGES, DISTILLED, CLIP]
