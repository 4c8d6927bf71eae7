"""Experts and tables over ranks: capacities and all-to-all, masks, shards of recommenders."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import WIDTH, Case, Step, copy_to, floats, reduce_from, rows

EXPERTS, CAPACITY = 4, 2

# -- 1. GShard: one expert per token, a capacity, one-hot dispatch, all-to-all. --------------------


class Gated(nn.Module):
    """Experts in one batched weight."""

    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.empty(own, WIDTH, 16))
        self.w2 = nn.Parameter(torch.empty(own, 16, WIDTH))

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where tokens [t, d] go [t, experts, capacity], and with which weight."""
        probabilities = self.gate(x).softmax(dim=-1)
        best = probabilities.argmax(dim=-1)
        chosen = F.one_hot(best, EXPERTS).float()
        place = (chosen.cumsum(dim=0) - 1.0) * chosen
        fits = chosen * (place < CAPACITY).float()
        slots = F.one_hot(place.sum(dim=-1).long().clamp(max=CAPACITY - 1), CAPACITY).float()
        dispatch = fits.unsqueeze(-1) * slots.unsqueeze(1)
        weight = (probabilities * fits).sum(dim=-1)
        return dispatch, dispatch * weight[:, None, None]

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, d] through each expert."""
        return torch.bmm(F.relu(torch.bmm(x, self.w1)), self.w2)


def gshard(job: sp.Job) -> None:
    """Two groups of tokens, each with its own capacity, as two ranks have them."""
    model = Gated()
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
        dispatch, combine = model.routed(x)
        found = model.experts(torch.einsum("tec,td->ecd", dispatch, x))
        losses.append(F.mse_loss(torch.einsum("tec,ecd->td", combine, found), y))
    loss = (losses[0] + losses[1]) / 2
    loss.backward()
    job.end(loss=loss)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad)
        return out


def gshard_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Gated(own)
        cut = {"dim": 0, "start": r * own, "size": own}
        job.start(model, parameters={w: sp.piece(w, **cut) for w in ("w1", "w2")})
        x, y = rows(job, "x", "y")
        dispatch, combine = model.routed(x)
        sent = torch.einsum("tec,td->ecd", dispatch, x)
        got = Exchange.apply(sent.view(n, own, CAPACITY, WIDTH))
        if mistake == "tokens of ranks not put together":
            found = model.experts(got.reshape(own, n * CAPACITY, WIDTH))
            back = found.reshape(n, own, CAPACITY, WIDTH)
        else:
            found = model.experts(got.transpose(0, 1).reshape(own, n * CAPACITY, WIDTH))
            back = found.view(own, n, CAPACITY, WIDTH).transpose(0, 1)
        out = Exchange.apply(back).reshape(EXPERTS, CAPACITY, WIDTH)
        loss = F.mse_loss(torch.einsum("tec,ecd->td", combine, out), y)
        loss.backward()
        dist.all_reduce(model.gate.weight.grad, op=dist.ReduceOp.AVG)
        for p in (model.w1, model.w2):
            if mistake != "gradients of experts not divided":
                p.grad /= n
        job.end(loss=loss)

    return step


GSHARD = Case(
    "mixture of experts with capacity, all-to-all",
    gshard,
    gshard_parallel(),
    {
        m: gshard_parallel(m)
        for m in ("tokens of ranks not put together", "gradients of experts not divided")
    },
    floats(x=(8, WIDTH), y=(8, WIDTH)),
)

# -- 2. The two best experts of each token, over ranks by masks. -----------------------------------


class Sparse(nn.Module):
    def __init__(self, own: range = range(EXPERTS)) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in own})

    def forward(self, x: torch.Tensor, routed: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.router(routed).softmax(dim=-1), 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for name, expert in self.experts.items():
            weight = (weights * (chosen == int(name))).sum(dim=-1, keepdim=True)
            out = out + weight * expert(x)
        return out


def sparse(job: sp.Job) -> None:
    model = Sparse()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(model(x, x), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def sparse_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        own = EXPERTS // job.world_size
        first = job.rank * own
        model = Sparse(range(first, first + own))
        job.start(model)
        x = job.batch["x"]
        part = model(x, x)
        out = part if mistake == "experts of one rank" else reduce_from(part)
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        if mistake != "gradient of the router not summed":
            for p in model.router.parameters():
                dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


SPARSE = Case(
    "two of four experts by masks, EP",
    sparse,
    sparse_parallel(),
    {m: sparse_parallel(m) for m in ("experts of one rank", "gradient of the router not summed")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 3. A recommender: tables over ranks, the dense part data parallel. ----------------------------

FIELDS, VALUES = 4, 6


class Recommender(nn.Module):
    def __init__(self, own: range = range(FIELDS)) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({str(i): nn.Embedding(VALUES, 4) for i in own})
        self.top = nn.Sequential(nn.Linear(4 * FIELDS, 8), nn.ReLU(), nn.Linear(8, 1))


def recommended(job: sp.Job) -> None:
    model = Recommender()
    job.start(model)
    fields = job.batch["fields"]
    vectors = [table(fields[:, int(i)]) for i, table in model.tables.items()]
    found = model.top(torch.cat(vectors, dim=1)).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(found, job.batch["clicked"])
    loss.backward()
    job.end(loss=loss)


def recommended_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = FIELDS // n
        model = Recommender(range(r * own, (r + 1) * own))
        job.start(model)
        fields = job.batch["fields"]
        vectors = torch.cat([t(fields[:, int(i)]) for i, t in model.tables.items()], dim=1)
        sent = vectors.view(n, -1, 4 * own)
        got = Exchange.apply(sent)
        if mistake == "fields of ranks not side by side":
            inputs = got.reshape(-1, 4 * FIELDS)
        else:
            inputs = got.transpose(0, 1).reshape(-1, 4 * FIELDS)
        found = model.top(inputs).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(found, rows(job, "clicked")[0])
        loss.backward()
        for p in model.top.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        if mistake != "tables not divided":
            for p in model.tables.parameters():
                p.grad /= n
        job.end(loss=loss)

    return step


RECOMMENDER = Case(
    "tables of a recommender over ranks, dense part data parallel",
    recommended,
    recommended_parallel(),
    {
        m: recommended_parallel(m)
        for m in ("fields of ranks not side by side", "tables not divided")
    },
    {
        "fields": sp.tensor((4, FIELDS), torch.int64, low=0, high=VALUES),
        "clicked": sp.tensor((4,)),
    },
)

# -- 4. A shared expert beside routed ones, an auxiliary loss of balance. --------------------------


class Balanced(nn.Module):
    def __init__(self, own: int = EXPERTS, hidden: int = 16) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.empty(WIDTH, EXPERTS))
        self.up = nn.Parameter(torch.empty(own, WIDTH, 4))
        self.down = nn.Parameter(torch.empty(own, 4, WIDTH))
        self.shared_up = nn.Linear(WIDTH, hidden, bias=False)
        self.shared_down = nn.Linear(hidden, WIDTH, bias=False)


def balance(scores: torch.Tensor) -> torch.Tensor:
    mean = scores.mean(dim=0)
    return EXPERTS * (mean * mean).sum() + 0.001 * torch.logsumexp(scores, dim=-1).pow(2).mean()


def balanced(job: sp.Job) -> None:
    model = Balanced()
    job.start(model)
    x = job.batch["x"]
    scores = torch.softmax(x @ model.router, dim=-1)
    inner = F.silu(torch.einsum("td,edh->teh", x, model.up))
    routed = torch.einsum("teh,ehd,te->td", inner, model.down, scores)
    y = routed + model.shared_down(F.silu(model.shared_up(x)))
    loss = F.mse_loss(y, job.batch["y"]) + 0.01 * balance(scores)
    loss.backward()
    job.end(loss=loss)


def balanced_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own, size = EXPERTS // n, 16 // n
        model = Balanced(own, size)
        job.start(
            model,
            parameters={
                "up": sp.piece("up", dim=0, start=r * own, size=own),
                "down": sp.piece("down", dim=0, start=r * own, size=own),
                "shared_up.weight": sp.piece("shared_up.weight", dim=0, start=r * size, size=size),
                "shared_down.weight": sp.piece(
                    "shared_down.weight", dim=1, start=r * size, size=size
                ),
            },
        )
        x = job.batch["x"]
        scores = torch.softmax(x @ model.router, dim=-1)
        mine = copy_to(scores)[:, r * own : (r + 1) * own]
        inner = F.silu(torch.einsum("td,edh->teh", x, model.up))
        routed = torch.einsum("teh,ehd,te->td", inner, model.down, mine)
        part = routed + model.shared_down(F.silu(model.shared_up(x)))
        if mistake == "shared expert after the all-reduce":
            y = reduce_from(routed) + model.shared_down(F.silu(model.shared_up(x)))
        else:
            y = reduce_from(part)
        loss = F.mse_loss(y, job.batch["y"])
        extra = 0.01 * balance(scores)
        (loss + extra).backward()
        if mistake == "auxiliary gradient summed over ranks":
            dist.all_reduce(model.router.grad)
        job.end(loss=loss + extra)

    return step


BALANCED = Case(
    "shared and routed experts with a loss of balance, EP and TP",
    balanced,
    balanced_parallel(),
    {
        m: balanced_parallel(m)
        for m in ("shared expert after the all-reduce", "auxiliary gradient summed over ranks")
    },
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

CASES = [GSHARD, SPARSE, RECOMMENDER, BALANCED]
