"""Plans of `parallelize_module` in their variants: kept DTensors, uneven shards, a class token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, Case, Step, floats, ids

D, HEADS, HEAD, INNER, T = 8, 4, 2, 12, 4
Plan = Callable[[Any, nn.Module, str], None]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.causal = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, HEAD).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.wo(out.transpose(1, 2).contiguous().view(b, t, -1))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(D, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed = Attention(), Feed()
        self.norm1, self.norm2 = nn.RMSNorm(D), nn.RMSNorm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, classes: int = CLASSES, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, D)
        self.place = nn.Embedding(T, D)
        self.layer, self.norm = Layer(), nn.RMSNorm(D)
        self.output = nn.Linear(D, classes, bias=False)
        self.again = False
        if tied:
            self.output.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.size(1)))
        if self.again:
            x = checkpoint(self.layer, x, use_reentrant=False)
        else:
            x = self.layer(x)
        return self.output(self.norm(x))


def trained(classes: int, tied: bool = False, narrow: bool = False) -> Step:
    def step(job: sp.Job) -> None:
        model = Decoder(classes, tied)
        job.start(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            logits = model(job.batch["ids"])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), job.batch["labels"].flatten())
        loss.backward()
        job.end(loss=loss)

    return step


def planned(
    classes: int, plan: Plan, mistake: str = "", *, parallel_loss: bool = False, **how: bool
) -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,), mesh_dim_names=("tp",))
        model = Decoder(classes, how.get("tied", False))
        model.again = how.get("again", False)
        plan(mesh, model, mistake)
        job.start(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=how.get("narrow", False)):
            logits = model(job.batch["ids"])
            labels = job.batch["labels"].flatten()
            if parallel_loss:
                with loss_parallel():
                    loss = F.cross_entropy(logits.flatten(0, 1), labels)
                    loss.backward()
            else:
                loss = F.cross_entropy(logits.flatten(0, 1).float(), labels)
        if not parallel_loss:
            loss.backward()
        job.end(loss=loss.full_tensor() if isinstance(loss, DTensor) else loss)

    return step


# -- 1. All values stay DTensors, positions over ranks between the blocks, loss_parallel. ----------


def kept(mesh: Any, model: nn.Module, mistake: str) -> None:
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "place": RowwiseParallel(
                input_layouts=Replicate(),
                output_layouts=Shard(0),
            ),
            **({} if mistake else {"norm": SequenceParallel(use_local_output=True)}),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
            "layer.norm1": SequenceParallel(use_local_output=True),
            "layer.norm2": SequenceParallel(use_local_output=True),
            "layer.attention": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            **{f"layer.attention.w{w}": ColwiseParallel() for w in "qkv"},
            "layer.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "layer.feed": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "layer.feed.w1": ColwiseParallel(),
            "layer.feed.w3": ColwiseParallel(),
            "layer.feed.w2": RowwiseParallel(output_layouts=Shard(1)),
        },
    )


SEQUENCE = Case(
    "decoder by a plan with positions over ranks, learned positions, loss_parallel",
    trained(CLASSES),
    planned(CLASSES, kept, parallel_loss=True),
    {
        "a norm left out of the plan": planned(
            CLASSES, kept, "a norm left out of the plan", parallel_loss=True
        )
    },
    ids("ids", "labels", rows=2, length=T),
)

# -- 2. Classes and inner widths that do not divide; the output gathered. --------------------------


def uneven(mesh: Any, model: nn.Module, mistake: str) -> None:
    column = ColwiseParallel
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate()),
            "output": column(output_layouts=Replicate()),
            **{f"layer.attention.w{w}": ColwiseParallel() for w in "qkv"},
            "layer.attention.wo": RowwiseParallel(),
            "layer.feed.w1": ColwiseParallel(),
            "layer.feed.w3": ColwiseParallel(),
            "layer.feed.w2": RowwiseParallel(),
        },
    )
    if mistake == "outputs added twice":
        out = model.layer.feed  # type: ignore[union-attr]
        out.register_forward_hook(lambda m, a, y: 2 * y)  # type: ignore[union-attr,operator]


UNEVEN = Case(
    "decoder by a plan, 13 classes over 2 ranks",
    trained(13),
    planned(13, uneven),
    {"outputs added twice": planned(13, uneven, "outputs added twice")},
    {n: sp.tensor((2, T), torch.int64, low=0, high=13) for n in ("ids", "labels")},
)
TIED = Case(
    "decoder by a plan, tied, loss_parallel off, checkpoints under autocast",
    trained(CLASSES, tied=True, narrow=True),
    planned(CLASSES, uneven, tied=True, narrow=True, again=True),
    {"outputs added twice": planned(CLASSES, uneven, "outputs added twice", tied=True)},
    ids("ids", "labels", rows=2, length=T),
)

# -- 3. A perceptron of 10 inner units over 4 ranks (3, 3, 3, 1), DTensors out. --------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 10), nn.Linear(10, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def perceptron(job: sp.Job) -> None:
    model = Perceptron()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def odd(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Perceptron()
        parallelize_module(
            model,
            mesh,
            {
                "": PrepareModuleOutput(
                    output_layouts=Replicate(), desired_output_layouts=Shard(0)
                ),
                "up": ColwiseParallel(use_local_output=False),
                "down": RowwiseParallel(use_local_output=False),
            },
        )
        job.start(model)
        out = model(job.batch["x"])
        y = job.batch["y"].chunk(job.world_size)[0 if mistake else job.rank]
        loss = (out - y).square().sum() / job.batch["y"].numel()
        loss.backward()
        job.end(loss=loss)

    return step


ODD = Case(
    "10 inner units over 4 ranks by a plan, rows of the output over ranks",
    perceptron,
    odd(),
    {"targets of the first rank": odd("targets of the first rank")},
    floats(x=(4, D), y=(4, D)),
    4,
)

# -- 4. A vision transformer by a plan: class token, learned places, heads over ranks. -------------


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(12, D)
        self.cls = nn.Parameter(torch.zeros(1, 1, D))
        self.pos = nn.Parameter(torch.zeros(1, 5, D))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = Attention()
        self.attention.causal = False
        self.mlp = nn.Sequential(nn.Linear(D, INNER), nn.GELU(), nn.Linear(INNER, D))
        self.head = nn.Linear(D, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.pos
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x)[:, 0])


def vit(job: sp.Job) -> None:
    model = Vit()
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["label"])
    loss.backward()
    job.end(loss=loss)


def vit_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Vit()
        parallelize_module(
            model,
            mesh,
            {
                **{f"attention.w{w}": ColwiseParallel() for w in "qkv"},
                "attention.wo": RowwiseParallel(),
                "mlp.0": ColwiseParallel(),
                "mlp.2": RowwiseParallel(),
            },
        )
        job.start(model)
        loss = F.cross_entropy(model(job.batch["x"]), job.batch["label"])
        if mistake == "loss divided by ranks":
            (loss / job.world_size).backward()
        else:
            loss.backward()
        job.end(loss=loss)

    return step


VIT = Case(
    "vision transformer by a plan: class token, heads over ranks",
    vit,
    vit_parallel(),
    {"loss divided by ranks": vit_parallel("loss divided by ranks")},
    {"x": sp.tensor((2, 4, 12)), "label": sp.tensor((2,), torch.int64, low=0, high=3)},
)

CASES = [SEQUENCE, UNEVEN, TIED, ODD, VIT]
