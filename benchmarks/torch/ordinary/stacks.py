"""PyTorch's own wrappers once more: FSDP of both kinds, meshes of two axes, DTensor's styles."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Case, Step, floats, ids, rows

# -- 1. A language model under FSDP2 and TP, the loss over a vocabulary in shards. -----------------


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.w1 = nn.Linear(WIDTH, 16, bias=False)
        self.w3 = nn.Linear(WIDTH, 16, bias=False)
        self.w2 = nn.Linear(16, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList([FeedForward()])
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def language(job: sp.Job) -> None:
    model = Language()
    job.start(model)
    loss = entropy(model(job.batch["ids"]), job.batch["labels"])
    loss.backward()
    job.end(loss=loss)


def titan(mistake: str = "") -> Step:
    """As torchtitan parallelizes: positions in shards between blocks."""

    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = Language()
        top: dict[str, Any] = {
            "tok": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        }
        parallelize_module(model, mesh["tp"], top)
        for layer in model.layers:
            inner: dict[str, Any] = {
                "norm": SequenceParallel(),
                "w1": ColwiseParallel(input_layouts=Shard(1)),
                "w3": ColwiseParallel(input_layouts=Shard(1)),
                "w2": RowwiseParallel(output_layouts=Shard(1)),
            }
            parallelize_module(layer, mesh["tp"], inner)
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        job.start(model)
        at = mesh.get_local_rank("tp" if mistake else "dp")
        tokens, labels = rows(job, "ids", "labels", size=2, at=at)
        with loss_parallel():
            loss = entropy(model(tokens), labels)
            loss.backward()
        job.end(loss=loss)

    return step


TITAN = Case(
    "language model under FSDP2 and sequence parallelism, loss_parallel",
    language,
    titan(),
    {"rows by the wrong axis": titan("rows by the wrong axis")},
    ids("ids", "labels", rows=4, length=4),
    4,
)

# -- 2. FSDP2 whose dimensions do not divide. ------------------------------------------------------


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 7), nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def odd(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = Odd()
        if parallel:
            mesh = init_device_mesh("cpu", (job.world_size,))
            for layer in list(model.children()):
                fully_shard(layer, mesh=mesh, reshard_after_forward=False)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.start(model, optimizer)
        x, y = rows(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        loss = F.l1_loss(model(x), y, reduction="sum" if mistake else "mean")
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


ODD = Case(
    "FSDP2 of dimensions that do not divide, SGD",
    odd(False),
    odd(True),
    {"sum in place of mean": odd(True, "sum in place of mean")},
    floats(x=(4, WIDTH), y=(4, 5)),
)

# -- 3. FSDP1, wrapped by a policy. ----------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([FeedForward() for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def first(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = Twice()
        if parallel:
            policy = ModuleWrapPolicy({FeedForward})
            model = FullyShardedDataParallel(
                model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
            )
        job.start(model)
        x, y = rows(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        loss = F.mse_loss(model(x), y)
        (loss / job.world_size if mistake else loss).backward()
        job.end(loss=loss)

    return step


FIRST = Case(
    "FSDP1 by a wrap policy",
    first(False),
    first(True),
    {"divided once more": first(True, "divided once more")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 4. Sequence parallelism by DTensor's styles. --------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm2(x + self.down(F.gelu(self.up(self.norm1(x)), approximate="tanh")))


def residual(job: sp.Job) -> None:
    model = Residual()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def sequence_plan() -> dict[str, Any]:
    """Positions in shards between the products."""
    return {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }


def styled(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Residual()
        parallelize_module(model, mesh, sequence_plan())
        wrapped = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1))
        parallelize_module(model, mesh, wrapped)
        job.start(model)
        x, y = (job.batch[n].chunk(job.world_size, dim=1)[job.rank] for n in ("x", "y"))
        loss = F.mse_loss(model(x), job.batch["y"][:, : y.size(1)] if mistake else y)
        (loss / job.world_size).backward()
        job.end(loss=loss)

    return step


STYLED = Case(
    "sequence parallelism by DTensor's styles",
    residual,
    styled(),
    {"targets of the first rank": styled("targets of the first rank")},
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

# -- 5. Clipping by the global norm over FSDP2 and TP. ---------------------------------------------


class UpDown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def clipped(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = UpDown()
        if parallel:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(model, mesh["tp"], plan)
            fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        job.start(model, optimizer)
        if parallel:
            x, y = rows(job, "x", "y", size=2, at=mesh.get_local_rank("dp"))
        else:
            x, y = job.batch["x"], job.batch["y"]
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if mistake:
            held = [p.grad.to_local() for p in model.parameters()]  # type: ignore[union-attr]
            norm = torch.stack([g.norm() for g in held]).norm()
            for g in held:
                g.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        else:
            plain = [p for p in model.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm([p.grad for p in plain], foreach=False)
            if parallel:
                norm = norm.full_tensor()  # type: ignore[attr-defined]
            torch.nn.utils.clip_grads_with_norm_(plain, 1.0, norm, foreach=False)
        optimizer.step()
        job.end(loss=loss)

    return step


CLIPPED = Case(
    "clipping by the global norm over FSDP2 and TP, AdamW",
    clipped(False),
    clipped(True),
    {"norm of a rank's shards": clipped(True, "norm of a rank's shards")},
    floats(x=(4, 2, WIDTH), y=(4, 2, WIDTH)),
    4,
)

# -- 6. Accumulation under DDP's no_sync. ----------------------------------------------------------


def accumulated(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: Any = Odd()
        if parallel:
            model = DistributedDataParallel(model, bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        job.start(model, optimizer)
        x, y = rows(job, "x", "y") if parallel else (job.batch["x"], job.batch["y"])
        count = 3 if parallel else 1
        losses = []
        for i, (a, b) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
            last = i == count - 1
            quiet = parallel and (mistake or not last)
            with model.no_sync() if quiet else torch.enable_grad():
                loss = F.smooth_l1_loss(model(a), b)
                (loss / count).backward()
            losses.append(loss)
        optimizer.step()
        job.end(loss=losses)

    return step


ACCUMULATED = Case(
    "accumulation under no_sync, SGD with momentum and weight decay",
    accumulated(False),
    accumulated(True),
    {"never synchronised": accumulated(True, "never synchronised")},
    floats(x=(6, WIDTH), y=(6, 5)),
)

# -- 7. A convolutional net with pooling under DDP. ------------------------------------------------


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1, bias=False),
            nn.LeakyReLU(0.1),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def pooled(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: nn.Module = Pooled()
        if parallel:
            model = DistributedDataParallel(model)
        job.start(model)
        shares = [job.batch[n] for n in ("x", "y")]
        if parallel:
            shares = rows(job, "x", "y", at=0 if mistake else None)
        x, y = shares
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        job.end(loss=loss)

    return step


POOLED = Case(
    "max pooling and label smoothing under DDP",
    pooled(False),
    pooled(True),
    {"the same rows on every rank": pooled(True, "the same rows on every rank")},
    {"x": sp.tensor((4, 1, 4, 4)), "y": sp.tensor((4,), torch.int64, low=0, high=5)},
)


CASES = [TITAN, ODD, FIRST, STYLED, CLIPPED, ACCUMULATED, POOLED]
