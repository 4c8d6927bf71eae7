"""Causal masks of the smallest number that a type has, and what is wrong beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402

WIDTH, LENGTH = 4, 3
BATCH = {"x": sp.tensor((4, LENGTH, WIDTH))}


class Attention(nn.Module):
    """One head; ``sharpness``: a factor of the scores, and a table of slopes over distances."""

    def __init__(self, sharpness: float, slope: float) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sharpness, self.slope = sharpness, slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(LENGTH)
        scores = self.q(x) @ self.k(x).transpose(1, 2) * self.sharpness
        scores = scores - self.slope * (at[:, None] - at).clamp(min=0)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, torch.finfo(x.dtype).min).softmax(-1) @ x


def step(ranks: int, sharpness: float = 0.5, slope: float = 0.25) -> Step:
    def run(job: sp.Job) -> None:
        own = Attention(sharpness, slope)
        model = own if ranks == 1 else DistributedDataParallel(own)
        job.start(model)
        loss = model(job.batch["x"].chunk(ranks)[job.rank]).square().mean()
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("sharpness", "slope", "verdict"),
    [(0.5, 0.25, "proved"), (1.0, 0.25, "refuted"), (0.5, 0.5, "refuted")],
    ids=["right", "sharper", "steeper"],
)
def test_what_a_finite_mask_shows_is_seen(
    tmp_path: Path, sharpness: float, slope: float, verdict: str
) -> None:
    """Numbers beside one of 10^38 are not lost where both sides are run."""
    result = locally(tmp_path, step(1), step(2, sharpness, slope), BATCH)
    assert result.verdict == verdict, sp.told(result)


class Padded(nn.Module):
    """A causal mask of minus infinity, and -1e9 where the batch has padding, also on keys that the
    mask has hidden: of the first query's row, whose key may be padding, nothing else is left."""

    def __init__(self, form: str, padding: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.form, self.padding = form, padding

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores, padding = scores.masked_fill(later, -torch.inf), ids[:, None] == self.padding
        if self.form == "where":
            return torch.where(padding, -1e9, scores).softmax(-1) @ x
        return scores.masked_fill(padding, -1e9).softmax(-1) @ x


def padded(ranks: int, form: str, padding: int = 0) -> Step:
    def run(job: sp.Job) -> None:
        own = Padded(form, padding)
        model = own if ranks == 1 else DistributedDataParallel(own)
        job.start(model)
        x, ids = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "ids"))
        loss = model(x, ids).square().mean()
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("form", ["masked_fill", "where"])
@pytest.mark.parametrize(("padding", "verdict"), [(0, "proved"), (1, "refuted")])
def test_numbers_that_are_written_over_hidden_scores(
    tmp_path: Path, form: str, padding: int, verdict: str
) -> None:
    batch = BATCH | {"ids": sp.tensor((4, LENGTH), torch.long, low=0, high=2)}
    result = locally(tmp_path, padded(1, form), padded(2, form, padding), batch)
    assert result.verdict == verdict, sp.told(result)
