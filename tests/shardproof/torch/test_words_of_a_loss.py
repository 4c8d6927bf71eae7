"""The cross-entropy in other words on ranks than on the single device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402

CLASSES, RANKS = 5, 2
BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4,), torch.int64, low=0, high=CLASSES)}


def _at(x: Tensor, y: Tensor) -> Tensor:
    return x.gather(-1, y[:, None]).squeeze(-1)


def _shifted(z: Tensor, y: Tensor) -> Tensor:
    z = z - z.amax(-1, keepdim=True).detach()
    return (z.exp().sum(-1).log() - _at(z, y)).mean()


def _scores(z: Tensor, y: Tensor) -> Tensor:
    most = z.amax(-1).detach()
    return ((z - most[:, None]).exp().sum(-1).log() + most - _at(z, y)).mean()


WORDS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch": F.cross_entropy,
    "logsumexp": lambda z, y: (z.logsumexp(-1) - _at(z, y)).mean(),
    "log-probabilities": lambda z, y: -_at(F.log_softmax(z, -1), y).mean(),
    "by an index": lambda z, y: -F.log_softmax(z, -1)[torch.arange(len(y)), y].mean(),
    "shifted": _shifted,
    "scores": _scores,
}


def step(words: str, ranks: int, mistake: bool = False) -> Step:
    """``mistake``: each row is scored at the label of the row behind it."""

    def run(job: sp.Job) -> None:
        own = nn.Linear(3, CLASSES)
        model = own if ranks == 1 else DistributedDataParallel(own)
        job.start(model)
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        loss = WORDS[words](model(x), y.roll(1) if mistake else y)
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("words", WORDS)
def test_other_words_on_ranks(words: str, tmp_path: Path) -> None:
    right = locally(tmp_path / "right", step("torch", 1), step(words, RANKS), BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = locally(tmp_path / "wrong", step("torch", 1), step(words, RANKS, True), BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)


@pytest.mark.parametrize("words", WORDS)
def test_other_words_on_one_device(words: str, tmp_path: Path) -> None:
    right = locally(tmp_path, step(words, 1), step("torch", RANKS), BATCH)
    assert right.verdict == "proved", sp.told(right)
