"""Steps of users with rows whose number depends on data: proved, and wrong twins refuted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

ROWS, WIDTH, CLASSES, EXPERTS = 4, 4, 5, 4
BATCH = {
    "ids": sp.tensor((ROWS, 3), torch.long, low=0, high=CLASSES),
    "labels": sp.tensor((ROWS, 3), torch.long, low=0, high=CLASSES),
    "keep": sp.tensor((ROWS, 3), torch.bool),
    "teacher": sp.tensor((ROWS, 3, CLASSES)),
}

Tensor = torch.Tensor
Job = Any


class Words(nn.Module):
    """Scores of classes for each word of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)
        self.images, self.texts = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def hidden(self, ids: Tensor) -> Tensor:
        made: Tensor = self.norm(self.words(ids))
        return made

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.classes(self.hidden(ids))
        return made


#: Of a model, the batch of a device, and what is wrong: the sum of what each chosen word costs.
Sum = Callable[[Words, dict[str, Tensor], str], Tensor]


def _likelihoods(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    keep, ids = given["keep"][:, 1:], given["labels"][:, 1:]
    ids = given["labels"][:, :-1] if wrong == "labels of the word before" else ids
    logs = model(given["ids"])[:, :-1][keep].log_softmax(-1)
    return -logs.gather(1, ids[keep].unsqueeze(1)).squeeze(1).sum()


def _dropped(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    keep = given["keep"]
    if wrong == "rows that another mask chooses":
        keep = ~keep
    rows = model.hidden(given["ids"])[keep]
    if wrong != "nothing is dropped":
        rows = F.dropout(rows, 0.2 if wrong == "another chance" else 0.1)
    if wrong == "dropped twice":
        rows = F.dropout(rows, 0.1)
    return F.cross_entropy(model.classes(rows), given["labels"][keep], reduction="sum")


def _distilled(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    keep = given["labels"] != 1
    heat = 3.0 if wrong == "another temperature" else 2.0
    ours = F.log_softmax(model(given["ids"])[keep] / heat, -1)
    theirs = F.softmax(given["teacher"][keep] / heat, -1)
    each = F.kl_div(ours, theirs, reduction="none").sum(-1)
    return each.sum() * (heat if wrong == "not squared" else heat * heat)


def _two_ways(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    hidden, keep = model.hidden(given["ids"]), given["keep"]
    first, second = model.images, model.texts
    if wrong == "exchanged":
        first, second = second, first
    made = hidden.new_empty((*hidden.shape[:-1], CLASSES))
    made[keep] = first(hidden[keep])
    made[~keep] = (first if wrong == "one for both" else second)(hidden[~keep])
    return F.cross_entropy(made.flatten(0, 1), given["labels"].flatten(), reduction="sum")


def _sizes(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    """The squares of logarithms of sums, of words that are chosen by a view of the mask."""
    keep = given["labels"] != (2 if wrong == "another label" else 1)
    scores = model(given["ids"]).view(-1, CLASSES)[keep.view(-1)]
    power = 3 if wrong == "cubes" else 2
    return (scores.logsumexp(-1) ** power).sum() + scores.amax(-1).sum()


def _hard(model: Words, given: dict[str, Tensor], wrong: str) -> Tensor:
    """Of the chosen words those whose label is another one than the first."""
    scores, ids = model(given["ids"])[given["keep"]], given["labels"][given["keep"]]
    hard = ids != (1 if wrong == "another label" else 0)
    some = ids != 1 if wrong == "rows of another mask" else hard
    return F.cross_entropy(scores[some], ids[some], reduction="sum") + scores[hard].pow(2).sum()


SUMS: dict[str, tuple[Sum, tuple[str, ...]]] = {
    "likelihoods": (_likelihoods, ("labels of the word before",)),
    "dropped": (
        _dropped,
        (
            "another chance",
            "rows that another mask chooses",
            "nothing is dropped",
            "dropped twice",
        ),
    ),
    "distilled": (_distilled, ("another temperature", "not squared")),
    "two ways": (_two_ways, ("exchanged", "one for both")),
    "hard": (_hard, ("another label", "rows of another mask")),
    "sizes": (_sizes, ("another label", "cubes")),
}
#: What may be wrong with every one of them.
EVERY = ("its own number of words", "gradients of a rank")


def _verdict(folder: Path, what: str, wrong: str) -> sp.Result:
    def step(job: Job, ranks: int, wrong: str) -> None:
        model = Words()
        job.start(model)
        size = ROWS // ranks
        rows = slice(job.rank * size, (job.rank + 1) * size)
        given = {name: job.batch[name][rows] for name in BATCH}
        count = given["keep"].sum()
        if ranks > 1 and wrong != "its own number of words":
            dist.all_reduce(count)
        loss = SUMS[what][0](model, given, wrong) / count.clamp(min=1)
        loss.backward()
        for parameter in model.parameters() if ranks > 1 and wrong != "gradients of a rank" else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return locally(
        folder,
        lambda job: step(job, 1, ""),
        lambda job: step(job, 2, wrong),
        BATCH,
        combine="sum",
    )


@pytest.mark.parametrize("what", SUMS)
def test_losses_of_chosen_words_are_proved(tmp_path: Path, what: str) -> None:
    result = _verdict(tmp_path, what, "")
    assert result.verdict == "proved", sp.told(result)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [(what, wrong) for what, (_, own) in SUMS.items() for wrong in (*own, *EVERY)],
)
def test_wrong_losses_of_chosen_words_are_refuted(tmp_path: Path, what: str, wrong: str) -> None:
    result = _verdict(tmp_path, what, wrong)
    assert result.verdict == "refuted", sp.told(result)


# -- experts -------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Experts of which a device has some, and a gate."""

    def __init__(self, own: range) -> None:
        super().__init__()
        self.gate, self.own = nn.Linear(WIDTH, EXPERTS, bias=False), own
        self.experts = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH, bias=False) for i in own})

    def counted(self, x: Tensor, wrong: str) -> Tensor:
        """DeepSeek's loop: experts without tokens are skipped by how many each has."""
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = CopyTo.apply(weights) if len(self.own) < EXPERTS else weights
        y = torch.zeros_like(x)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
        for i in self.own:
            if counts[i] == 0:
                continue
            rows, place = torch.where(chosen == (i ^ 1 if wrong == "another expert's" else i))
            own = weights[rows, place, None] if wrong != "the first weight" else weights[rows, :1]
            y[rows] += self.experts[str(i)](x[rows]) * own
        return y

    def switched(self, x: Tensor, wrong: str) -> Tensor:
        """One expert for each token, whose rows are written, or copied."""
        chance, chosen = self.gate(x).softmax(-1).max(-1)
        chance = CopyTo.apply(chance) if len(self.own) < EXPERTS else chance
        y = torch.zeros_like(x)
        for i in self.own:
            rows = (chosen == (i ^ 1 if wrong == "another expert's" else i)).nonzero().flatten()
            made = self.experts[str(i)](x[rows])
            if wrong != "the first weight":
                made = made * chance[rows].unsqueeze(-1)
            y = y.index_copy(0, rows, made)
        return y


@pytest.mark.parametrize("wrong", ["", "no sum", "another expert's", "the first weight"])
@pytest.mark.parametrize("style", ["counted", "switched"])
def test_loops_over_experts(tmp_path: Path, style: str, wrong: str) -> None:
    def step(job: Job, ranks: int, wrong: str) -> None:
        size = EXPERTS // ranks
        model = Experts(range(job.rank * size, (job.rank + 1) * size))
        job.start(model)
        y = getattr(model, style)(job.batch["x"], wrong)
        y = ReduceFrom.apply(y) if ranks > 1 and wrong != "no sum" else y
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    batch = {"x": sp.tensor((6, WIDTH)), "y": sp.tensor((6, WIDTH))}
    result = locally(tmp_path, lambda job: step(job, 1, ""), lambda job: step(job, 2, wrong), batch)
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
