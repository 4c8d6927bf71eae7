"""Values side by side in a sequence: with one row on each rank, and with heads over ranks.

Not proved is `Hidden` with one row or one head on each rank (docs/limits.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402
from tests.shardproof.torch import side_by_side as models  # noqa: E402

RANKS = 2
Model: TypeAlias = type[models.Sided]
Step: TypeAlias = Callable[[sp.Job], None]
Way: TypeAlias = Callable[[Model, bool], Step]


def alone(model: Model) -> Step:
    def step(job: sp.Job) -> None:
        made = model()
        job.start(made)
        loss = made.loss(job.batch)
        loss.backward()
        job.end(loss=loss)

    return step


def replicas(model: Model, mistake: bool) -> Step:
    """A part of the rows on each rank; ``mistake``: one gradient is left as it is."""

    def step(job: sp.Job) -> None:
        made = model()
        job.start(made)
        loss = made.loss({k: v.chunk(RANKS)[job.rank] for k, v in job.batch.items()})
        loss.backward()
        for number, parameter in enumerate(made.parameters()):
            if not mistake or number != 1:
                dist.all_reduce(parameter.grad)
                parameter.grad /= RANKS
        job.end(loss=loss)

    return step


def divided(model: Model, mistake: bool) -> Step:
    """A part of the heads on each rank."""

    def step(job: sp.Job) -> None:
        made = model(RANKS, mistake)
        pieces = {}
        for name, parameter in made.named_parameters():
            layer = name.split(".")[-2] if "." in name else ""
            dim = {"q": 0, "k": 0, "v": 0, "o": 1}.get(layer)
            if dim is None:
                pieces[name] = sp.same(name)
            else:
                size = parameter.shape[dim]
                pieces[name] = sp.piece(name, dim=dim, start=job.rank * size, size=size)
        job.start(made, parameters=pieces)
        loss = made.loss(job.batch)
        loss.backward()
        job.end(loss=loss)

    return step


CASES = [
    (models.ClassToken, replicas),
    (models.ClassToken, divided),
    (models.FirstToken, replicas),
    (models.FirstToken, divided),
    (models.Prefix, replicas),
    (models.Prefix, divided),
    (models.Visible, replicas),
    (models.Visible, divided),
    (models.Decoder, replicas),
    (models.Decoder, divided),
    (models.TwoAhead, replicas),
    (models.TwoAhead, divided),
    (models.Hidden, divided),
]


@pytest.mark.parametrize(
    ("model", "way"), CASES, ids=[f"{model.__name__}-{way.__name__}" for model, way in CASES]
)
def test_side_by_side(tmp_path: Path, model: Model, way: Way) -> None:
    def verdict(mistake: bool) -> sp.Result:
        step = way(model, mistake)
        out = tmp_path / str(mistake)
        batch = model.batch(RANKS)
        return sp.verify(
            alone(model), step, world_size=RANKS, batch=batch, out=out, executor="local"
        )

    right = verdict(False)
    assert right.verdict == "proved", right
    assert check(right.run_dir).ok
    assert verdict(True).verdict == "refuted"
