"""Layers of torch.nn under plain data parallelism: gradients averaged, and a twin that adds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def verify(
    folder: Path, build: Callable[[], nn.Module], forward: Forward, shape: tuple[int, ...], how: str
) -> sp.Result:
    """Half of the rows on each of two ranks; ``how`` gradients are reduced: "avg" or "sum"."""

    def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (forward(model, x).flatten(1).mean(1) - y).pow(2).mean()

    def single(job: sp.Job) -> None:
        model = build()
        job.start(model)
        loss = loss_of(model, job.batch["x"], job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = build()
        job.start(model)
        own = [job.batch[name].chunk(2)[job.rank] for name in ("x", "y")]
        loss = loss_of(model, *own)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            if how == "avg":
                parameter.grad.div_(2)
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.end(loss=total / 2)

    return sp.verify(
        single,
        parallel,
        world_size=2,
        batch={"x": sp.tensor(shape), "y": sp.tensor(shape[:1])},
        executor="local",
        cache=False,
        validate=how == "avg",
        out=folder / "run",
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=True)


def attention() -> nn.Module:
    return nn.MultiheadAttention(6, 2, batch_first=True)


TOKENS = (4, 5, 6)
CASES: dict[str, tuple[Callable[[], nn.Module], Forward, tuple[int, ...]]] = {
    # Queries, keys and values of one product lie side by side, before the tokens.
    "attention": (attention, lambda m, x: m(x, x, x, need_weights=False)[0], TOKENS),
    "encoder": (encoder, lambda m, x: m(x), TOKENS),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_layer_on_halves_of_the_batch(tmp_path: Path, name: str) -> None:
    right = verify(tmp_path / "right", *CASES[name], "avg")
    assert right.verdict == "proved", sp.told(right)
    assert any("replayed" in note for note in right.assumptions)
    wrong = verify(tmp_path / "wrong", *CASES[name], "sum")
    assert wrong.verdict == "refuted", sp.told(wrong)
