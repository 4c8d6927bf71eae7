"""Steps by what they learn from: pairs, groups of answers, games, generators, tables, graphs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
    rows,
)

D, H = 8, 16


def averaged(*models: nn.Module) -> None:
    for model in models:
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


# -- 1. OpenCLIP's local loss: own rows against gathered columns, a learned temperature. -----------


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(D, H), nn.Linear(D, H)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.normalize(self.image(x), dim=-1), F.normalize(self.text(y), dim=-1)


def clip(job: sp.Job) -> None:
    model = Towers()
    job.start(model)
    a, b = model(job.batch["x"], job.batch["y"])
    scores = model.temperature.exp() * a @ b.T
    labels = torch.arange(len(a))
    loss = (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2
    loss.backward()
    job.end(loss=loss)


def clip_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Towers()
        job.start(model)
        a, b = model(*rows(job, "x", "y"))
        if mistake == "gathered without gradient":
            parts: list[list[torch.Tensor]] = []
            for own in (a, b):
                every = [torch.empty_like(own) for _ in range(job.world_size)]
                dist.all_gather(every, own.detach())
                every[job.rank] = own
                parts.append(every)
            all_a, all_b = (torch.cat(p) for p in parts)
        else:
            all_a, all_b = (torch.cat(differentiable.all_gather(t)) for t in (a, b))
        scale = model.temperature.exp()
        labels = torch.arange(len(a))
        if mistake != "labels of the first rank":
            labels = labels + job.rank * len(a)
        loss = F.cross_entropy(scale * a @ all_b.T, labels)
        loss = (loss + F.cross_entropy(scale * b @ all_a.T, labels)) / 2
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    return step


CLIP = Case(
    "own rows against gathered columns, a temperature, DP",
    clip,
    clip_parallel(),
    {m: clip_parallel(m) for m in ("gathered without gradient", "labels of the first rank")},
    floats(x=(4, D), y=(4, D)),
)

# -- 2. GRPO: advantages within groups, ratios clipped, KL to a reference, mean over all tokens. ---

ANSWERS = {
    **ids("tokens", rows=8),
    **floats(reward=(8,), mask=(8, 4), old=(8, 4), reference=(8, 4)),
}


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Embedding(CLASSES, D), nn.Linear(D, H)
        self.head = nn.Linear(H, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(F.relu(self.up(self.embed(tokens))))
        return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def grpo_terms(logp: torch.Tensor, data: Any, advantage: torch.Tensor) -> torch.Tensor:
    ratio = (logp - data["old"]).exp()
    advantage = advantage.unsqueeze(-1)
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    away = data["reference"] - logp
    return -(gain - 0.04 * (away.exp() - away - 1)) * data["mask"]


def advantages(reward: torch.Tensor) -> torch.Tensor:
    groups = reward.view(-1, 4)
    spread = groups.std(dim=1, keepdim=True) + 1e-4
    return ((groups - groups.mean(dim=1, keepdim=True)) / spread).flatten()


def grpo(job: sp.Job) -> None:
    model = Policy()
    job.start(model)
    terms = grpo_terms(model(job.batch["tokens"]), job.batch, advantages(job.batch["reward"]))
    loss = terms.sum() / job.batch["mask"].sum()
    loss.backward()
    job.end(loss=loss)


def grpo_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Policy()
        job.start(model)
        data = {k: v.chunk(n)[r] for k, v in job.batch.items()}
        terms = grpo_terms(model(data["tokens"]), data, advantages(data["reward"]))
        count = data["mask"].sum()
        if mistake != "mean over own tokens":
            dist.all_reduce(count)
        loss = terms.sum() / count
        loss.backward()
        for p in model.parameters():
            op = dist.ReduceOp.AVG if mistake == "averaged as well" else dist.ReduceOp.SUM
            dist.all_reduce(p.grad, op=op)
        job.end(loss=loss)

    return step


GRPO = Case(
    "advantages within groups, clipped ratios, KL, mean over all tokens, DP",
    grpo,
    grpo_parallel(),
    {m: grpo_parallel(m) for m in ("mean over own tokens", "averaged as well")},
    ANSWERS,
)

# -- 3. A generator and a critic with an optimizer each, DDP. --------------------------------------


class Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D))
        self.d = nn.Sequential(nn.Linear(D, H), nn.LeakyReLU(0.2), nn.Linear(H, 1))


def played(game: Game, g: Any, d: Any, z: torch.Tensor, real: torch.Tensor, detach: bool) -> Any:
    first = torch.optim.SGD(game.d.parameters(), lr=0.1)
    second = torch.optim.SGD(game.g.parameters(), lr=0.1)
    fake = g(z)
    on_real, on_fake = d(real), d(fake.detach() if detach else fake)
    critic = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
    critic = critic + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
    critic.backward(retain_graph=not detach)
    first.step()
    first.zero_grad()
    fooled = game.d(fake)
    loss = F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
    loss.backward()
    second.step()
    return critic.detach() + loss.detach()


def after(model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"new {n}": p.detach() for n, p in model.named_parameters()}


def gan(job: sp.Job) -> None:
    game = Game()
    job.start(game)
    loss = played(game, game.g, game.d, job.batch["x"], job.batch["y"], True)
    for p in game.parameters():
        p.grad = None
    job.end(loss=loss, outputs=after(game))


def gan_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        game = Game()
        g, d = DistributedDataParallel(game.g), DistributedDataParallel(game.d)
        job.start(game)
        x, y = rows(job, "x", "y")
        if mistake == "critic not wrapped":
            d = game.d  # type: ignore[assignment]
        loss = played(game, g, d, x, y, mistake != "fakes not detached")
        for p in game.parameters():
            p.grad = None
        job.end(loss=loss, outputs=after(game))

    return step


GAN = Case(
    "a generator and a critic, an optimizer each, DDP",
    gan,
    gan_parallel(),
    {m: gan_parallel(m) for m in ("critic not wrapped", "fakes not detached")},
    floats(x=(4, D), y=(4, D)),
)

# -- 4. Double Q-learning with a target that follows, DP. ------------------------------------------

PLAYS = {
    **floats(state=(8, D), next=(8, D), reward=(8,), done=(8,)),
    "action": sp.tensor((8,), torch.int64, low=0, high=4),
}


class Q(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, 4))
        self.target = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, 4))
        self.target.requires_grad_(False)


def learnt(model: Q, data: Any, double: bool = True) -> torch.Tensor:
    value = model.online(data["state"]).gather(1, data["action"].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        later = model.target(data["next"])
        best = (model.online(data["next"]) if double else later).argmax(dim=1, keepdim=True)
        goal = data["reward"] + 0.99 * (1 - data["done"]) * later.gather(1, best).squeeze(1)
    return F.smooth_l1_loss(value, goal)


def follow(model: Q) -> None:
    with torch.no_grad():
        for p, slow in zip(model.online.parameters(), model.target.parameters(), strict=True):
            p.sub_(0.01 * p.grad)  # type: ignore[operator]
            slow.mul_(0.995).add_(p, alpha=0.005)


def q_learning(job: sp.Job) -> None:
    model = Q()
    job.start(model)
    loss = learnt(model, job.batch)
    loss.backward()
    follow(model)
    job.end(loss=loss, outputs=after(model))


def q_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Q()
        job.start(model)
        data = {k: v.chunk(job.world_size)[job.rank] for k, v in job.batch.items()}
        loss = learnt(model, data, mistake != "best by the target")
        loss.backward()
        if mistake == "averaged after the step":
            follow(model)
            averaged(model)
        else:
            averaged(model)
            follow(model)
        job.end(loss=loss, outputs=after(model))

    return step


Q_LEARNING = Case(
    "double Q-learning with a target that follows, DP",
    q_learning,
    q_parallel(),
    {m: q_parallel(m) for m in ("best by the target", "averaged after the step")},
    PLAYS,
)

# -- 5. Two towers: tables by rows, softmax over the batch with a correction, weights. -------------

TABLE = 12
PAIRS = {
    "user": sp.tensor((4,), torch.int64, low=0, high=TABLE),
    "item": sp.tensor((4,), torch.int64, low=0, high=TABLE),
    **floats(logq=(4,), weight=(4,)),
}


class Recommender(nn.Module):
    def __init__(self, own: int = TABLE) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(own, D), nn.Embedding(own, D)
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)


def recommended(job: sp.Job) -> None:
    model = Recommender()
    job.start(model)
    u = model.first(model.users(job.batch["user"]))
    v = model.second(model.items(job.batch["item"]))
    scores = u @ v.T - job.batch["logq"]
    terms = F.cross_entropy(scores, torch.arange(4), reduction="none")
    loss = (job.batch["weight"] * terms).sum() / job.batch["weight"].sum()
    loss.backward()
    job.end(loss=loss)


def looked_up(table: nn.Embedding, which: torch.Tensor, start: int) -> torch.Tensor:
    """Rows of a table of which this rank has some."""
    local = which - start
    mine = (local >= 0) & (local < table.num_embeddings)
    found = table(local.masked_fill(~mine, 0)) * mine.unsqueeze(-1)
    return reduce_from(found)


def recommended_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = TABLE // n
        model = Recommender(own)
        cut = {"dim": 0, "start": r * own, "size": own}
        names = ("users.weight", "items.weight")
        job.start(model, parameters={k: sp.piece(k, **cut) for k in names})
        start = 0 if mistake == "rows counted from 0" else r * own
        users, items = (
            looked_up(t, job.batch[k], start)
            for t, k in ((model.users, "user"), (model.items, "item"))
        )
        u = model.first(copy_to(users).chunk(n)[r])
        v = torch.cat(differentiable.all_gather(model.second(copy_to(items).chunk(n)[r])))
        scores = u @ v.T - job.batch["logq"]
        labels = torch.arange(4).chunk(n)[r]
        terms = F.cross_entropy(scores, labels, reduction="none")
        own_weight = job.batch["weight"].chunk(n)[r]
        count = own_weight.sum() if mistake == "own weights" else job.batch["weight"].sum()
        loss = (own_weight * terms).sum() / count
        loss.backward()
        for layer in (model.first, model.second):
            for p in layer.parameters():
                dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


RECOMMENDED = Case(
    "two towers, tables by rows, softmax over the batch",
    recommended,
    recommended_parallel(),
    {m: recommended_parallel(m) for m in ("rows counted from 0", "own weights")},
    PAIRS,
)

# -- 6. Messages along edges of a graph; edges over ranks. -----------------------------------------

EDGES = {
    **floats(x=(6, D), y=(6, D)),
    "source": sp.tensor((8,), torch.int64, low=0, high=6),
    "target": sp.tensor((8,), torch.int64, low=0, high=6),
}


class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * D, D), nn.Linear(2 * D, D)

    def received(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        sent = F.relu(self.message(torch.cat((x[source], x[target]), dim=-1)))
        return torch.zeros_like(x).index_add(0, target, sent)


def messages(job: sp.Job) -> None:
    model = Messages()
    job.start(model)
    x = job.batch["x"]
    got = model.received(x, job.batch["source"], job.batch["target"])
    loss = F.mse_loss(model.update(torch.cat((x, got), dim=-1)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def messages_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Messages()
        job.start(model)
        x = job.batch["x"]
        source, target = rows(job, "source", "target")
        if mistake == "targets of the first rank":
            (target,) = rows(job, "target", at=0)
        got = reduce_from(model.received(x, source, target))
        loss = F.mse_loss(model.update(torch.cat((x, got), dim=-1)), job.batch["y"])
        loss.backward()
        if mistake != "messages' gradients not summed":
            for p in model.message.parameters():
                dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


MESSAGES = Case(
    "messages along edges, edges over ranks",
    messages,
    messages_parallel(),
    {
        m: messages_parallel(m)
        for m in ("targets of the first rank", "messages' gradients not summed")
    },
    EDGES,
)

CASES = [CLIP, GRPO, GAN, Q_LEARNING, RECOMMENDED, MESSAGES]
