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
