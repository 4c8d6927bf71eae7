"""What stacks write by hand once more: Megatron's functions, shards of optimizers, schedules."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    WIDTH,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
    rows,
)

# -- 1. Columns and rows; the backward of the column-parallel product overlaps its all-reduce. -----


class Mlp(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)


def mlp(job: sp.Job) -> None:
    model = Mlp()
    job.start(model)
    h = torch.tanh(model.first(job.batch["x"]))
    loss = F.mse_loss(model.down(F.relu(model.up(h)).square()), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class ColumnLinear(torch.autograd.Function):
    """x w^T + b over [b, t, width]; the gradient of x is reduced while that of w is computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return torch.matmul(x, w.t()) + b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        grad_x = grad.matmul(w)
        handle = dist.all_reduce(grad_x, async_op=True)
        flat = grad.reshape(-1, grad.size(-1))
        grad_w = flat.t().matmul(x.reshape(-1, x.size(-1)))
        grad_b = flat.sum(dim=0)
        if handle is not None:
            handle.wait()
        return grad_x, grad_w, grad_b


class ColumnLinearAlone(ColumnLinear):
    """Its backward forgets the reduction."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        flat = grad.reshape(-1, grad.size(-1))
        return grad.matmul(w), flat.t().matmul(x.reshape(-1, x.size(-1))), flat.sum(dim=0)


def columns(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        size = 16 // job.world_size
        cut = {"start": job.rank * size, "size": size}
        model = Mlp(size)
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **cut),
                "up.bias": sp.piece("up.bias", dim=0, **cut),
                "down.weight": sp.piece("down.weight", dim=1, **cut),
            },
        )
        column: Any = ColumnLinearAlone if mistake else ColumnLinear
        h = torch.tanh(model.first(job.batch["x"]))
        h = F.relu(column.apply(h, model.up.weight, model.up.bias)).square()
        y = reduce_from(F.linear(h, model.down.weight)) + model.down.bias
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


COLUMNS = Case(
    "column and row parallel products with their own backward",
    mlp,
    columns(),
    {"gradient of the input not reduced": columns("gradient of the input not reduced")},
    floats(x=(2, 3, WIDTH), y=(2, 3, WIDTH)),
    4,
)

# -- 2. Megatron's cross entropy over a vocabulary in shards, one function forward and backward. ---


class Words(nn.Module):
    def __init__(self, vocabulary: int = CLASSES) -> None:
        super().__init__()
        self.word = nn.Parameter(torch.empty(vocabulary, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Parameter(torch.empty(vocabulary, WIDTH))


def words(job: sp.Job) -> None:
    model = Words()
    job.start(model)
    h = model.norm(F.embedding(job.batch["ids"], model.word))
    logits = h @ model.out.t()
    loss = F.cross_entropy(logits.view(-1, CLASSES), job.batch["labels"].view(-1))
    loss.backward()
    job.end(loss=loss)


class VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        top = torch.max(logits, dim=-1)[0]
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        logits = logits - top.unsqueeze(-1)
        own = logits.size(-1)
        start = dist.get_rank() * own
        outside = (target < start) | (target >= start + own)
        masked = target.clone() - start
        masked[outside] = 0
        flat = logits.view(-1, own)
        at = torch.arange(flat.size(0))
        predicted = flat[at, masked.view(-1)].clone().contiguous().view_as(target)
        predicted[outside] = 0.0
        dist.all_reduce(predicted)
        exps = logits.exp()
        total = exps.sum(dim=-1)
        dist.all_reduce(total)
        ctx.save_for_backward(exps / total.unsqueeze(-1), outside, masked.view(-1))
        return torch.log(total) - predicted

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        softmax, outside, masked = ctx.saved_tensors
        result = softmax.clone()
        flat = result.view(-1, softmax.size(-1))
        at = torch.arange(flat.size(0))
        flat[at, masked] -= 1.0 - outside.view(-1).float()
        return result.mul_(grad.unsqueeze(-1)), None


def vocabulary(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        own = CLASSES // job.world_size
        first = job.rank * own
        model = Words(own)
        cut = {"dim": 0, "start": first, "size": own}
        job.start(model, parameters={n: sp.piece(n, **cut) for n in ("word", "out")})
        tokens = job.batch["ids"]
        outside = (tokens < first) | (tokens >= first + own)
        local = tokens.clone() - first
        local[outside] = 0
        h = F.embedding(local, model.word)
        if not mistake:
            h[outside, :] = 0.0
        h = copy_to(model.norm(reduce_from(h)))
        losses = VocabParallelCrossEntropy.apply(h @ model.out.t(), job.batch["labels"])
        loss = losses.mean()
        loss.backward()
        job.end(loss=loss)

    return step


VOCABULARY = Case(
    "vocabulary-parallel embedding and cross entropy as Megatron has them",
    words,
    vocabulary(),
    {"rows of others not masked": vocabulary("rows of others not masked")},
    ids("ids", "labels", rows=2, length=3),
)

# -- 3. ZeRO-1 with AdamW over a flat buffer, whose shards begin inside parameters. ----------------


def adamw(job: sp.Job) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)
    job.start(model)
    loss = F.mse_loss(forward(model, job.batch["x"]), job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss, outputs={n: p.detach() for n, p in model.named_parameters()})


def forward(model: Mlp, x: torch.Tensor) -> torch.Tensor:
    return model.down(F.silu(model.up(model.first(x))))


def flat_shards(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Mlp()
        held = list(model.parameters())
        total = sum(p.numel() for p in held)
        padding = -total % n
        size = (total + padding) // n
        job.start(model)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(forward(model, x), y)
        loss.backward()
        with torch.no_grad():
            for p in held:
                p.grad /= n
                dist.all_reduce(p.grad)
            flat = _flatten_dense_tensors([p.data for p in held])
            flat = torch.cat([flat, torch.zeros(padding)])
            grads = torch.cat(
                [_flatten_dense_tensors([p.grad for p in held]), torch.zeros(padding)]
            )
        at = (r + 1) % n if mistake else r
        shard = nn.Parameter(flat.narrow(0, r * size, size).clone())
        shard.grad = grads.narrow(0, at * size, size).clone()
        torch.optim.AdamW([shard], lr=0.01, weight_decay=0.1, foreach=False).step()
        parts = [torch.empty(size) for _ in range(n)]
        dist.all_gather(parts, shard.detach())
        full = torch.cat(parts)[:total]
        for p, new in zip(held, _unflatten_dense_tensors(full, held), strict=True):
            p.data.copy_(new)
        job.end(loss=loss, outputs={k: p.detach() for k, p in model.named_parameters()})

    return step


FLAT = Case(
    "ZeRO-1 with AdamW, shards that begin inside parameters",
    adamw,
    flat_shards(),
    {"gradient of the next shard": flat_shards("gradient of the next shard")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 4. Two experts for each token, room for all tokens, all-to-all. -------------------------------

EXPERTS = 4


class Mixture(nn.Module):
    def __init__(self, own: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.empty(own, WIDTH, 8))
        self.w2 = nn.Parameter(torch.empty(own, 8, WIDTH))

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """Weights of experts [t, experts], zero but for the best two."""
        scores = F.softmax(self.gate(x), dim=-1)
        best, index = scores.topk(2, dim=-1)
        best = best / best.sum(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter(1, index, best)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, width] through each expert."""
        return F.gelu(x @ self.w1) @ self.w2


