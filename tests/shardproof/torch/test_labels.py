"""Labels that do not count (-100), under data parallelism: with their domain stated and without, a
cross-entropy over all ranks is its sum by the count of all, however ranks count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

IGNORED, ROWS = -100, 8
Terms = Callable[[nn.Linear, "torch.Tensor", "torch.Tensor"], "tuple[torch.Tensor, torch.Tensor]"]


def total(model: nn.Linear, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), t, reduction="sum")


def chunked(model: nn.Linear, x: torch.Tensor, t: torch.Tensor, how: str) -> torch.Tensor:
    options = nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(
        x, model.weight, t, linear_bias=model.bias, reduction=how, options=options
    )


#: The sum of a rank's losses, and how many labels it counts.
RIGHT: dict[str, Terms] = {
    "not ignored": lambda m, x, t: (total(m, x, t), (t != IGNORED).sum()),
    "not negative": lambda m, x, t: (total(m, x, t), (t >= 0).sum()),
}
WRONG: dict[str, Terms] = {
    "all rows": lambda m, x, t: (total(m, x, t), torch.ones_like(t).sum()),
    "positive": lambda m, x, t: (total(m, x, t), (t > 0).sum()),
    "not -1": lambda m, x, t: (total(m, x, t), (t != -1).sum()),
    "the first class": lambda m, x, t: (total(m, x, t.clamp(min=0)), (t != IGNORED).sum()),
    "in chunks, positive": lambda m, x, t: (chunked(m, x, t, "sum"), (t > 0).sum()),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def single(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["t"])
    loss.backward()
    job.end(loss=loss)


def data_parallel(terms: Terms) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = rows(job, "x", "t")
        losses, count = terms(model, x, t)
        dist.all_reduce(count)
        loss = losses / count
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return run


def mean_of_means(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    x, t = rows(job, "x", "t")
    loss = F.cross_entropy(model(x), t)
    loss.backward()
    averaged(model)
    job.end(loss=loss)


def averaged(model: nn.Linear) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def single_in_chunks(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = chunked(model, job.batch["x"], job.batch["t"], "mean")
    loss.backward()
    job.end(loss=loss)


def mean_of_means_in_chunks(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = chunked(model, *rows(job, "x", "t"), "mean")
    loss.backward()
    averaged(model)
    job.end(loss=loss)


def result(parallel: Step, low: int | None, single: Step = single) -> sp.Result:
    high = None if low is None else CLASSES
    labels = sp.tensor((ROWS,), torch.int64, low=low, high=high)
    batch = {"x": sp.tensor((ROWS, WIDTH)), "t": labels}
    return sp.verify(single, parallel, world_size=2, batch=batch)


@pytest.mark.parametrize("low", [None, IGNORED])
@pytest.mark.parametrize("name", RIGHT)
def test_the_sum_by_the_count_is_proved(name: str, low: int | None) -> None:
    found = result(data_parallel(RIGHT[name]), low)
    assert found.verdict == "proved", found
    assert any("or -100, which does not count" in note for note in found.assumptions)


@pytest.mark.parametrize("low", [None, IGNORED])
@pytest.mark.parametrize("name", WRONG)
def test_another_count_is_refuted(name: str, low: int | None) -> None:
    assert result(data_parallel(WRONG[name]), low).verdict == "refuted"


@pytest.mark.parametrize("low", [None, IGNORED])
def test_the_mean_of_means_is_refuted(low: int | None) -> None:
    assert result(mean_of_means, low).verdict == "refuted"


def test_the_mean_of_means_of_labels_that_all_count_is_proved() -> None:
    assert result(mean_of_means, 0).verdict == "proved"


def test_a_linear_cross_entropy_in_chunks() -> None:
    assert result(mean_of_means_in_chunks, 0, single_in_chunks).verdict == "proved"
    assert result(mean_of_means_in_chunks, IGNORED, single_in_chunks).verdict == "refuted"


class Shifted(nn.Module):
    """A language model's head on given activations, whose labels are the next position's."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = F.pad(labels, (0, 1), value=IGNORED)[:, 1:].reshape(-1)
        losses = F.cross_entropy(self.head(x).reshape(-1, CLASSES), after, reduction="sum")
        return losses, (after != IGNORED).sum()


def shifted(ranks: int, *, own: bool = False) -> Step:
    """The sum of losses by the count of all labels, or (``own``) the rank's, times the ranks."""

    def run(job: sp.Job) -> None:
        model = Shifted()
        job.start(model)
        x, t = rows(job, "x", "t") if ranks > 1 else (job.batch["x"], job.batch["t"])
        losses, count = model(x, t)
        if own:
            count = count * ranks
        elif ranks > 1:
            dist.all_reduce(count)
        loss = losses / count
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return run


def test_labels_that_are_shifted_and_padded() -> None:
    shape = (ROWS, 6)
    batch = {"x": sp.tensor((*shape, WIDTH)), "t": sp.tensor(shape, torch.int64)}
    right = sp.verify(shifted(1), shifted(2), world_size=2, batch=batch)
    assert right.verdict == "proved", right
    wrong = sp.verify(shifted(1), shifted(2, own=True), world_size=2, batch=batch)
    assert wrong.verdict == "refuted"
