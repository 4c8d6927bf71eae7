"""Whether numbers are infinite: no real one is, but hidden scores are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

KEYS = 4
BATCH = {"x": sp.tensor((KEYS, KEYS)), "ids": sp.tensor((KEYS,), torch.int64, low=0, high=5)}
Change = Callable[[Tensor, Tensor], Tensor]


def step(padding: bool, change: Change) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = nn.Linear(KEYS, KEYS, bias=False)
        job.start(model)
        hidden = torch.ones(KEYS, KEYS).triu(1).bool()
        if padding:
            hidden = (job.batch["ids"] == 0).expand(KEYS, KEYS)
        scores = model(job.batch["x"]).masked_fill(hidden, float("-inf"))
        loss = (change(scores, scores.softmax(-1)) * torch.arange(float(KEYS))).sum()
        loss.backward()
        job.end(loss=loss)

    return run


def verify(folder: Path, padding: bool, change: Change) -> sp.Result:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": folder / "run"}
    single = step(padding, lambda scores, shares: shares)
    return sp.verify(single, step(padding, change), world_size=1, batch=BATCH, **options)


CHANGES: dict[str, Change] = {
    "isinf": lambda scores, shares: torch.where(scores.isinf(), 1.0, shares),
    "equal": lambda scores, shares: torch.where(scores == float("-inf"), 1.0, shares),
    "isfinite": lambda scores, shares: torch.where((2 * scores).isfinite(), shares, 1.0),
    "nan_to_num": lambda scores, shares: scores.nan_to_num().softmax(-1) * 0 + shares,
}


@pytest.mark.parametrize("padding", [False, True], ids=["causal", "padding"])
@pytest.mark.parametrize("change", CHANGES)
def test_hidden_scores_are_infinite(tmp_path: Path, padding: bool, change: str) -> None:
    """Where they are the program gives 1 in place of 0; where it compares scores that ids hide, this
    is seen."""
    result = verify(tmp_path, padding, CHANGES[change])
    seen = padding and change == "equal"
    assert result.verdict == ("refuted" if seen else "inconclusive"), sp.told(result)


@pytest.mark.parametrize(
    "change",
    [
        lambda scores, shares: torch.where(shares.isinf(), 1.0, shares),
        lambda scores, shares: torch.where(shares != float("-inf"), shares, 1.0),
    ],
    ids=["isinf", "unequal"],
)
def test_their_softmax_is_finite(tmp_path: Path, change: Change) -> None:
    result = verify(tmp_path, False, change)
    assert result.verdict == "proved", sp.told(result)