def mixture(job: sp.Job) -> None:
    model = Mixture()
    job.start(model)
    x = job.batch["x"]
    weights = model.weights(x)
    sent = (weights > 0).float().t().unsqueeze(-1) * x
    out = (model.run(sent) * weights.t().unsqueeze(-1)).sum(0)
    loss = F.mse_loss(x + out, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return AllToAll.apply(grad)  # type: ignore[no-any-return]


def exchanged(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = EXPERTS // n
        model = Mixture(own)
        cut = {"dim": 0, "start": r * own, "size": own}
        job.start(model, parameters={w: sp.piece(w, **cut) for w in ("w1", "w2")})
        x, y = rows(job, "x", "y")
        weights = model.weights(x)
        sent = (weights > 0).float().t().unsqueeze(-1) * x
        got = AllToAll.apply(sent)  # experts of this rank, from every rank
        tokens = got.view(n, own, -1, WIDTH).transpose(0, 1).flatten(1, 2)
        done = model.run(tokens).unflatten(1, (n, -1)).transpose(0, 1).flatten(0, 1)
        back = AllToAll.apply(done)
        out = (back * weights.t().unsqueeze(-1)).sum(0)
        loss = F.mse_loss(x + out, y)
        loss.backward()
        dist.all_reduce(model.gate.weight.grad)
        if not mistake:
            model.gate.weight.grad /= n
        for p in (model.w1, model.w2):
            p.grad /= n
        job.end(loss=loss)

    return step


MIXTURE = Case(
    "two experts for each token with room for all, all-to-all",
    mixture,
    exchanged(),
    {"gradient of the gate not divided": exchanged("gradient of the gate not divided")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 5. A pipeline by hand: 1F1B over two stages with batch_isend_irecv. ---------------------------


def staged(job: sp.Job) -> None:
    model = nn.ModuleDict({"0": nn.Linear(WIDTH, 6), "1": nn.Linear(6, WIDTH)})
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].chunk(3), job.batch["y"].chunk(3), strict=True):
        loss = F.mse_loss(model["1"](F.gelu(model["0"](x))), y) / 3
        loss.backward()
        losses.append(loss)
    job.end(loss=losses)


def moved(send: torch.Tensor | None, shape: tuple[int, ...] | None, peer: int) -> Any:
    """Send one tensor and receive another, at once."""
    got = None if shape is None else torch.empty(shape)
    ops = [] if send is None else [dist.P2POp(dist.isend, send, peer)]
    if got is not None:
        ops.append(dist.P2POp(dist.irecv, got, peer))
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return got


def one_f_one_b(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        first = job.rank == 0
        stage = nn.Linear(WIDTH, 6) if first else nn.Linear(6, WIDTH)
        model = nn.ModuleDict({"0" if first else "1": stage})
        job.start(model)
        xs, ys = job.batch["x"].chunk(3), job.batch["y"].chunk(3)
        hidden = (xs[0].size(0), 6)
        if first:
            outs = [F.gelu(stage(xs[0]))]
            moved(outs[0].detach(), None, 1)
            for i in range(3):
                if i < 2:
                    outs.append(F.gelu(stage(xs[i + 1])))
                    grad = moved(outs[i + 1].detach(), hidden, 1)
                else:
                    grad = moved(None, hidden, 1)
                outs[0 if mistake and i == 1 else i].backward(grad, retain_graph=bool(mistake))
            job.end()
            return
        losses = []
        got = moved(None, hidden, 0)
        for i in range(3):
            got.requires_grad_()
            loss = F.mse_loss(stage(got), ys[i]) / 3
            loss.backward()
            losses.append(loss)
            got = moved(got.grad, hidden if i < 2 else None, 0)
        job.end(loss=losses)

    return step


STAGES = Case(
    "1F1B by hand with batch_isend_irecv",
    staged,
    one_f_one_b(),
    {"gradient for another microbatch": one_f_one_b("gradient for another microbatch")},
    floats(x=(6, WIDTH), y=(6, WIDTH)),
)

CASES = [COLUMNS, VOCABULARY, FLAT, MIXTURE, STAGES]
