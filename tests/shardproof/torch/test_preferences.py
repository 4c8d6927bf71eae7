"""A loss of preferences (DPO) as programs write it: log-probabilities of labels, of which those that
are -100 are looked up somewhere and then do not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, LENGTH, ROWS, WIDTH, Step, rows  # noqa: E402

IGNORED = -100
BATCH = {
    **{name: sp.tensor((ROWS, LENGTH, WIDTH)) for name in ("chosen", "rejected")},
    **{name: sp.tensor((ROWS, LENGTH), torch.int64) for name in ("good", "bad")},
    "reference": sp.tensor((ROWS,)),
}


def written(labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    safe = labels.clone()
    safe[~mask] = 0
    return safe


SAFE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "written": written,
    "where": lambda labels, mask: torch.where(mask, labels, 0),
    "clamp": lambda labels, mask: labels.clamp(min=0),
    "product": lambda labels, mask: labels * mask,
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def likelihood(logits: torch.Tensor, labels: torch.Tensor, how: str, masked: bool) -> torch.Tensor:
    logits, labels = logits[:, :-1], labels[:, 1:]
    mask = labels != IGNORED
    picked = logits.log_softmax(-1).gather(2, SAFE[how](labels, mask).unsqueeze(2)).squeeze(2)
    return (picked * mask if masked else picked).sum(-1)


def step(how: str, ranks: int, masked: bool = True) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        names = ("chosen", "good", "rejected", "bad", "reference")
        own = rows(job, *names) if ranks > 1 else [job.batch[name] for name in names]
        chosen, good, rejected, bad, reference = own
        better = likelihood(model(chosen), good, how, True)
        worse = likelihood(model(rejected), bad, how, masked)
        loss = -F.logsigmoid(0.1 * (better - worse - reference)).mean()
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("how", SAFE)
def test_preferences_are_proved(how: str) -> None:
    found = sp.verify(step(how, 1), step(how, 2), world_size=2, batch=BATCH)
    assert found.verdict == "proved", found
    assert sum("or -100, which does not count" in text for text in found.assumptions) == 2


@pytest.mark.parametrize("how", ["written", "clamp"])
def test_labels_that_count_although_they_should_not_are_refuted(how: str) -> None:
    wrong = step(how, 2, masked=False)
    assert sp.verify(step(how, 1), wrong, world_size=2, batch=BATCH).verdict == "refuted"


def test_the_class_that_is_looked_up_for_none_does_not_matter() -> None:
    right = sp.verify(step("where", 1), step("written", 2), world_size=2, batch=BATCH)
    assert right.verdict == "proved"
