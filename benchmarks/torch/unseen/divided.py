"""Divisions written by hand: copies of shards, stages, blocks of matrices, nodes of a graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from, rows

D, H = 8, 16
VECTORS = floats(x=(4, D), y=(4, D))

# -- 1. Hybrid shards: within two ranks parts, across two pairs copies. ----------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(H, D)), nn.Parameter(torch.randn(D, H))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.a.T) @ self.b.T


def two(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class Unshard(torch.autograd.Function):
    """The whole parameter; its gradient is cut among shards and averaged over copies."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, shards: Any, copies: Any) -> torch.Tensor:
        ctx.groups = shards, copies
        whole = part.new_empty(2 * part.shape[0], part.shape[1])
        dist.all_gather_into_tensor(whole, part, group=shards)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        shards, copies = ctx.groups
        part = grad.new_empty(grad.shape[0] // 2, grad.shape[1])
        dist.reduce_scatter_tensor(part, grad.contiguous(), group=shards)
        if copies is not None:
            dist.all_reduce(part, group=copies)
        return part / dist.get_world_size(), None, None


def two_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        shards, copies = pairs[job.rank // 2], across[job.rank % 2]
        at = job.rank % 2
        model = nn.Module()
        model.a, model.b = (
            nn.Parameter(torch.randn(H // 2, D)),
            nn.Parameter(torch.randn(D // 2, H)),
        )
        job.start(
            model,
            parameters={
                "a": sp.piece("a", dim=0, start=at * H // 2, size=H // 2),
                "b": sp.piece("b", dim=0, start=at * D // 2, size=D // 2),
            },
        )
        if mistake == "copies not reduced":
            copies = None
        elif mistake == "copies reduced within shards":
            copies = shards
        x, y = rows(job, "x", "y")
        a, b = (Unshard.apply(p, shards, copies) for p in (model.a, model.b))
        loss = F.mse_loss(torch.tanh(x @ a.T) @ b.T, y)
        loss.backward()
        job.end(loss=loss)

    return step


HYBRID = Case(
    "hybrid shards by hand, two by two",
    two,
    two_parallel(),
    {m: two_parallel(m) for m in ("copies not reduced", "copies reduced within shards")},
    VECTORS,
    4,
)

# -- 2. Three stages: all microbatches forward, then all backward. ---------------------------------

STAGES, MICRO = 3, 3


def stage_modules() -> nn.ModuleList:
    return nn.ModuleList([nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D)) for _ in range(STAGES)])


def staged(job: sp.Job) -> None:
    model = stage_modules()
    job.start(model)
    x = job.batch["x"]
    for layer in model:
        x = x + F.silu(layer(x))
    loss = F.mse_loss(x, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def staged_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        layer = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D))
        model = nn.ModuleDict({str(r): layer})
        job.start(model)
        xs, ys = job.batch["x"].chunk(MICRO), job.batch["y"].chunk(MICRO)
        inputs, outputs, losses, pending = [], [], [], []
        for m in range(MICRO):
            if r == 0:
                x = xs[m]
            else:
                x = torch.empty_like(xs[m])
                dist.irecv(x, r - 1).wait()
                x.requires_grad_()
            y = x + F.silu(layer(x))
            inputs.append(x)
            outputs.append(y)
            if r < n - 1:
                pending.append(dist.isend(y.detach(), r + 1))
            else:
                at = (m + 1) % MICRO if mistake == "targets of the next microbatch" else m
                losses.append(F.mse_loss(y, ys[at]) / MICRO)
        for m in range(MICRO):
            if r == n - 1:
                losses[m].backward()
            else:
                at = MICRO - 1 - m if mistake == "gradients in another order" else m
                grad = torch.empty_like(outputs[at])
                dist.irecv(grad, r + 1).wait()
                outputs[at].backward(grad)
            if r > 0:
                done = m if r == n - 1 else at
                pending.append(dist.isend(inputs[done].grad, r - 1))
        for work in pending:
            work.wait()
        job.end(loss=losses or None)

    return step


STAGED = Case(
    "three stages by isend and irecv, forward then backward",
    staged,
    staged_parallel(),
    {
        m: staged_parallel(m)
        for m in ("targets of the next microbatch", "gradients in another order")
    },
    floats(x=(6, D), y=(6, D)),
    3,
)

# -- 3. Positions in shards between parallel blocks, RMSNorm by hand. ------------------------------


class ToBlock(torch.autograd.Function):
    """Gathers positions; gradients are summed and cut."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class FromBlock(torch.autograd.Function):
    """Sums over ranks and cuts positions; gradients are gathered."""

    forward = ToBlock.backward
    backward = ToBlock.forward


class Palm(nn.Module):
    """Attention and a gated product beside each other, behind one norm; positions come first."""

    def __init__(self, ways: int = 1) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(D))
        self.heads = 4 // ways
        self.qkv = nn.Linear(D, 3 * D // ways, bias=False)
        self.gate, self.up = (nn.Linear(D, H // ways, bias=False) for _ in range(2))
        self.out, self.down = (
            nn.Linear(D // ways, D, bias=False),
            nn.Linear(H // ways, D, bias=False),
        )

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x, dim=-1) * D**0.5 * self.g

    def block(self, h: torch.Tensor) -> torch.Tensor:
        s, b, _ = h.shape
        q, k, v = self.qkv(h).view(s, b, self.heads, 3, -1).permute(3, 1, 2, 0, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = self.out(mixed.permute(2, 0, 1, 3).reshape(s, b, -1))
        return attended + self.down(F.silu(self.gate(h)) * self.up(h))


def palm(job: sp.Job) -> None:
    model = Palm()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(x + model.block(model.norm(x)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def palm_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Palm(n)
        parts = {}
        for name, dim, size in (
            ("qkv", 0, 3 * D),
            ("gate", 0, H),
            ("up", 0, H),
            ("out", 1, D),
            ("down", 1, H),
        ):
            key = f"{name}.weight"
            parts[key] = sp.piece(key, dim=dim, start=r * size // n, size=size // n)
        job.start(model, parameters=parts)
        x, y = (job.batch[k].chunk(n)[r] for k in ("x", "y"))
        h = ToBlock.apply(model.norm(x))
        loss = F.mse_loss(x + FromBlock.apply(model.block(h)), y) / n
        loss.backward()
        if mistake != "norm's gradient of own positions":
            dist.all_reduce(model.g.grad)
        if mistake == "projections summed over ranks":
            dist.all_reduce(model.out.weight.grad)
        dist.all_reduce(total := loss.detach().clone())
        job.end(loss=total)

    return step


PALM = Case(
    "parallel blocks between shards of positions, normalised by length",
    palm,
    palm_parallel(),
    {
        m: palm_parallel(m)
        for m in ("norm's gradient of own positions", "projections summed over ranks")
    },
    floats(x=(4, 2, D), y=(4, 2, D)),
)

# -- 4. Blocks of matrices on a square of ranks. ---------------------------------------------------


class Square(nn.Module):
    def __init__(self, rows: int = D, columns: int = D) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(rows, columns))
        self.v = nn.Parameter(torch.randn(rows, columns))


def square(job: sp.Job) -> None:
    model = Square()
    job.start(model)
    loss = F.mse_loss(torch.tanh(job.batch["x"] @ model.w) @ model.v, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def square_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        i, j = divmod(job.rank, 2)
        lines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        along, across = lines[i], columns[j]
        model = Square(D // 2, D // 2)
        for name in ("w", "v"):
            # The second product contracts what the first left divided over columns.
            at = (i, j) if name == "w" else (j, i)
            full = job.full[name].chunk(2, 0)[at[0]].chunk(2, 1)[at[1]]
            with torch.no_grad():
                getattr(model, name).copy_(full)
        job.start(model)
        x = job.batch["x"].chunk(2, 1)[i]
        h = reduce_from(x @ model.w, along if mistake == "summed along lines" else across)
        h = torch.tanh(copy_to(h, across))
        out = reduce_from(h @ model.v, along)
        target = job.batch["y"].chunk(2, 1)[0 if mistake == "targets of one column" else i]
        loss = (out - target).pow(2).sum() / job.batch["y"].numel()
        loss.backward()
        dist.all_reduce(total := loss.detach().clone(), group=across)
        job.end(loss=total)

    return step


SQUARE = Case(
    "matrices in blocks on a square of ranks",
    square,
    square_parallel(),
    {m: square_parallel(m) for m in ("summed along lines", "targets of one column")},
    VECTORS,
    4,
)

# -- 5. A graph: nodes over ranks, neighbours' features gathered. ----------------------------------

NODES = 4


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, 3)


class Neighbours(torch.autograd.Function):
    """Features of all nodes; gradients are summed and cut."""

    forward = ToBlock.forward
    backward = ToBlock.backward


def graph(job: sp.Job) -> None:
    model = Graph()
    job.start(model)
    a = job.batch["edges"]
    degree = a.sum(dim=1)
    mean = a / degree[:, None]
    h = F.elu(mean @ model.first(job.batch["x"]))
    logits = mean @ model.second(h)
    loss = F.cross_entropy(logits, job.batch["label"])
    loss.backward()
    job.end(loss=loss)


def graph_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = job.world_size
        model = Graph()
        job.start(model)
        a, x, label = rows(job, "edges", "x", "label")
        degree = a.sum(dim=1)
        if mistake == "degrees of columns":
            degree = job.batch["edges"].sum(dim=0).chunk(n)[job.rank]
        mean = a / degree[:, None]
        h = F.elu(mean @ Neighbours.apply(model.first(x)))
        z = model.second(h)
        if mistake == "gathered without gradient":
            whole = z.new_empty(NODES, 3)
            dist.all_gather_into_tensor(whole, z.detach())
            parts = list(whole.chunk(n))
            parts[job.rank] = z
            logits = mean @ torch.cat(parts)
        else:
            logits = mean @ Neighbours.apply(z)
        loss = F.cross_entropy(logits, label)
        (loss / n).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


GRAPH = Case(
    "a graph network, nodes over ranks",
    graph,
    graph_parallel(),
    {m: graph_parallel(m) for m in ("degrees of columns", "gathered without gradient")},
    {
        "edges": sp.tensor((NODES, NODES)),
        "x": sp.tensor((NODES, D)),
        "label": sp.tensor((NODES,), torch.int64, low=0, high=3),
    },
)

CASES = [HYBRID, STAGED, PALM, SQUARE, GRAPH]
