"""Nets of other kinds: complex rotary positions, recurrent layers, bags of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from

Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]


def replicated(
    name: str,
    make: Callable[[], nn.Module],
    loss: Loss,
    batch: Mapping[str, sp.TensorSpec],
    wrong: Mapping[str, Loss] | None = None,
) -> Case:
    """The same model on rows of the batch, gradients averaged; ``wrong``: other losses of ranks."""

    def single(job: sp.Job) -> None:
        model = make()
        job.start(model)
        total = loss(model, dict(job.batch))
        total.backward()
        job.end(loss=total)

    def parallel(own: Loss, op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG) -> Step:
        def step(job: sp.Job) -> None:
            model = make()
            job.start(model)
            rows = {k: v.chunk(job.world_size)[job.rank] for k, v in job.batch.items()}
            total = own(model, rows)
            total.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, op=op)
            job.end(loss=total)

        return step

    others = {mistake: parallel(own) for mistake, own in (wrong or {}).items()}
    summed = {"gradients summed": parallel(loss, dist.ReduceOp.SUM)}
    return Case(name, single, parallel(loss), summed | others, batch)


# -- 1. Rotary positions as complex numbers, heads over ranks. -------------------------------------

WIDTH, HEADS, TOKENS = 8, 2, 4


def frequencies(tokens: int, size: int) -> torch.Tensor:
    steps = 10.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(tokens).float(), steps)
    return torch.polar(torch.ones_like(angles), angles)


def turned(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by[None, :, None, :]).flatten(3).type_as(x)


class Rotary(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads, size = heads, WIDTH // HEADS
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * size, bias=False) for _ in range(3))
        self.o = nn.Linear(heads * size, WIDTH, bias=False)
        self.register_buffer("by", frequencies(TOKENS, size), persistent=False)

    def forward(self, x: torch.Tensor, of_keys: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (m(x).unflatten(-1, (self.heads, -1)) for m in (self.q, self.k, self.v))
        q, k = turned(q, self.by), turned(k, self.by if of_keys is None else of_keys)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


def rotary(job: sp.Job) -> None:
    model = Rotary()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def rotary_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        own = WIDTH // job.world_size
        model = Rotary(HEADS // job.world_size)
        at = {"start": own * job.rank, "size": own}
        job.start(
            model,
            parameters={f"{n}.weight": sp.piece(f"{n}.weight", dim=n == "o", **at) for n in "qkvo"},
        )
        by = None
        if mistake == "keys turned back":
            by = model.by.conj()
        if mistake == "keys a position late":
            by = torch.roll(model.by, 1, 0)
        y = reduce_from(model(copy_to(job.batch["x"]), by))
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


ROTARY = Case(
    "rotary positions as complex numbers, TP",
    rotary,
    rotary_parallel(),
    {m: rotary_parallel(m) for m in ("keys turned back", "keys a position late")},
    floats(x=(2, TOKENS, WIDTH), y=(2, TOKENS, WIDTH)),
)

# -- 2. Products of complex features. --------------------------------------------------------------


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, turn: bool = True) -> torch.Tensor:
        z, w = (torch.view_as_complex(m(x).unflatten(-1, (-1, 2))) for m in (self.a, self.b))
        return torch.view_as_real(z * (w.conj() if turn else w) + z).flatten(-2)


PAIRS = replicated(
    "products with conjugates, DP",
    Pairs,
    lambda m, b: F.mse_loss(m(b["x"]), b["y"]),
    floats(x=(4, WIDTH), y=(4, WIDTH)),
    {"no conjugate": lambda m, b: F.mse_loss(m(b["x"], False), b["y"])},
)

# -- 3. Recurrent layers. --------------------------------------------------------------------------


class Sequence(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], hidden: int, **options: bool) -> None:
        super().__init__()
        self.layer = kind(4, hidden, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def _layer(name: str, kind: type[nn.RNNBase], hidden: int, **options: bool) -> Case:
    return replicated(
        name,
        lambda: Sequence(kind, hidden, **options),
        lambda m, b: F.mse_loss(m(b["x"]), b["y"]),
        floats(x=(4, 3, 4), y=(4, 3, 6)),
    )


LSTM = _layer("an LSTM, DP", nn.LSTM, 6)
BOTH_WAYS = _layer("an LSTM both ways, DP", nn.LSTM, 3, bidirectional=True)
GRU = _layer("a GRU, DP", nn.GRU, 6)

# -- 4. Bags, distances, rounding. -----------------------------------------------------------------

BAGS = replicated(
    "means of embeddings of bags, DP",
    lambda: nn.EmbeddingBag(10, WIDTH, mode="mean"),
    lambda m, b: F.mse_loss(m(b["ids"]), b["y"]),
    {"ids": sp.tensor((4, 6), torch.int64, low=0, high=10), "y": sp.tensor((4, WIDTH))},
    {"the last id left out": lambda m, b: F.mse_loss(m(b["ids"][:, :5]), b["y"])},
)


class Codes(nn.Module):
    """Numbers that are rounded, with the gradient of those that are not; distances of them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.prototypes = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x: torch.Tensor, steps: float = 4.0) -> torch.Tensor:
        h = torch.atan(self.up(x))
        h = h + (torch.round(h * steps) / steps - h).detach()
        return torch.cdist(h, self.prototypes)


CODES = replicated(
    "rounded codes and their distances, DP",
    Codes,
    lambda m, b: F.mse_loss(m(b["x"]), b["y"]),
    floats(x=(4, WIDTH), y=(4, 5)),
    {"steps of another size": lambda m, b: F.mse_loss(m(b["x"], 2.0), b["y"])},
)

CASES = [ROTARY, PAIRS, LSTM, BOTH_WAYS, GRU, BAGS, CODES]
