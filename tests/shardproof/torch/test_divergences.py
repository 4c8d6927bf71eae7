"""Divergences of `torch.distributions`, which put infinity where a probability is 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import Categorical, kl_divergence  # noqa: E402

import shardproof.torch as sp  # noqa: E402


def step(ranks: int, how: str) -> Callable[[sp.Job], None]:
    """A policy beside a reference, whose logits are in the batch; ``how``: "reversed", or as it is."""

    def run(job: sp.Job) -> None:
        policy = nn.Linear(6, 5)
        job.start(policy)
        x, logits = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "logits"))
        own, other = Categorical(logits=policy(x)), Categorical(logits=logits)
        kl = kl_divergence(other, own) if how == "reversed" else kl_divergence(own, other)
        loss = kl.mean()
        loss.backward()
        for parameter in policy.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("how", ["", "reversed"])
def test_a_divergence_from_a_reference(how: str, tmp_path: Path) -> None:
    result = sp.verify(
        step(1, ""),
        step(2, how),
        world_size=2,
        batch={"x": sp.tensor((4, 6)), "logits": sp.tensor((4, 5))},
        validate=not how,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if how else "proved"), sp.told(result)
