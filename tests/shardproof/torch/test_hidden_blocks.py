"""Blocks of scores that a causal mask hides as a whole: in rings they are multiplied by zero and
sent on, and not left out; of nothing but minus infinity the softmax is no number."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.attention import Attend, Turn  # noqa: E402
from benchmarks.torch.ordinary.parts import WIDTH, Step, floats  # noqa: E402

NOTHING = float("-inf")


def causal(job: sp.Job) -> None:
    model = Attend()
    job.start(model)
    x, y = job.batch["x"], job.batch["y"]
    scores = model.q(x) @ model.k(x).transpose(-1, -2) / math.sqrt(WIDTH)
    later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    loss = F.mse_loss(x + scores.masked_fill(later, NOTHING).softmax(-1) @ model.v(x), y)
    loss.backward()
    job.end(loss=loss)


def ring(mistake: str, turned: bool) -> Step:
    """``turned``: the larger maximum is asked for with the older one behind."""

    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        length = x.shape[1]
        q, k, v = model.q(x), model.k(x), model.v(x)
        mine = torch.arange(r * length, (r + 1) * length)[:, None]
        top = total = out = None
        for turn in range(n):
            source = (r + turn if mistake == "another rank's mask" else r - turn) % n
            theirs = torch.arange(source * length, (source + 1) * length)
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
            scores = scores.masked_fill(theirs > mine, NOTHING)
            new = scores.detach().amax(-1, keepdim=True)
            if top is not None:
                new = torch.maximum(new, top) if turned else torch.maximum(top, new)
            weights = (scores - new).exp()
            own, mixed = weights.sum(-1, keepdim=True), weights @ v
            if top is not None:
                fade = (top - new).exp()
                own = own + (total if mistake == "sum not rescaled" else total * fade)
                mixed = mixed + out * fade
            top, total, out = new, own, mixed
            if turn < n - 1:
                k, v = Turn.apply(k), Turn.apply(v)
        loss = F.mse_loss(x + out / total, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


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
    batch = floats(x=(2, 2 * ranks, WIDTH), y=(2, 2 * ranks, WIDTH))
    result = sp.verify(
        causal, ring(mistake, turned), world_size=ranks, batch=batch, executor="local", cache=False
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


# -- What is made of minus infinity alone --------------------------------------------------------

Make = Callable[[Tensor, Tensor], Tensor]
SIZE = 3
#: Of a mask [3, 3] that is true everywhere.
EVERYWHERE = torch.arange(SIZE)[:, None] + torch.arange(SIZE) >= 0


ALIKE: dict[str, tuple[Make, Make]] = {
    "exp": (lambda x, hidden: hidden.exp() + x, lambda x, hidden: x),
    "maximum": (
        lambda x, hidden: x + torch.maximum(hidden.detach().amax(1), x.detach()[0]),
        lambda x, hidden: x + x.detach()[0],
    ),
    "less": (lambda x, hidden: (hidden - x).exp() + x, lambda x, hidden: x),
    "logsumexp": (
        lambda x, hidden: hidden.detach().logsumexp(1, keepdim=True).exp() + x,
        lambda x, hidden: x,
    ),
    "where": (
        lambda x, hidden: torch.where(EVERYWHERE, NOTHING, x).exp() + x,
        lambda x, hidden: x,
    ),
    "nowhere": (
        lambda x, hidden: x.masked_fill(~EVERYWHERE, NOTHING).softmax(1),
        lambda x, hidden: x.softmax(1),
    ),
}


def step(make: Make) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(SIZE, SIZE, bias=False)
        job.start(model)
        x = model(job.batch["x"])
        loss = make(x, x.masked_fill(EVERYWHERE, NOTHING)).square().sum()
        loss.backward()
        job.end(loss=loss)

    return run


def verdict(one: Make, other: Make, folder: Path) -> str:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": folder / "run"}
    batch = {"x": sp.tensor((SIZE, SIZE))}
    return sp.verify(step(one), step(other), world_size=1, batch=batch, **options).verdict


@pytest.mark.parametrize("case", ALIKE)
def test_minus_infinity_alone(case: str, tmp_path: Path) -> None:
    assert verdict(*ALIKE[case], tmp_path) == "proved"


def test_minus_infinity_is_not_zero(tmp_path: Path) -> None:
    def shifted(x: Tensor, hidden: Tensor) -> Tensor:
        return hidden.exp() + x + 1

    assert verdict(shifted, lambda x, hidden: x, tmp_path) == "refuted"


@pytest.mark.parametrize(
    "make",
    [
        lambda x, hidden: hidden.softmax(1) + x,
        lambda x, hidden: hidden.log_softmax(1).exp() + x,
        lambda x, hidden: (hidden - hidden.amax(1, keepdim=True)).exp() + x,
        lambda x, hidden: (hidden - x.masked_fill(EVERYWHERE.tril(-1), NOTHING)).exp() + x,
    ],
    ids=["softmax", "log_softmax", "less itself", "less hidden scores"],
)
def test_what_is_no_number_is_not_proved(make: Make, tmp_path: Path) -> None:
    """PyTorch gives nan."""
    assert verdict(make, lambda x, hidden: x, tmp_path) == "inconclusive"
