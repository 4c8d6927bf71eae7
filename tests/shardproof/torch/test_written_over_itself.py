"""``h[:] += x`` ends with ``h[:]`` written over itself: memory that was there before is no blank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import shardproof.torch as sp  # noqa: E402

BATCH = {"x": sp.tensor((4, 4))}


def whole(x: torch.Tensor, factor: float) -> torch.Tensor:
    h = x.clone()
    h[:] += factor * x
    return h


def only_row(x: torch.Tensor, factor: float) -> torch.Tensor:
    h = x[:1] * factor
    h[0] *= 2
    return h


def first_entry(x: torch.Tensor, factor: float) -> torch.Tensor:
    h = x * factor
    h.fill_(h[0, 0])
    return h


def blank(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The twin: all of a new tensor is written with known numbers."""
    h = torch.empty(4)
    h.copy_(torch.arange(4) * factor)
    return h


@pytest.mark.parametrize("written", [whole, only_row, first_entry, blank])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "proved"), (3.0, "refuted")])
def test_what_is_written_over_itself_stays(
    written: Callable[[torch.Tensor, float], torch.Tensor], factor: float, verdict: str
) -> None:
    def step(factor: float) -> Callable[[sp.Job], None]:
        def run(job: sp.Job) -> None:
            job.start(torch.nn.Linear(1, 1))
            x = job.batch["x"]
            job.end(outputs={"y": written(x, factor) + x})

        return run

    result = sp.verify(step(1.0), step(factor), world_size=1, batch=BATCH)
    assert result.verdict == verdict, sp.told(result)
