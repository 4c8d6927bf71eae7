"""Labels that a step shifts and pads itself, and cuts along the sequence; log-probabilities that are
smoothed by hand; a batch tensor with the name of a parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step  # noqa: E402

WORDS, ROWS, LENGTH, IGNORED = 5, 2, 6, -100
IDS = sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=WORDS)


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Embedding(WORDS, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.t(ids).tanh().flatten(0, 1)


def along(ranks: int, labels: str, *, own: bool = False) -> Step:
    """Positions over ranks; ``own``: each rank shifts and pads what it has."""

    def padded(y: torch.Tensor) -> torch.Tensor:
        return F.pad(y, (0, 1), value=IGNORED)[:, 1:].contiguous()

    def run(job: sp.Job) -> None:
        model = Words()
        job.start(model)
        ids, y = (job.batch[name].chunk(ranks, 1)[job.rank] for name in ("ids", labels))
        y = padded(y) if own else padded(job.batch[labels]).chunk(ranks, 1)[job.rank]
        count = (y != IGNORED).sum()
        if ranks > 1:
            dist.all_reduce(count)
        loss = F.cross_entropy(model(ids), y.flatten(), reduction="sum") / count
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("labels", ["ids", "t.weight"])
def test_labels_over_ranks(labels: str) -> None:
    """Also of a batch tensor that has the name of a parameter, with labels of any domain."""
    batch = {"ids": IDS, "t.weight": sp.tensor((ROWS, LENGTH), torch.int64)}
    one = along(1, labels)
    right = sp.verify(one, along(2, labels), world_size=2, batch=batch)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(one, along(2, labels, own=True), world_size=2, batch=batch)
    assert wrong.verdict != "proved"
    assert labels != "ids" or wrong.verdict == "refuted"


class Smoothed(torch.autograd.Function):
    """The loss with a tenth for all classes, whose gradient is written by hand."""

    @staticmethod
    def forward(ctx: object, z: torch.Tensor, y: torch.Tensor, part: float) -> torch.Tensor:
        z = z - z.amax(-1, keepdim=True)
        e, total = z.exp(), z.exp().sum(-1)
        p = e / total[:, None]
        ctx.save_for_backward(p, y)  # type: ignore[attr-defined]
        ctx.part = part  # type: ignore[attr-defined]
        picked = z.gather(-1, y[:, None])[:, 0]
        return (1 - part) * (total.log() - picked) - part * p.log().mean(-1)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        p, y = ctx.saved_tensors  # type: ignore[attr-defined]
        part: float = ctx.part  # type: ignore[attr-defined]
        d = p - (1 - part) * F.one_hot(y, WORDS) - part / WORDS
        return d * gradient[:, None], None, None


def smoothed(part: float, *, by_hand: bool = False) -> Step:
    def run(job: sp.Job) -> None:
        model = Words()
        job.start(model)
        z, y = model(job.batch["ids"]), job.batch["y"].flatten()
        if by_hand:
            loss = Smoothed.apply(z, y, part).mean()
        else:
            logs = z.log_softmax(-1)
            each = -(1 - part) * logs.gather(-1, y[:, None])[:, 0] - part * logs.mean(-1)
            loss = each.mean()
        loss.backward()
        job.end(loss=loss)

    return run


def test_smoothing_by_hand_is_autograds() -> None:
    """Of ``0.1 * 12 / 11``, which two roundings leave beside 6/55, all is 1, too."""
    one, part = smoothed(0.1 * 12 / 11), 0.1 * 12 / 11
    batch = {"ids": IDS, "y": IDS}
    right = sp.verify(one, smoothed(part, by_hand=True), world_size=1, batch=batch)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(one, smoothed(0.1, by_hand=True), world_size=1, batch=batch)
    assert wrong.verdict == "refuted"
