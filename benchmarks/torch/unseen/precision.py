"""Steps in bfloat16: weights beside their masters, FSDP2 with its own policy."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, floats, rows

D, H = 8, 16


# -- 1. Weights in bfloat16 beside their masters, reduced and scattered. ---------------------------


class Mlp(nn.Module):
    def __init__(self, dtype: Any = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, H, dtype=dtype), nn.Linear(H, D, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))  # type: ignore[no-any-return]


def adam(job: sp.Job) -> None:
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.start(model, optimizer)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def masters(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        copy = Mlp(torch.bfloat16)
        with torch.no_grad():
            for c, p in zip(copy.parameters(), model.parameters(), strict=True):
                c.copy_(p)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(copy(x.bfloat16()).float(), y)
        (loss * 1024).backward()
        for c, p in zip(copy.parameters(), model.parameters(), strict=True):
            grad = c.grad.float()  # type: ignore[union-attr]
            dist.all_reduce(grad)
            scale = 1024 if mistake == "not divided by ranks" else 1024 * job.world_size
            p.grad = grad / scale
        optimizer.step()
        if mistake == "last bias untouched":
            with torch.no_grad():
                model.down.bias.copy_(copy.down.bias)
        job.end(loss=loss)

    return step


MASTER = Case(
    "weights in bfloat16 beside their masters, scaled, DP, Adam",
    adam,
    masters(),
    {m: masters(m) for m in ("not divided by ranks", "last bias untouched")},
    floats(x=(4, D), y=(4, D)),
)

# -- 2. A masked autoencoder: rows kept by given places, FSDP2 in bfloat16. ------------------------


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.out = nn.Linear(D, D), Mlp(), nn.Linear(D, D)
        self.empty = nn.Parameter(torch.zeros(1, 1, D))

    def forward(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        shown = order[:, : t // 2, None].expand(-1, -1, D)
        h = self.block(torch.gather(self.embed(x), 1, shown))
        full = torch.cat([h, self.empty.expand(b, t - t // 2, D)], 1)
        back = torch.argsort(order, 1)[..., None].expand(-1, -1, D)
        return self.out(torch.gather(full, 1, back))  # type: ignore[no-any-return]


def masked(job: sp.Job) -> None:
    model = Masked()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"], job.batch["order"]), job.batch["x"])
    loss.backward()
    job.end(loss=loss)


def masked_shards(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Masked()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model.block, mp_policy=policy)
        fully_shard(model)
        job.start(model)
        x, order = rows(job, "x", "order")
        if mistake == "order of the first rank":
            order = job.batch["order"].chunk(job.world_size)[0]
        loss = F.mse_loss(model(x, order), x)
        if mistake == "sum":
            loss = loss * job.world_size
        loss.backward()
        job.end(loss=loss)

    return step


MAE = Case(
    "a masked autoencoder by given orders, FSDP2 in bfloat16",
    masked,
    masked_shards(),
    {m: masked_shards(m) for m in ("order of the first rank", "sum")},
    {**floats(x=(4, 4, D)), "order": sp.tensor((4, 4), torch.int64, low=0, high=4)},
)

CASES = [MASTER, MAE]
