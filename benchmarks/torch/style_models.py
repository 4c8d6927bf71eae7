"""What the programs of `styles` share: models, batches, plain and divided steps, and their list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
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
