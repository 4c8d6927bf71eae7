"""Images: a vision transformer, batch norm, pooling, halos, noise."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from, rows

# -- 1. A vision transformer whose heads are divided. ----------------------------------------------

D, HEADS = 8, 2


class Mixer(nn.Module):
    """Pre-norm block with one projection for queries, keys and values."""

    def __init__(self, ways: int = 1) -> None:
        super().__init__()
        self.heads = HEADS // ways
        own = D // ways
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * own)
        self.proj = nn.Linear(own, D)
        self.fc1, self.fc2 = nn.Linear(D, 2 * own), nn.Linear(2 * own, D)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, D // HEADS).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return F.linear(out.transpose(1, 2).reshape(b, n, -1), self.proj.weight)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(self.fc1(x)), self.fc2.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.ln1(x)) + self.proj.bias
        return x + self.feed(self.ln2(x)) + self.fc2.bias


class Divided(Mixer):
    mistake = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.attend(copy_to(self.ln1(x)))
        if self.mistake == "bias of the projection on every rank":
            x = x + reduce_from(part + self.proj.bias)
        else:
            x = x + reduce_from(part) + self.proj.bias
        return x + reduce_from(self.feed(copy_to(self.ln2(x)))) + self.fc2.bias


class VisionTransformer(nn.Module):
    def __init__(self, block: Mixer) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, D, kernel_size=4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, D))
        self.pos = nn.Parameter(torch.zeros(1, 5, D))
        self.block = block
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


def vit(job: sp.Job) -> None:
    model = VisionTransformer(Mixer())
    job.start(model)
    loss = F.cross_entropy(model(job.batch["image"]), job.batch["label"])
    loss.backward()
    job.end(loss=loss)


def vit_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        block = Divided(n)
        block.mistake = mistake
        model = VisionTransformer(block)
        own = D // n
        parts: dict[str, Any] = {}
        for name in ("block.qkv.weight", "block.qkv.bias"):
            three = [sp.piece(name, dim=0, start=i * D + r * own, size=own) for i in range(3)]
            run = sp.piece(name, dim=0, start=3 * own * r, size=3 * own)
            parts[name] = run if mistake == "fused projection cut as one run" else three
        for name in ("block.fc1.weight", "block.fc1.bias"):
            parts[name] = sp.piece(name, dim=0, start=2 * own * r, size=2 * own)
        parts["block.proj.weight"] = sp.piece("block.proj.weight", dim=1, start=own * r, size=own)
        parts["block.fc2.weight"] = sp.piece(
            "block.fc2.weight", dim=1, start=2 * own * r, size=2 * own
        )
        job.start(model, parameters=parts)
        loss = F.cross_entropy(model(job.batch["image"]), job.batch["label"])
        loss.backward()
        job.end(loss=loss)

    return step


LABELLED = {
    "image": sp.tensor((4, 3, 8, 8)),
    "label": sp.tensor((4,), torch.int64, low=0, high=5),
}
VIT = Case(
    "vision transformer with patches by convolution, heads over ranks",
    vit,
    vit_parallel(),
    {
        m: vit_parallel(m)
        for m in ("fused projection cut as one run", "bias of the projection on every rank")
    },
    LABELLED,
)

# -- 2. A small residual network: batch norm over all ranks, written with differentiable sums. -----


class OneNorm(nn.Module):
    """Batch norm over [b, c, h, w] by the mean and the mean of squares."""

    def __init__(self, channels: int, over: str) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )
        self.over = over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.numel() / x.shape[1]
        sums = torch.stack([x.sum(dim=(0, 2, 3)), (x * x).sum(dim=(0, 2, 3))])
        if self.over == "ranks":
            sums, count = differentiable.all_reduce(sums), count * dist.get_world_size()
        mean, square = sums[0] / count, sums[1] / count
        scale = self.weight * torch.rsqrt(square - mean * mean + 1e-5)
        return x * scale[None, :, None, None] + (self.bias - mean * scale)[None, :, None, None]


class Residual(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = norm(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = norm(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(x + self.bn2(self.conv(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet(job: sp.Job) -> None:
    model = Residual(lambda c: OneNorm(c, "batch"))
    job.start(model)
    loss = F.cross_entropy(model(job.batch["image"]), job.batch["label"])
    loss.backward()
    job.end(loss=loss)


def resnet_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        over = "rows of a rank" if mistake == "statistics of own rows" else "ranks"
        model = Residual(lambda c: OneNorm(c, over))
        job.start(model)
        image, label = rows(job, "image", "label")
        loss = F.cross_entropy(model(image), label)
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            if mistake != "sum of gradients":
                p.grad /= job.world_size
        job.end(loss=loss)

    return step


RESNET = Case(
    "residual network, batch norm by sums over ranks",
    resnet,
    resnet_parallel(),
    {m: resnet_parallel(m) for m in ("statistics of own rows", "sum of gradients")},
    LABELLED,
)

# -- 3. PyTorch's batch norm under DDP: right only where it is frozen. -----------------------------


class Classic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 4)
        return self.fc(x.flatten(1))


def classic(training: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Classic()
        model.bn.train(training)
        job.start(model)
        loss = F.cross_entropy(model(job.batch["image"]), job.batch["label"])
        loss.backward()
        job.end(loss=loss)

    return step


def classic_parallel(training: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Classic()
        model.bn.train(training)
        wrapped = DistributedDataParallel(model)
        job.start(model)
        image, label = rows(job, "image", "label")
        loss = F.cross_entropy(wrapped(image), label)
        loss.backward()
        job.end(loss=loss)

    return step


FROZEN = Case(
    "frozen batch norm and max pooling under DDP",
    classic(False),
    classic_parallel(False),
    {"batch norm trained on each rank": classic_parallel(True)},
    LABELLED,
)

# -- 4. Images cut by height; the rows at the seam are exchanged. ----------------------------------


class Halo(torch.autograd.Function):
    """[b, c, h, w] to [b, c, h + 2, w]: a row of each neighbour, zeros at the border."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: bool) -> torch.Tensor:
        ctx.keep = keep
        edges = torch.stack([x[:, :, 0], x[:, :, -1]])
        everyone = [torch.empty_like(edges) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, edges)
        r, n = dist.get_rank(), dist.get_world_size()
        above = everyone[r - 1][1] if r > 0 else torch.zeros_like(edges[0])
        below = everyone[r + 1][0] if r < n - 1 else torch.zeros_like(edges[0])
        return torch.cat([above[:, :, None], x, below[:, :, None]], dim=2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        own = grad[:, :, 1:-1].clone()
        if not ctx.keep:
            return own, None
        edges = torch.stack([grad[:, :, 0], grad[:, :, -1]])
        everyone = [torch.empty_like(edges) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, edges)
        r, n = dist.get_rank(), dist.get_world_size()
        if r > 0:
            own[:, :, 0] += everyone[r - 1][1]
        if r < n - 1:
            own[:, :, -1] += everyone[r + 1][0]
        return own, None


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)


