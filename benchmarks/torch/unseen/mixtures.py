"""Tokens that choose: Mixtral's two experts, experts that choose, mixture of depths, soft slots."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from

D, H, EXPERTS, TOKENS = 8, 16, 4, 8
VECTORS = floats(x=(TOKENS, D), y=(TOKENS, D))


class Experts(nn.Module):
    """Weights of several experts in one tensor, SwiGLU."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.randn(own, D, H)) for _ in range(2))
        self.w2 = nn.Parameter(torch.randn(own, H, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, d] through each."""
        return torch.bmm(F.silu(torch.bmm(x, self.w1)) * torch.bmm(x, self.w3), self.w2)


def pieces(job: sp.Job, *names: str) -> dict[str, Any]:
    own = EXPERTS // job.world_size
    return {n: sp.piece(n, dim=0, start=job.rank * own, size=own) for n in names}


WEIGHTS = ("experts.w1", "experts.w2", "experts.w3")

# -- 1. Mixtral: softmax over the two best scores; every expert sees every token. ------------------


class Mixtral(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = Experts(own)

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, experts], zero where an expert was not chosen."""
        best, which = torch.topk(self.gate(x), 2, dim=-1)
        return torch.zeros(x.shape[0], EXPERTS).scatter(1, which, best.softmax(dim=-1))


def mixtral(job: sp.Job) -> None:
    model = Mixtral()
    job.start(model)
    x = job.batch["x"]
    every = model.experts(x.expand(EXPERTS, -1, -1))
    out = torch.einsum("te,etd->td", model.weights(x), every)
    loss = F.mse_loss(x + out, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def mixtral_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Mixtral(own)
        job.start(model, parameters=pieces(job, *WEIGHTS))
        x = job.batch["x"]
        weights = model.weights(x)
        if mistake != "gradient of the gate not summed":
            weights = copy_to(weights)
        at = (r + 1) % n if mistake == "weights of the next rank's experts" else r
        mine = weights[:, at * own : (at + 1) * own]
        out = torch.einsum("te,etd->td", mine, model.experts(x.expand(own, -1, -1)))
        loss = F.mse_loss(x + reduce_from(out), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


MIXTRAL = Case(
    "softmax over the two best experts, dense, EP",
    mixtral,
    mixtral_parallel(),
    {
        m: mixtral_parallel(m)
        for m in ("gradient of the gate not summed", "weights of the next rank's experts")
    },
    VECTORS,
)

# -- 2. Top-1 with a capacity for each row of the batch, data parallel over rows. ------------------


class Switch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, EXPERTS)
        self.experts = Experts(EXPERTS)

    def forward(self, x: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, tokens, d]; the loss of balance beside."""
        p = self.router(x).softmax(dim=-1)
        weight, which = p.max(dim=-1)
        chosen = F.one_hot(which, EXPERTS).to(x.dtype)
        place = chosen.cumsum(dim=1) * chosen
        kept = chosen * (place <= capacity)
        every = self.experts(x.reshape(1, -1, D).expand(EXPERTS, -1, -1)).view(EXPERTS, *x.shape)
        out = torch.einsum("bte,ebtd->btd", kept * weight.unsqueeze(-1), every)
        balance = EXPERTS * (chosen.mean(dim=1) * p.mean(dim=1)).sum(dim=-1).mean()
        return x + out, balance


def switch(job: sp.Job) -> None:
    model = Switch()
    job.start(model)
    y, balance = model(job.batch["x"], 2)
    loss = F.mse_loss(y, job.batch["y"]) + 0.01 * balance
    loss.backward()
    job.end(loss=loss)


def switch_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Switch()
        job.start(model)
        x, target = (job.batch[k].chunk(n)[r] for k in ("x", "y"))
        y, balance = model(x, 1 if mistake == "capacity divided by ranks" else 2)
        loss = F.mse_loss(y, target)
        if mistake == "balance times ranks":
            loss = loss + 0.01 * n * balance
        else:
            loss = loss + 0.01 * balance
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


SWITCH = Case(
    "one expert for each token, a capacity for each row, DP",
    switch,
    switch_parallel(),
    {m: switch_parallel(m) for m in ("capacity divided by ranks", "balance times ranks")},
    floats(x=(4, 4, D), y=(4, 4, D)),
)

# -- 3. Experts choose tokens. ---------------------------------------------------------------------


class Choosing(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = Experts(own)

    def part(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """What the experts of ``scores`` [tokens, experts] add to tokens."""
        weight, which = torch.topk(scores.t(), 3, dim=-1)
        chosen = x[which]
        out = self.experts(chosen) * weight.unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, which.reshape(-1), out.reshape(-1, D))


def choosing(job: sp.Job) -> None:
    model = Choosing()
    job.start(model)
    x = job.batch["x"]
    out = model.part(x, model.gate(x).softmax(dim=-1))
    loss = F.mse_loss(x + out, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def choosing_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Choosing(own)
        job.start(model, parameters=pieces(job, *WEIGHTS))
        x = job.batch["x"]
        scores = copy_to(model.gate(x).softmax(dim=-1))
        mine = scores[:, r * own : (r + 1) * own]
        if mistake == "softmax over own experts":
            mine = copy_to(model.gate(x))[:, r * own : (r + 1) * own].softmax(dim=-1)
        part = model.part(x, mine)
        out = part if mistake == "outputs not summed" else reduce_from(part)
        loss = F.mse_loss(x + out, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


CHOOSING = Case(
    "experts choose their tokens, EP",
    choosing,
    choosing_parallel(),
    {m: choosing_parallel(m) for m in ("softmax over own experts", "outputs not summed")},
    VECTORS,
)

# -- 4. Mixture of depths: only some tokens go through the block, which is divided. ----------------


class Depths(nn.Module):
    def __init__(self, hidden: int = H) -> None:
        super().__init__()
        self.router = nn.Linear(D, 1, bias=False)
        self.up = nn.Linear(D, hidden, bias=False)
        self.down = nn.Linear(hidden, D, bias=False)

    def chosen(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight, which = torch.topk(self.router(x).squeeze(-1), x.shape[1] // 2, dim=1)
        return weight, which.unsqueeze(-1).expand(-1, -1, D)


def depths(job: sp.Job) -> None:
    model = Depths()
    job.start(model)
    x = job.batch["x"]
    weight, which = model.chosen(x)
    inner = model.down(F.relu(model.up(x.gather(1, which))))
    y = x.scatter_add(1, which, inner * weight.sigmoid().unsqueeze(-1))
    loss = F.mse_loss(y, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def depths_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Depths(H // n)
        own = {"start": r * (H // n), "size": H // n}
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **own),
                "down.weight": sp.piece("down.weight", dim=1, **own),
            },
        )
        x = job.batch["x"]
        weight, which = model.chosen(x)
        gate = weight.sigmoid().unsqueeze(-1)
        part = model.down(F.relu(model.up(x.gather(1, which))))
        if mistake == "gate's gradient partial":
            inner = reduce_from(part * gate)
        else:
            inner = reduce_from(part) * gate
        if mistake == "added on every rank":
            y = reduce_from(x.scatter_add(1, which, part * copy_to(gate)))
        else:
            y = x.scatter_add(1, which, inner)
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


DEPTHS = Case(
    "mixture of depths, the block divided",
    depths,
    depths_parallel(),
    {m: depths_parallel(m) for m in ("gate's gradient partial", "added on every rank")},
    floats(x=(2, 4, D), y=(2, 4, D)),
)

# -- 5. Soft mixture: slots are mixtures of all tokens. --------------------------------------------

SLOTS = 2


class Soft(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.randn(D, own, SLOTS))
        self.scale = nn.Parameter(torch.ones(()))
        self.experts = Experts(own)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("td,des->tes", F.normalize(x, dim=-1), self.phi) * self.scale


def soft(job: sp.Job) -> None:
    model = Soft()
    job.start(model)
    x = job.batch["x"]
    logits = model.logits(x)
    slots = torch.einsum("tes,td->esd", logits.softmax(dim=0), x)
    combine = logits.flatten(1).softmax(dim=-1).view_as(logits)
    y = torch.einsum("tes,esd->td", combine, model.experts(slots))
    loss = F.mse_loss(y, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def soft_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Soft(own)
        parameters = pieces(job, *WEIGHTS)
        parameters["phi"] = sp.piece("phi", dim=1, start=r * own, size=own)
        job.start(model, parameters=parameters)
        x = job.batch["x"]
        logits = model.logits(x)
        slots = torch.einsum("tes,td->esd", logits.softmax(dim=0), x)
        every = torch.exp(logits)
        total = every.sum(dim=(1, 2), keepdim=True)
        if mistake != "denominator of own slots":
            total = differentiable.all_reduce(total)
        y = reduce_from(torch.einsum("tes,esd->td", every / total, model.experts(slots)))
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        if mistake != "scale's gradient not summed":
            dist.all_reduce(model.scale.grad)
        job.end(loss=loss)

    return step


SOFT = Case(
    "soft mixture of experts, slots over ranks",
    soft,
    soft_parallel(),
    {m: soft_parallel(m) for m in ("denominator of own slots", "scale's gradient not summed")},
    VECTORS,
)

CASES = [MIXTRAL, SWITCH, CHOOSING, DEPTHS, SOFT]
