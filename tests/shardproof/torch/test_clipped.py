"""Gradients of a wrong size that are clipped to one norm, by ranks that own some parameters each
(ZeRO-1): they show where the norm is not reached."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402

RANKS, NORM = 2, 1.0


@pytest.mark.parametrize(("divided", "expected"), [(True, "proved"), (False, "refuted")])
def test_sums_and_means_of_ranks(divided: bool, expected: str, tmp_path: Path) -> None:
    """``divided``: the sum of the ranks' gradients becomes their mean, before it is clipped."""

    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))

    def single(job: sp.Job) -> None:
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = made()
        named = list(model.named_parameters())
        own = [p for _, p in named][2 * job.rank : 2 * job.rank + 2]
        optimizer = torch.optim.AdamW(own, lr=0.01)
        owner = {name: i // 2 for i, (name, _) in enumerate(named)}
        job.start(
            model,
            optimizer,
            owned={n: range(p.numel() if owner[n] == job.rank else 0) for n, p in named},
        )
        x, y = (job.batch[n].chunk(RANKS)[job.rank] for n in ("x", "y"))
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for name, parameter in named:
            dist.reduce(parameter.grad, owner[name])
            if divided:
                parameter.grad /= RANKS
        total = sum(p.grad.square().sum() for p in own)
        dist.all_reduce(total)
        for parameter in own:
            parameter.grad *= torch.clamp(NORM / (total.sqrt() + 1e-6), max=1.0)
        optimizer.step()
        for name, parameter in named:
            dist.broadcast(parameter.data, owner[name])
        job.end(loss=loss)

    result = sp.verify(
        single,
        parallel,
        world_size=RANKS,
        batch={"x": sp.tensor((4, 4)), "y": sp.tensor((4, 4))},
        out=tmp_path / "run",
        executor="local",
        cache=False,
    )
    assert result.verdict == expected, sp.told(result)


@pytest.mark.parametrize(("clips", "expected"), [(True, "proved"), (False, "refuted")])
def test_a_bounded_loss(clips: bool, expected: str, tmp_path: Path) -> None:
    """Gradients of a loss whose own are bounded pass the norm where numbers of the batch are
    large: what ranks do not clip shows there."""

    def step(ranks: int, clipped: bool) -> Step:
        def run(job: sp.Job) -> None:
            own = nn.Linear(4, 4)
            model = own if ranks == 1 else nn.parallel.DistributedDataParallel(own)
            job.start(model)
            x, y = (job.batch[n].chunk(ranks)[job.rank] for n in ("x", "y"))
            loss = F.smooth_l1_loss(model(x), y)
            loss.backward()
            if clipped:
                nn.utils.clip_grad_norm_(model.parameters(), NORM)
            job.end(loss=loss)

        return run

    batch = {"x": sp.tensor((4, 4)), "y": sp.tensor((4, 4))}
    result = locally(tmp_path, step(1, True), step(RANKS, clips), batch)
    assert result.verdict == expected, sp.told(result)


@pytest.mark.parametrize("share", [False, True], ids=["infinite", "0 by what is infinite"])
def test_exponentials_that_overflow_refute_nothing(share: bool, tmp_path: Path) -> None:
    """Ranks take no maximum off: over the reals that is the same, and is not proved here."""

    def step(ranks: int) -> Step:
        def run(job: sp.Job) -> None:
            model = nn.Linear(4, 4)
            job.start(model)
            z = (4000 if share else 40) * model(job.batch["x"].chunk(ranks)[job.rank])
            most = z.amax(-1, keepdim=True)
            log = most[:, 0] + (z - most).exp().sum(-1).log()
            log = log if ranks == 1 else (z.exp() + z.exp()).sum(-1).log() - math.log(2)
            job.end(loss=((z[:, 0] - log).exp() if share else log).mean())

        return run

    result = locally(tmp_path, step(1), step(RANKS), {"x": sp.tensor((4, 4))})
    assert result.verdict != "refuted", sp.told(result)
