"""Log-probabilities of labels (DPO, PPO, GRPO): entries of a log-softmax on the single device, on ranks
with a divided vocabulary a score less the logarithm of a sum of exponentials."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import (  # noqa: E402  # noqa: E402
    CLASSES,
    LENGTH,
    ROWS,
    WIDTH,
    Step,
    copy_to,
    ids,
    reduce_from,
)

OWN = CLASSES // 2


class Way(NamedTuple):
    """How labels are cut from ids, and whether a mask says which count."""

    shifted: bool = False
    masked: bool = True


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Words(nn.Module):
    """A table of words, and scores of ``classes`` of them."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, classes, bias=False)

    def hidden(self, words: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.table(words))


def read(job: sp.Job, way: Way) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read, and its labels."""
    words = job.batch["words"]
    return (words[:, :-1], words[:, 1:]) if way.shifted else (words, words)


def ended(job: sp.Job, log: torch.Tensor, way: Way) -> None:
    each = log * job.batch["mask"] if way.masked else log
    loss = -each.sum(-1).mean()
    loss.backward()
    job.end(loss=loss)


def single(way: Way) -> Step:
    def run(job: sp.Job) -> None:
        model = Words()
        job.start(model)
        words, labels = read(job, way)
        log = model.head(model.hidden(words)).log_softmax(-1)
        ended(job, log.gather(-1, labels[..., None]).squeeze(-1), way)

    return run


def divided(way: Way, counts_all: bool = True) -> Step:
    def run(job: sp.Job) -> None:
        model, first = Words(OWN), job.rank * OWN
        piece = sp.piece("head.weight", dim=0, start=first, size=OWN)
        job.start(model, parameters={"head.weight": piece})
        words, labels = read(job, way)
        scores = model.head(copy_to(model.hidden(words)))
        most = scores.detach().amax(-1)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        total = (scores - most[..., None]).exp().sum(-1)
        total = reduce_from(total) if counts_all else total
        place = labels - first
        own = (place >= 0) & (place < OWN)
        picked = scores.gather(-1, place.clamp(0, OWN - 1)[..., None]).squeeze(-1)
        picked = reduce_from(torch.where(own, picked, torch.zeros(())))
        ended(job, picked - total.log() - most, way)

    return run


def verdict(way: Way, right: bool) -> str:
    batch = {**ids("words"), "mask": sp.tensor((ROWS, LENGTH - way.shifted))}
    pair = single(way), divided(way, right)
    return sp.verify(*pair, world_size=2, batch=batch).verdict


@pytest.mark.parametrize("way", [Way(), Way(shifted=True), Way(masked=False)])
def test_a_log_softmax_is_a_score_less_a_logarithm(way: Way) -> None:
    assert verdict(way, right=True) == "proved"


def test_sums_of_own_classes_alone_are_refuted() -> None:
    assert verdict(Way(), right=False) == "refuted"
