"""Logits of which some are minus infinity, in cross-entropies and sums of exponentials, under data
parallelism; each beside a twin that hides another class, or hides one at another place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.nn.functional as dnn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

NOTHING, ROWS = float("-inf"), 4
#: A loss of logits, labels and a mask of the batch.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def hides(place: int) -> Tensor:
    return torch.arange(CLASSES) == place


def after(z: Tensor, t: Tensor, place: int) -> Tensor:
    return F.nll_loss(F.log_softmax(z, -1).masked_fill(hides(place), NOTHING), t)


def sums(z: Tensor, t: Tensor, m: Tensor) -> Tensor:
    own = z.gather(-1, t[:, None])[:, 0]
    return (z.masked_fill(m, NOTHING).logsumexp(-1) - own).mean()


def by_hand(z: Tensor, t: Tensor, m: Tensor) -> Tensor:
    e = z.masked_fill(m, NOTHING).exp()
    return (e / e.sum(-1, keepdim=True) * torch.arange(CLASSES)).sum(-1).mean()


def beside(z: Tensor, place: Tensor) -> Tensor:
    return z.scatter(-1, place, NOTHING).logsumexp(-1).mean()


#: The single device's loss, and one that is another.
LOSSES: dict[str, tuple[Loss, Loss]] = {
    "hidden by a mask of the batch": (
        lambda z, t, m: F.cross_entropy(z.masked_fill(m, NOTHING), t),
        lambda z, t, m: F.cross_entropy(z.masked_fill(~m, NOTHING), t),
    ),
    "one class hidden": (
        lambda z, t, m: F.cross_entropy(z.masked_fill(hides(3), NOTHING), t),
        lambda z, t, m: F.cross_entropy(z.masked_fill(hides(4), NOTHING), t),
    ),
    "hidden before the softmax": (
        lambda z, t, m: F.cross_entropy(z.masked_fill(hides(3), NOTHING), t),
        lambda z, t, m: after(z, t, 3),
    ),
    "hidden after the softmax": (
        lambda z, t, m: after(z, t, 3),
        lambda z, t, m: after(z * 2, t, 3),
    ),
    "sums of exponentials": (sums, lambda z, t, m: sums(z, t, ~m)),
    "all but the largest": (
        lambda z, t, m: beside(z, z.argmax(-1, keepdim=True)),
        lambda z, t, m: beside(z, z.argmin(-1, keepdim=True)),
    ),
    "by hand": (by_hand, lambda z, t, m: by_hand(z, t, ~m)),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def step(loss_of: Loss, ranks: int) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        names = ("x", "t", "m")
        x, t, m = rows(job, *names) if ranks > 1 else [job.batch[n] for n in names]
        loss = loss_of(model(x), t, m)
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_classes_are_proved_and_others_refuted(name: str) -> None:
    batch = {
        "x": sp.tensor((ROWS, WIDTH)),
        "t": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
        "m": sp.tensor((ROWS, CLASSES), torch.bool),
    }
    right, wrong = LOSSES[name]
    single = step(right, 1)
    found = sp.verify(single, step(right, 2), world_size=2, batch=batch)
    assert found.verdict == "proved", found
    assert sp.verify(single, step(wrong, 2), world_size=2, batch=batch).verdict == "refuted"


def test_a_loss_that_is_infinite_for_some_labels_is_not_proved() -> None:
    batch = {
        "x": sp.tensor((ROWS, WIDTH)),
        "t": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
        "m": sp.tensor((ROWS, CLASSES), torch.bool),
    }
    for place, verdict in ((3, "refuted"), (CLASSES, "proved")):
        parallel = step(lambda z, t, m, place=place: after(z, t, place), 2)
        single = step(lambda z, t, m: F.cross_entropy(z, t), 1)
        found = sp.verify(single, parallel, world_size=2, batch=batch)
        assert found.verdict == verdict, found


def contrastive(ranks: int, offset: int = ROWS) -> Step:
    """Every row against all others of two views, its own place hidden; ``offset``: how far off its
    other view is said to be."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        given = rows(job, "x", "y") if ranks > 1 else [job.batch["x"], job.batch["y"]]
        views = [F.normalize(model(v), dim=-1) for v in given]
        if ranks > 1:
            views = [torch.cat(dnn.all_gather(v)) for v in views]  # type: ignore[no-untyped-call]
        z = torch.cat(views)
        scores = (z @ z.T / 0.5).masked_fill(torch.eye(2 * ROWS, dtype=torch.bool), NOTHING)
        labels = (torch.arange(2 * ROWS) + offset) % (2 * ROWS)
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return run


def test_contrastive_losses_hide_each_rows_own_place() -> None:
    batch = {"x": sp.tensor((ROWS, WIDTH)), "y": sp.tensor((ROWS, WIDTH))}
    right = sp.verify(contrastive(1), contrastive(2), world_size=2, batch=batch)
    assert right.verdict == "proved", right
    wrong = sp.verify(contrastive(1), contrastive(2, ROWS - 1), world_size=2, batch=batch)
    assert wrong.verdict == "refuted"
