"""States that are carried along a sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from, rows

D = 8

# -- 1. A selective scan: channels over ranks, states' parameters shared. --------------------------

STATES, LENGTH = 2, 4


class Scan(nn.Module):
    def __init__(self, channels: int = D) -> None:
        super().__init__()
        self.inner = nn.Linear(D, channels, bias=False)
        self.gate = nn.Linear(D, channels, bias=False)
        self.select = nn.Linear(D, 2 * STATES, bias=False)
        self.delta = nn.Parameter(torch.zeros(channels))
        self.log_a = nn.Parameter(torch.zeros(channels, STATES))
        self.skip = nn.Parameter(torch.ones(channels))
        self.out = nn.Linear(channels, D, bias=False)

    def forward(self, x: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        u = F.silu(self.inner(x))
        step = F.softplus(u + self.delta)
        decay = torch.exp(-torch.exp(self.log_a) * step.unsqueeze(-1))
        b, c = selected.chunk(2, dim=-1)
        state = torch.zeros_like(decay[:, 0])
        outs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (step[:, t] * u[:, t]).unsqueeze(-1) * b[:, t, None, :]
            outs.append((state * c[:, t, None, :]).sum(dim=-1))
        y = torch.stack(outs, dim=1) + self.skip * u
        return self.out(y * F.silu(self.gate(x)))


def scan(job: sp.Job) -> None:
    model = Scan()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(x + model(x, model.select(x)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def scan_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = D // n
        model = Scan(own)
        dims = {"inner.weight": 0, "gate.weight": 0, "delta": 0, "log_a": 0, "skip": 0}
        dims["out.weight"] = 1
        if mistake == "states of the first channels":
            parts = {k: sp.piece(k, dim=d, start=r * own, size=own) for k, d in dims.items()}
            parts["log_a"] = sp.piece("log_a", dim=0, start=0, size=own)
        else:
            parts = {k: sp.piece(k, dim=d, start=r * own, size=own) for k, d in dims.items()}
        job.start(model, parameters=parts)
        x = job.batch["x"]
        selected = model.select(x)
        if mistake != "selection's gradient of own channels":
            selected = copy_to(selected)
        loss = F.mse_loss(x + reduce_from(model(x, selected)), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


SCAN = Case(
    "a selective scan, channels over ranks",
    scan,
    scan_parallel(),
    {
        m: scan_parallel(m)
        for m in ("states of the first channels", "selection's gradient of own channels")
    },
    floats(x=(2, LENGTH, D), y=(2, LENGTH, D)),
)

# -- 2. A recurrent cell over a sequence, DDP. -----------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(D, D)
        self.read = nn.Linear(D, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], D)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.read(state)


def recurrent(job: sp.Job) -> None:
    model = Recurrent()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    job.start(model, optimizer)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["label"])
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    job.end(loss=loss)


def recurrent_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Recurrent()
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
        job.start(model, optimizer)
        x, label = rows(job, "x", "label")
        net = model if mistake == "the wrapper is not called" else wrapped
        loss = F.cross_entropy(net(x), label)
        loss.backward()
        if mistake != "never clipped":
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        job.end(loss=loss)

    return step


RECURRENT = Case(
    "a recurrent cell, clipped by value, RMSprop, DDP",
    recurrent,
    recurrent_parallel(),
    {m: recurrent_parallel(m) for m in ("the wrapper is not called", "never clipped")},
    {
        "x": sp.tensor((4, 3, D)),
        "label": sp.tensor((4,), torch.int64, low=0, high=3),
    },
)

CASES = [SCAN, RECURRENT]
