"""Labels that a mask of the batch replaces by the ignored class, in the ways that users write it,
under data parallelism; each beside a count that is the rank's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

IGNORED, ROWS, LENGTH = -100, 4, 6


class Model(nn.Module):
    """Logits of tokens, each by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(ids))
        return logits


#: Logits and labels of a model, tokens, flags (0 or 1), masks and lengths.
Labelled = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def written_over(
    model: nn.Module, t: Tensor, k: Tensor, m: Tensor, n: Tensor
) -> tuple[Tensor, ...]:
    labels = t.clone()
    labels[k == 0] = IGNORED
    return model(t), labels


def padded(model: nn.Module, t: Tensor, k: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    labels = t.clone()
    labels[k == 0] = IGNORED
    return model(t), F.pad(labels, (0, 1), value=IGNORED)[..., 1:]


def masked_model(
    model: nn.Module, t: Tensor, k: Tensor, m: Tensor, n: Tensor
) -> tuple[Tensor, ...]:
    """Tokens that are predicted are hidden from the model."""
    return model(t.masked_fill(m, 3)), t.masked_fill(~m, IGNORED)


def prompts(model: nn.Module, t: Tensor, k: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    return model(t), torch.where(torch.arange(LENGTH) < n[:, None], IGNORED, t)


def after_two(model: nn.Module, t: Tensor, k: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """A prefix of one length, and a mask."""
    labels = t.masked_fill(m, IGNORED)
    labels[:, :2] = IGNORED
    return model(t), labels


FORMS: dict[str, Labelled] = {
    "where flags are 0": lambda model, t, k, m, n: (model(t), t.masked_fill(k == 0, IGNORED)),
    "where a mask is true": lambda model, t, k, m, n: (model(t), t.masked_fill(m, IGNORED)),
    "chosen by flags": lambda model, t, k, m, n: (model(t), torch.where(k == 1, t, IGNORED)),
    "by a mask and by the class": lambda model, t, k, m, n: (
        model(t),
        t.masked_fill(m, IGNORED).masked_fill(t == 3, IGNORED),
    ),
    "shifted": lambda model, t, k, m, n: (model(t)[:, :-1], t.masked_fill(m, IGNORED)[:, 1:]),
    "written over": written_over,
    "shifted and padded": padded,
    "of tokens that are hidden": masked_model,
    "after prompts": prompts,
    "after two tokens": after_two,
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def step(labelled: Labelled, ranks: int, *, own: bool = False) -> Step:
    """The sum of losses by the count of all labels, or (``own``) the rank's, times the ranks."""

    def run(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        names = ("t", "k", "m", "n")
        given = rows(job, *names) if ranks > 1 else [job.batch[name] for name in names]
        logits, labels = labelled(model, *given)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        count = (labels != IGNORED).sum()
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


BATCH = {
    "t": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=CLASSES),
    "k": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=2),
    "m": sp.tensor((ROWS, LENGTH), torch.bool),
    "n": sp.tensor((ROWS,), torch.int64, low=0, high=LENGTH),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_count_of_all_is_proved_and_the_ranks_own_refuted(name: str) -> None:
    single = step(FORMS[name], 1)
    right = sp.verify(single, step(FORMS[name], 2), world_size=2, batch=BATCH, validate=True)
    assert right.verdict == "proved", right
    wrong = sp.verify(single, step(FORMS[name], 2, own=True), world_size=2, batch=BATCH)
    assert wrong.verdict == "refuted", wrong


def test_losses_times_the_mask_are_those_of_replaced_labels() -> None:
    def single(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        t, m = job.batch["t"], job.batch["m"]
        labels = t.masked_fill(m, IGNORED)
        loss = F.cross_entropy(model(t).flatten(0, 1), labels.flatten())
        loss.backward()
        job.end(loss=loss)

    def parallel(counted: Callable[[Tensor], Tensor]) -> Step:
        def run(job: sp.Job) -> None:
            model = Model()
            job.start(model)
            t, m = rows(job, "t", "m")
            losses = F.cross_entropy(model(t).flatten(0, 1), t.flatten(), reduction="none")
            count = counted(m).sum()
            dist.all_reduce(count)
            loss = (losses * ~m.flatten()).sum() / count
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            job.end(loss=loss)

        return run

    right = sp.verify(single, parallel(lambda m: ~m), world_size=2, batch=BATCH)
    assert right.verdict == "proved", right
    assert sp.verify(single, parallel(lambda m: m), world_size=2, batch=BATCH).verdict == "refuted"
