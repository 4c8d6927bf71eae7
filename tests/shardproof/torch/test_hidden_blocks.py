"""Scores that a mask hides altogether are minus infinity: computed with, as IEEE's arithmetic does, and
refused where that gives no number.  (Rings with such blocks: `test_running_maximum`.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step  # noqa: E402

NOTHING = float("-inf")
Make = Callable[[Tensor, Tensor], Tensor]
SIZE = 3
#: Of a mask [3, 3] that is true everywhere.
EVERYWHERE = torch.arange(SIZE)[:, None] + torch.arange(SIZE) >= 0


ALIKE: dict[str, tuple[Make, Make]] = {
    "exp": (lambda x, hidden: hidden.exp() + x, lambda x, hidden: x),
    "maximum": (
        lambda x, hidden: x + torch.maximum(hidden.detach().amax(1), x.detach()[0]),
        lambda x, hidden: x + x.detach()[0],
    ),
    "less": (lambda x, hidden: (hidden - x).exp() + x, lambda x, hidden: x),
    "logsumexp": (
        lambda x, hidden: hidden.detach().logsumexp(1, keepdim=True).exp() + x,
        lambda x, hidden: x,
    ),
    "where": (
        lambda x, hidden: torch.where(EVERYWHERE, NOTHING, x).exp() + x,
        lambda x, hidden: x,
    ),
    "nowhere": (
        lambda x, hidden: x.masked_fill(~EVERYWHERE, NOTHING).softmax(1),
        lambda x, hidden: x.softmax(1),
    ),
}


def step(make: Make) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(SIZE, SIZE, bias=False)
        job.start(model)
        x = model(job.batch["x"])
        loss = make(x, x.masked_fill(EVERYWHERE, NOTHING)).square().sum()
        loss.backward()
        job.end(loss=loss)

    return run


def verdict(one: Make, other: Make, folder: Path) -> str:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": folder / "run"}
    batch = {"x": sp.tensor((SIZE, SIZE))}
    return sp.verify(step(one), step(other), world_size=1, batch=batch, **options).verdict


@pytest.mark.parametrize("case", ALIKE)
def test_minus_infinity_alone(case: str, tmp_path: Path) -> None:
    assert verdict(*ALIKE[case], tmp_path) == "proved"


def test_minus_infinity_is_not_zero(tmp_path: Path) -> None:
    def shifted(x: Tensor, hidden: Tensor) -> Tensor:
        return hidden.exp() + x + 1

    assert verdict(shifted, lambda x, hidden: x, tmp_path) == "refuted"


@pytest.mark.parametrize(
    "make",
    [
        lambda x, hidden: hidden.softmax(1) + x,
        lambda x, hidden: hidden.log_softmax(1).exp() + x,
        lambda x, hidden: (hidden - hidden.amax(1, keepdim=True)).exp() + x,
        lambda x, hidden: (hidden - x.masked_fill(EVERYWHERE.tril(-1), NOTHING)).exp() + x,
    ],
    ids=["softmax", "log_softmax", "less itself", "less hidden scores"],
)
def test_what_is_no_number_is_not_proved(make: Make, tmp_path: Path) -> None:
    """PyTorch gives nan."""
    assert verdict(make, lambda x, hidden: x, tmp_path) == "inconclusive"
