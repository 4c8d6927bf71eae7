"""Causal attention in a ring that subtracts the largest score so far, beside a single device that
subtracts the largest of all and divides at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step  # noqa: E402
from shardproof.api import check  # noqa: E402
from tests.shardproof.torch.test_merged_rings import (  # noqa: E402
    POSITIONS,
    ROWS,
    WIDTH,
    Attention,
    turned,
)
from tests.shardproof.torch.test_zigzag import scores  # noqa: E402

RANKS = 2


def single(job: sp.Job) -> None:
    net = Attention()
    job.start(net)
    q, k, v = (m(job.batch["x"]) for m in (net.q, net.k, net.v))
    s = scores(q, k, masked=True)
    e = (s - s.amax(-1, keepdim=True)).exp()
    job.end(loss=F.mse_loss((e @ v) / e.sum(-1, keepdim=True), job.batch["y"]).detach())


def joined(
    s: Tensor, v: Tensor, before: tuple[Tensor, Tensor, Tensor] | None, fades: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted values, the sum of the weights and the largest score, with another block."""
    most = s.amax(-1, keepdim=True)
    most = most if before is None else torch.maximum(before[2], most)
    e = (s - most).exp()
    out, total = e @ v, e.sum(-1, keepdim=True)
    if before is None:
        return out, total, most
    fade = (before[2] - most).exp() if fades else torch.ones(())
    return before[0] * fade + out, before[1] * fade + total, most


def ring(fades: bool) -> Step:
    def step(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        x, y = (job.batch[name].chunk(RANKS, 1)[job.rank].detach() for name in ("x", "y"))
        with torch.no_grad():
            q, k, v = net.q(x), net.k(x), net.v(x)
            state: tuple[Tensor, Tensor, Tensor] | None = None
            for turn in range(RANKS):
                of = (job.rank - turn) % RANKS
                if of <= job.rank:
                    state = joined(scores(q, k, masked=of == job.rank), v, state, fades)
                if turn + 1 < RANKS:
                    k, v = turned(k, 1), turned(v, 1)
        assert state is not None
        job.end(loss=F.mse_loss(state[0] / state[1], y))

    return step


@pytest.mark.parametrize(("fades", "verdict"), [(True, "proved"), (False, "refuted")])
def test_a_causal_ring_of_running_maxima(tmp_path: Path, fades: bool, verdict: str) -> None:
    batch = {name: sp.tensor((ROWS, RANKS * POSITIONS, WIDTH)) for name in ("x", "y")}
    options = {"out": tmp_path / "run", "executor": "local", "cache": False, "combine": "mean"}
    result = sp.verify(single, ring(fades), world_size=RANKS, batch=batch, **options)
    assert result.verdict == verdict, result
    # What it divides by is positive in the rows that have a key of the first block.
    assert check(tmp_path / "run").ok
