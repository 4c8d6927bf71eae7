"""Ring attention with a running maximum, captured: forward, and the backward that autograd records
where maxima are detached, beside what goes wrong there."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.attention import Attend, Turn, attended  # noqa: E402
from benchmarks.torch.ordinary.parts import WIDTH, Step, floats  # noqa: E402


def ring(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = model.q(x), model.k(x), model.v(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        top = scores.detach().amax(-1, keepdim=True)
        weights = torch.exp(scores - top)
        total, out = weights.sum(-1, keepdim=True), weights @ v
        for _ in range(n - 1):
            k, v = Turn.apply(k), Turn.apply(v)
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
            new = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
            weights = torch.exp(scores - new)
            fade = torch.exp(top - new)
            kept = total if mistake == "sum not rescaled" else total * fade
            total = kept + weights.sum(-1, keepdim=True)
            out = out * fade + weights @ v
            top = new
        loss = F.mse_loss(out / total, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("ranks", "mistake"),
    [(2, ""), (2, "sum not rescaled"), pytest.param(4, "", marks=pytest.mark.slow)],
)
def test_ring_with_a_running_maximum(ranks: int, mistake: str) -> None:
    batch = floats(x=(2, 2 * ranks, WIDTH), y=(2, 2 * ranks, WIDTH))
    found = sp.verify(
        attended, ring(mistake), world_size=ranks, batch=batch, executor="local", cache=False
    )
    assert found.verdict == ("refuted" if mistake else "proved"), found.reason
