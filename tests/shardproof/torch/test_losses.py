"""Losses beyond the cross-entropy under data parallelism, and causal rings of attention."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch.ordinary.parts import Case, Step  # noqa: E402
from benchmarks.torch.table import judged  # noqa: E402
from benchmarks.torch.unseen.losses import CASES  # noqa: E402
from benchmarks.torch.unseen.rings import CASES as RINGS  # noqa: E402

PROVED = [
    c
    for c in CASES
    if c.name
    in {
        "z-loss: torch and torch",
        "z-loss: torch and by hand",
        "z-loss: torch and log of the reciprocal",
        "entropy: log softmax and log softmax",
        "entropy: log softmax and log of p",
        "entropy: log of p and log softmax",
        "divergence: torch and torch",
        "focal: log p and log p",
    }
]


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def verdict(case: Case, step: Step) -> str:
    return judged(case, "", step, validate=False).verdict


@pytest.mark.parametrize("case", PROVED, ids=lambda c: c.name)
def test_a_loss_is_proved_and_another_loss_refuted(case: Case) -> None:
    assert verdict(case, case.right) == "proved"
    assert {verdict(case, step) for step in case.wrong.values()} == {"refuted"}


def test_a_causal_ring_that_adds_exponentials() -> None:
    (case,) = (c for c in RINGS if c.name == "causal ring, sums, 2 ranks, against by hand")
    assert verdict(case, case.right) == "proved"
    assert {verdict(case, step) for step in case.wrong.values()} == {"refuted"}


def test_a_causal_ring_that_merges_by_logaddexp() -> None:
    (case,) = (c for c in RINGS if c.name == "causal ring, lse, 2 ranks, against by hand")
    assert verdict(case, case.right) != "refuted"
    assert verdict(case, case.wrong["no rescale"]) == "refuted"
