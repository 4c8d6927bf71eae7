"""Rows whose number depends on data, of which each rank has some, and other ranks others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof  # noqa: E402
import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.steps import ReduceFrom  # noqa: E402

ROWS, WIDTH, CLASSES, WORDS = 8, 6, 5, 12
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "labels": sp.tensor((ROWS,), torch.long),
    "keep": sp.tensor((ROWS,), torch.bool),
}
IDS = {"x": BATCH["x"], "ids": sp.tensor((ROWS,), torch.long, low=0, high=WORDS)}

Tensor = torch.Tensor
Job = Any


def _rows(job: Job, name: str) -> Tensor:
    size = ROWS // job.world_size
    return job.batch[name][job.rank * size : (job.rank + 1) * size]


def _summed(x: Tensor) -> Tensor:
    x = x.clone()
    dist.all_reduce(x)
    return x


def _end(job: Job, model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    for parameter in model.parameters() if job.world_size > 1 else ():
        dist.all_reduce(parameter.grad)
    job.end(loss=loss)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rank_without_rows_tells_nothing(tmp_path: Path, wrong: bool) -> None:
    """A mean of the rank's own labels, times how many there are, is no number where there is none,
    which the step looks for: an input without any is against what is assumed."""

    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        labels, scores = _rows(job, "labels"), model(_rows(job, "x"))
        keep = labels != -100
        if job.world_size == 1:
            _end(job, model, F.cross_entropy(scores[keep], labels[keep]))
            return
        count, loss = keep.sum(), scores.sum() * 0
        every = _summed(count)
        if keep.any():
            own = F.cross_entropy(scores[keep], labels[keep])
            loss = own * count / (2 * count if wrong else every)
        _end(job, model, loss)

    result = locally(tmp_path, step, step, {k: BATCH[k] for k in ("x", "labels")}, combine="sum")
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
    assert any("there is at least one" in str(a) for a in result.assumptions)
    if wrong:
        checked = shardproof.check(tmp_path / "run")
        assert checked.ok, checked.problems


class Words(nn.Module):
    """Rows of a vocabulary, or of a rank's part of it."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, WIDTH)


Written = Callable[[Words, Tensor, Tensor, int], Tensor]


def _over(model: Words, ids: Tensor, own: Tensor, start: int) -> Tensor:
    made = torch.zeros(ROWS, WIDTH)
    made[own] = model.words(ids[own] - start)
    return made


def _added(model: Words, ids: Tensor, own: Tensor, start: int) -> Tensor:
    rows = torch.where(own)[0]
    return torch.zeros(ROWS, WIDTH).index_add(0, rows, model.words(ids[rows] - start))


def _copied(model: Words, ids: Tensor, own: Tensor, start: int) -> Tensor:
    rows = own.nonzero().squeeze(-1)
    return torch.zeros(ROWS, WIDTH).index_copy(0, rows, model.words(ids[rows] - start))


WAYS: dict[str, Written] = {"over": _over, "added": _added, "copied": _copied}
MISTAKES = ("one word less", "another place", "no zeros")


@pytest.mark.parametrize(
    ("way", "wrong"), [*((way, "") for way in WAYS), *(("over", wrong) for wrong in MISTAKES)]
)
def test_words_of_a_rank_by_a_mask(tmp_path: Path, way: str, wrong: str) -> None:
    """Ids that the mask does not choose lie outside of the rank's words, and read none."""

    def single(job: Job) -> None:
        model = Words()
        job.start(model)
        loss = (model.last(model.words(job.batch["ids"])) - job.batch["x"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: Job) -> None:
        size = WORDS // job.world_size
        start, model = job.rank * size, Words(size)
        piece = sp.piece("words.weight", dim=0, start=start, size=size)
        job.start(model, parameters={"words.weight": piece})
        ids = job.batch["ids"]
        own = (ids >= start) & (ids < start + size - int(wrong == "one word less"))
        made = WAYS[way](model, ids, own, start)
        if wrong == "another place":
            made = torch.cat([made[1:], made[:1]])
        if wrong == "no zeros":
            made = made + ~own[:, None]
        loss = (model.last(ReduceFrom.apply(made)) - job.batch["x"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, IDS)
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
    if not wrong:
        checked = shardproof.check(tmp_path / "run")
        assert checked.ok, checked.problems


class Masked(nn.Module):
    """Rows of which some are written over with one that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.token = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden[keep] = self.token
        made: Tensor = self.last(hidden.tanh())
        return (made[keep] - x[keep]).pow(2)


@pytest.mark.parametrize("wrong", ["", "the rank's own mean", "rows, not entries"])
def test_one_row_that_is_written_where_a_mask_is_true(tmp_path: Path, wrong: str) -> None:
    """The mean is that of all ranks: their whole numbers of rows, times how many entries each has."""

    def step(job: Job) -> None:
        model, keep = Masked(), _rows(job, "keep")
        job.start(model)
        errors = model(_rows(job, "x"), keep)
        if job.world_size == 1:
            loss = errors.mean()
        elif wrong == "the rank's own mean":
            loss = errors.mean() / job.world_size
        else:
            loss = errors.sum() / (_summed(keep.sum()) * (1 if wrong else WIDTH))
        _end(job, model, loss)

    result = locally(tmp_path, step, step, {k: BATCH[k] for k in ("x", "keep")})
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