def weather(job: sp.Job) -> None:
    model = Field()
    job.start(model)
    x = model.b(F.silu(model.a(job.batch["now"])))
    loss = (x - job.batch["next"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def weather_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Field()
        job.start(model)

        def conv(m: nn.Conv2d, x: torch.Tensor, keep: bool = True) -> torch.Tensor:
            if mistake == "zeros at the seam":
                return F.conv2d(x, m.weight, m.bias, padding=1)
            return F.conv2d(Halo.apply(x, keep), m.weight, m.bias, padding=(0, 1))

        now, after = (job.batch[k].chunk(n, dim=2)[r] for k in ("now", "next"))
        x = F.silu(conv(model.a, now))
        x = conv(model.b, x, keep=mistake != "gradient of the halo not returned")
        loss = (x - after).pow(2).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


WEATHER = Case(
    "images cut by height, halos exchanged",
    weather,
    weather_parallel(),
    {m: weather_parallel(m) for m in ("zeros at the seam", "gradient of the halo not returned")},
    floats(now=(2, 2, 4, 4), next=(2, 2, 4, 4)),
)

# -- 5. A step of denoising: noise and times are of the batch. -------------------------------------

TIMES = 10


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 4))
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.down = nn.Conv2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(1000.0) * torch.arange(4) / 4)
        angle = t[:, None].float() * rates[None]
        when = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        h = F.silu(self.norm(self.first(x))) + when[:, :, None, None]
        low = F.interpolate(self.down(h), scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([h, low], dim=1))


def noised(batch: Any) -> tuple[torch.Tensor, ...]:
    kept = torch.cos(torch.linspace(0.0, 1.5, TIMES)) ** 2
    level = kept[batch["t"]][:, None, None, None]
    return (
        level.sqrt() * batch["x"] + (1 - level).sqrt() * batch["noise"],
        batch["t"],
        batch["noise"],
    )


def denoised(job: sp.Job) -> None:
    model = Denoiser()
    job.start(model)
    x, t, noise = noised(job.batch)
    loss = F.mse_loss(model(x, t), noise)
    loss.backward()
    job.end(loss=loss)


def denoised_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Denoiser()
        wrapped = DistributedDataParallel(model)
        job.start(model)
        names = ("x", "t", "noise")
        own = dict(zip(names, rows(job, *names), strict=True))
        if mistake == "times of the first rank":
            own["t"] = rows(job, "t", at=0)[0]
        x, t, noise = noised(own)
        found = wrapped(x, t)
        if mistake == "sum over pixels":
            loss = F.mse_loss(found, noise, reduction="sum") / x.shape[0]
        else:
            loss = F.mse_loss(found, noise)
        loss.backward()
        job.end(loss=loss)

    return step


DENOISE = Case(
    "a step of denoising with times and skips, DDP",
    denoised,
    denoised_parallel(),
    {m: denoised_parallel(m) for m in ("times of the first rank", "sum over pixels")},
    {
        "x": sp.tensor((4, 2, 4, 4)),
        "noise": sp.tensor((4, 2, 4, 4)),
        "t": sp.tensor((4,), torch.int64, low=0, high=TIMES),
    },
)

CASES = [VIT, RESNET, FROZEN, WEATHER, DENOISE]
