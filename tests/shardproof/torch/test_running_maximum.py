"""Ring attention with a running maximum, captured: forward, and the backward that autograd records
where maxima are detached, beside what goes wrong there."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.attention import Attend, Turn, attended  # noqa: E402
from benchmarks.torch.ordinary.parts import WIDTH, Step, averaged, floats  # noqa: E402

NOTHING = float("-inf")


def causal(job: sp.Job) -> None:
    model = Attend()
    job.start(model)
    x, y = job.batch["x"], job.batch["y"]
    scores = model.q(x) @ model.k(x).transpose(-1, -2) / math.sqrt(WIDTH)
    later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    loss = F.mse_loss(scores.masked_fill(later, NOTHING).softmax(-1) @ model.v(x), y)
    loss.backward()
    job.end(loss=loss)


def _merged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    n: int,
    r: int,
    mistake: str,
    scale: float = 1.0,
    *,
    masked: bool = True,
    turned: bool = True,
) -> torch.Tensor:
    """Attention of this rank's queries; keys and values go round.  ``masked``: keys behind a query
    are hidden, and blocks that are hidden as a whole are not left out; ``turned``: the larger
    maximum is asked for with the older one behind."""
    length = q.shape[-2]
    mine = torch.arange(r * length, (r + 1) * length)[:, None]
    top = total = out = None
    for turn in range(n):
        scores = q @ k.mT / scale
        if masked:
            source = (r + turn if mistake == "another rank's mask" else r - turn) % n
            theirs = torch.arange(source * length, (source + 1) * length)
            scores = scores.masked_fill(theirs > mine, NOTHING)
        new = scores.detach().amax(-1, keepdim=True)
        if top is not None:
            new = torch.maximum(new, top) if turned else torch.maximum(top, new)
        weights = torch.exp(scores - new)
        own, mixed = weights.sum(-1, keepdim=True), weights @ v
        if top is not None:
            fade = torch.exp(top - new)
            own = own + (total if mistake == "sum not rescaled" else total * fade)
            mixed = mixed + out * fade
        top, total, out = new, own, mixed
        if turn < n - 1:
            k, v = Turn.apply(k), Turn.apply(v)
    return out / total


def ring(mistake: str = "", masked: bool = False, turned: bool = False) -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = model.q(x), model.k(x), model.v(x)
        mixed = _merged(q, k, v, n, r, mistake, math.sqrt(WIDTH), masked=masked, turned=turned)
        loss = F.mse_loss(mixed, y)
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    return step


def verdict(single: Step, parallel: Step, ranks: int) -> str:
    batch = floats(x=(2, 2 * ranks, WIDTH), y=(2, 2 * ranks, WIDTH))
    return sp.verify(
        single, parallel, world_size=ranks, batch=batch, executor="local", cache=False
    ).verdict


@pytest.mark.parametrize(
    ("ranks", "mistake"),
    [(2, ""), (2, "sum not rescaled"), pytest.param(4, "", marks=pytest.mark.slow)],
)
def test_ring_with_a_running_maximum(ranks: int, mistake: str) -> None:
    assert verdict(attended, ring(mistake), ranks) == ("refuted" if mistake else "proved")


@pytest.mark.parametrize(
    ("ranks", "mistake", "turned"),
    [
        (2, "", True),
        (2, "", False),
        (2, "sum not rescaled", True),
        pytest.param(3, "", True, marks=pytest.mark.slow),
        pytest.param(3, "another rank's mask", True, marks=pytest.mark.slow),
    ],
)
def test_a_causal_ring_that_leaves_nothing_out(ranks: int, mistake: str, turned: bool) -> None:
    parallel = ring(mistake, masked=True, turned=turned)
    assert verdict(causal, parallel, ranks) == ("refuted" if mistake else "proved")


class Layer(nn.Module):
    """Attention of one head, [rows, 1, positions, width], and a map beside it of the same norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)
        )

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x).unflatten(-1, (1, WIDTH)).transpose(1, 2) for f in (self.q, self.k, self.v)]

    def after(self, x: torch.Tensor, y: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        own = self.down(F.gelu(self.up(y)))
        return self.last(x + self.o(mixed.transpose(1, 2).flatten(2)) + own)


def beside(job: sp.Job) -> None:
    model = Layer()
    job.start(model)
    x = job.batch["x"]
    y = model.norm(x)
    q, k, v = model.heads(y)
    later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    scores = (q @ k.mT).masked_fill(later, NOTHING)
    loss = F.mse_loss(model.after(x, y, scores.softmax(-1) @ v), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def ring_beside(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Layer()
        job.start(model)
        x, target = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        y = model.norm(x)
        q, k, v = model.heads(y)
        mixed = _merged(q, k, v, n, r, mistake)
        loss = F.mse_loss(model.after(x, y, mixed), target)
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("mistake", ["", "sum not rescaled"])
def test_a_ring_of_one_head_beside_another_map(mistake: str) -> None:
    assert verdict(beside, ring_beside(mistake), 2) == ("refuted" if mistake else "proved")
