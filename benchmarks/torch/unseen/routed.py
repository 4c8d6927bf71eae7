"""Experts: GShard's two with places, DeepSeek's gate, sorted tokens, balance by counts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from, rows

D, H, EXPERTS, TOKENS = 8, 16, 4, 8
VECTORS = floats(x=(TOKENS, D), y=(TOKENS, D))


class Experts(nn.Module):
    def __init__(self, own: int = EXPERTS, hidden: int = H) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(own, D, hidden))
        self.w2 = nn.Parameter(torch.randn(own, hidden, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, d] through each."""
        return torch.bmm(F.silu(torch.bmm(x, self.w1)), self.w2)


def owned(job: sp.Job, prefix: str = "experts.") -> dict[str, Any]:
    own = EXPERTS // job.world_size
    names = (f"{prefix}w1", f"{prefix}w2")
    return {n: sp.piece(n, dim=0, start=job.rank * own, size=own) for n in names}


# -- 1. DeepSeek: sigmoid scores, a bias for the choice only, weights normalised, a shared expert.


class DeepSeek(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.bias = nn.Parameter(torch.zeros(EXPERTS), requires_grad=False)
        self.shared = nn.Sequential(nn.Linear(D, H), nn.SiLU(), nn.Linear(H, D))
        self.experts = Experts(own)

    def weights(self, x: torch.Tensor, biased: bool = False) -> torch.Tensor:
        scores = self.gate(x).sigmoid()
        which = torch.topk(scores + self.bias, 2, dim=-1, sorted=False).indices
        weight = (scores + self.bias if biased else scores).gather(1, which)
        weight = 2.5 * weight / weight.sum(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter(1, which, weight)


def deepseek(job: sp.Job) -> None:
    model = DeepSeek()
    job.start(model)
    x = job.batch["x"]
    found = model.experts(x.expand(EXPERTS, -1, -1))
    out = (model.weights(x).t().unsqueeze(-1) * found).sum(dim=0) + model.shared(x)
    loss = F.mse_loss(out, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def deepseek_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = DeepSeek(own)
        job.start(model, parameters=owned(job))
        x, y = rows(job, "x", "y")
        weights = model.weights(x, biased=mistake == "weights with the bias")
        every = torch.cat(differentiable.all_gather(x))
        gates = torch.cat(differentiable.all_gather(weights))[:, r * own : (r + 1) * own]
        found = model.experts(every.expand(own, -1, -1))
        part = (gates.t().unsqueeze(-1) * found).sum(dim=0)
        routed = torch.empty_like(x)
        routed = differentiable.reduce_scatter(routed, list(part.chunk(n)))
        loss = F.mse_loss(routed + model.shared(x), y)
        loss.backward()
        for name, p in model.named_parameters():
            if name.startswith("experts"):
                p.grad /= n  # type: ignore[operator]
            elif p.requires_grad and (mistake != "shared expert not reduced" or "gate" in name):
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


DEEPSEEK = Case(
    "sigmoid gates with a bias and a shared expert, tokens gathered, EP and DP",
    deepseek,
    deepseek_parallel(),
    {m: deepseek_parallel(m) for m in ("weights with the bias", "shared expert not reduced")},
    VECTORS,
)

# -- 2. Tokens sorted by expert, each with its expert's weights; hidden units divided. -------------


class Sorted(nn.Module):
    def __init__(self, hidden: int = H) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS)
        self.experts = Experts(EXPERTS, hidden)


def assigned(model: Sorted, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """For each of 2 * tokens, sorted by expert: its token, expert and weight; the scores."""
    logits = model.gate(x)
    weight, which = logits.softmax(dim=-1).topk(2, dim=-1)
    flat = which.reshape(-1)
    order = torch.argsort(flat, stable=True)
    return order // 2, flat[order], weight.reshape(-1)[order], logits


def sorted_dispatch(job: sp.Job) -> None:
    model = Sorted()
    job.start(model)
    x = job.batch["x"]
    token, expert, weight, logits = assigned(model, x)
    hidden = torch.einsum("td,tdh->th", x[token], model.experts.w1[expert])
    out = torch.einsum("th,thd->td", F.silu(hidden), model.experts.w2[expert])
    y = torch.zeros_like(x).index_add_(0, token, out * weight.unsqueeze(-1))
    loss = F.mse_loss(y, job.batch["y"]) + 0.001 * logits.logsumexp(-1).square().mean()
    loss.backward()
    job.end(loss=loss)


def sorted_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Sorted(H // n)
        own = {"start": r * (H // n), "size": H // n}
        job.start(
            model,
            parameters={
                "experts.w1": sp.piece("experts.w1", dim=2, **own),
                "experts.w2": sp.piece("experts.w2", dim=1, **own),
            },
        )
        x = job.batch["x"]
        token, expert, weight, logits = assigned(model, x)
        if mistake == "experts in the order of tokens":
            expert = expert.flip(0)
        chosen = x[token]
        hidden = torch.einsum("td,tdh->th", chosen, model.experts.w1[expert])
        out = torch.einsum("th,thd->td", F.silu(hidden), model.experts.w2[expert])
        if mistake != "gate's gradient partial":
            weight = copy_to(weight)
        y = torch.zeros_like(x).index_add_(0, token, out * weight.unsqueeze(-1))
        loss = F.mse_loss(reduce_from(y), job.batch["y"])
        loss = loss + 0.001 * logits.logsumexp(-1).square().mean()
        loss.backward()
        job.end(loss=loss)

    return step


SORTED = Case(
    "tokens sorted by expert, hidden units over ranks",
    sorted_dispatch,
    sorted_parallel(),
    {m: sorted_parallel(m) for m in ("experts in the order of tokens", "gate's gradient partial")},
    VECTORS,
)

# -- 3. Switch: balance from counts over all ranks, dense experts, data parallel. ------------------


class Balanced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = self.gate(x).softmax(dim=-1)
        weight, which = p.max(dim=-1)
        chosen = F.one_hot(which, EXPERTS).to(p.dtype)
        every = self.experts(x.expand(EXPERTS, -1, -1))
        out = torch.einsum("te,etd->td", chosen, every) * weight.unsqueeze(-1)
        return out, p, chosen


def balanced(job: sp.Job) -> None:
    model = Balanced()
    job.start(model)
    out, p, chosen = model(job.batch["x"])
    balance = EXPERTS * (chosen.mean(dim=0) * p.mean(dim=0)).sum()
    loss = F.mse_loss(out, job.batch["y"]) + 0.01 * balance
    loss.backward()
    job.end(loss=loss)


def balanced_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = job.world_size
        model = Balanced()
        job.start(model)
        x, y = rows(job, "x", "y")
        out, p, chosen = model(x)
        share = chosen.mean(dim=0)
        if mistake != "shares of own tokens":
            dist.all_reduce(share)
            share /= n
        balance = EXPERTS * (share * p.mean(dim=0)).sum()
        loss = F.mse_loss(out, y) + (0.01 / n if mistake == "balance divided" else 0.01) * balance
        loss.backward()
        for q in model.parameters():
            dist.all_reduce(q.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


BALANCED = Case(
    "one expert for each token, balance from counts over all ranks, DP",
    balanced,
    balanced_parallel(),
    {m: balanced_parallel(m) for m in ("shares of own tokens", "balance divided")},
    VECTORS,
)

# -- 4. GShard's two experts with places by cumsum; groups of tokens, all-to-all. ------------------

CAPACITY = 3


class GShard(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = Experts(own)

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, experts, capacity]: by which weight tokens come from slots; where they go."""
        p = self.gate(x).softmax(dim=-1)
        one = F.one_hot(p.argmax(dim=-1), EXPERTS)
        two = F.one_hot(p.masked_fill(one.bool(), float("-inf")).argmax(dim=-1), EXPERTS)
        place1 = one.cumsum(dim=0) - 1
        place2 = two.cumsum(dim=0) - 1 + one.sum(dim=0, keepdim=True)
        one, two = one * (place1 < CAPACITY), two * (place2 < CAPACITY)
        first, second = (p * one).sum(dim=-1), (p * two).sum(dim=-1)
        total = (first + second).clamp(min=1e-6)
        combine = torch.zeros(x.shape[0], EXPERTS, CAPACITY)
        for weight, mask, place in ((first, one, place1), (second, two, place2)):
            at = F.one_hot((place * mask).sum(dim=-1), TOKENS)[:, :CAPACITY].to(p.dtype)
            combine = combine + torch.einsum("t,te,tc->tec", weight / total, mask.to(p.dtype), at)
        return combine, (combine > 0).to(p.dtype)


def gshard(job: sp.Job) -> None:
    model = GShard()
    job.start(model)
    total = torch.zeros(())
    for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
        combine, dispatch = model.routed(x)
        found = model.experts(torch.einsum("tec,td->ecd", dispatch, x))
        total = total + F.mse_loss(torch.einsum("tec,ecd->td", combine, found), y) / 2
    total.backward()
    job.end(loss=total)


def gshard_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = job.world_size
        own = EXPERTS // n
        model = GShard(own)
        job.start(model, parameters=owned(job))
        x, y = rows(job, "x", "y")
        combine, dispatch = model.routed(x)
        sent = torch.einsum("tec,td->ecd", dispatch, x).contiguous()
        got = differentiable.all_to_all_single(torch.empty_like(sent), sent)
        got = got.view(n, own, CAPACITY, D).transpose(0, 1).reshape(own, n * CAPACITY, D)
        found = model.experts(got).view(own, n, CAPACITY, D)
        if mistake != "slots of ranks not put back":
            found = found.transpose(0, 1)
        back = found.reshape(EXPERTS, CAPACITY, D)
        back = differentiable.all_to_all_single(torch.empty_like(back), back)
        loss = F.mse_loss(torch.einsum("tec,ecd->td", combine, back), y)
        loss.backward()
        dist.all_reduce(model.gate.weight.grad, op=dist.ReduceOp.AVG)
        for p in model.experts.parameters():
            if mistake != "experts not divided":
                p.grad /= n  # type: ignore[operator]
        job.end(loss=loss)

    return step


GSHARD = Case(
    "two experts with places by cumsum, all-to-all of slots",
    gshard,
    gshard_parallel(),
    {m: gshard_parallel(m) for m in ("slots of ranks not put back", "experts not divided")},
    VECTORS,
)

# -- 5. A loop over experts with masks; each rank has its experts, tokens are replicated. ----------


class Looped(nn.Module):
    def __init__(self, which: range) -> None:
        super().__init__()
        self.which = which
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = nn.ModuleDict(
            {str(e): nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)) for e in which}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).topk(2, dim=-1)
        weight = (
            copy_to(weight.softmax(dim=-1)) if len(self.which) < EXPERTS else weight.softmax(-1)
        )
        out = torch.zeros_like(x)
        for e in self.which:
            gate = (weight * (chosen == e)).sum(dim=-1, keepdim=True)
            out = out + gate * self.experts[str(e)](x)
        return out


def looped(job: sp.Job) -> None:
    model = Looped(range(EXPERTS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.start(model, optimizer)
    loss = F.mse_loss(job.batch["x"] + model(job.batch["x"]), job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def looped_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Looped(range(r * own, (r + 1) * own))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.start(model, optimizer)
        x = job.batch["x"]
        if mistake == "input's residual summed too":
            out = reduce_from(x + model(x))
        else:
            out = x + reduce_from(model(x))
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        if mistake == "gradients of experts averaged":
            for p in model.experts.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        job.end(loss=loss)

    return step


LOOPED = Case(
    "a loop over experts with masks, EP, SGD",
    looped,
    looped_parallel(),
    {
        m: looped_parallel(m)
        for m in ("input's residual summed too", "gradients of experts averaged")
    },
    VECTORS,
)

CASES = [DEEPSEEK, SORTED, BALANCED, GSHARD, LOOPED]
