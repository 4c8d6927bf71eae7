"""Probabilities of which a mask hides some are 0 there: a product with their logarithm is no
number, and PyTorch's own functions are 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import shardproof.torch as sp  # noqa: E402

Function = Callable[[torch.Tensor], torch.Tensor]


def _own(p: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(p).sum(-1)


def _by_hand(p: torch.Tensor) -> torch.Tensor:
    return -(p * p.log()).sum(-1)


def _chosen(p: torch.Tensor) -> torch.Tensor:
    return torch.where(p > 0, p.log(), 0.0)


def _multiplied(p: torch.Tensor) -> torch.Tensor:
    return (p > 0) * p.log()


@pytest.fixture
def entropies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sp.Result]:
    monkeypatch.chdir(tmp_path)

    def verify(of: Function, on_ranks: Function, causal: bool) -> sp.Result:
        def step(job: sp.Job, function: Function) -> None:
            model = torch.nn.Linear(3, 5)
            job.start(model)
            rows = 4 // job.world_size
            first = job.rank * rows
            scores = model(job.batch["x"][first:][:rows])
            if causal:
                hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            piece = sp.piece("made", dim=0, start=first, size=rows)
            made = function(scores.softmax(-1)).detach()
            job.end(outputs={"made": made}, pieces={"made": piece})

        return sp.verify(
            lambda job: step(job, of),
            lambda job: step(job, on_ranks),
            world_size=2,
            batch={"x": sp.tensor((4, 5, 3))},
        )

    return verify


@pytest.mark.parametrize(
    ("on_ranks", "causal", "verdict"),
    [(_own, True, "proved"), (_by_hand, True, "refuted"), (_by_hand, False, "proved")],
)
def test_entropies_of_what_a_mask_hides(
    entropies: Callable[..., sp.Result], on_ranks: Function, causal: bool, verdict: str
) -> None:
    assert entropies(_own, on_ranks, causal).verdict == verdict


@pytest.mark.parametrize("causal", [False, True])
def test_a_product_with_what_is_hidden_is_proved_under_an_assumption(
    entropies: Callable[..., sp.Result], causal: bool
) -> None:
    result = entropies(_chosen, _multiplied, causal)
    printed = [line for line in result.assumptions if "torch.where or masked_fill" in line]
    assert (result.verdict, bool(printed)) == ("proved", causal)
