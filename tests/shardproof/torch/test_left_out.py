"""What a choice leaves out may be no number, and a product with the choice's mask is none then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.aten.positive import (  # noqa: E402
    CHANGES_NOTHING,
    FINDS_NUMBERS,
    LEFT_OUT,
    OF_NUMBERS,
)

Tensor = torch.Tensor


def _chosen(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.log(), 0.0)


def _filled(x: Tensor) -> Tensor:
    return (2 / x).masked_fill(x == 0, 0.0)


def _never_none(x: Tensor) -> Tensor:
    return torch.where(x > 0, (x.square() + 1).log() / x.relu().clamp(min=0.1), 0.0)


def _asked(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x.sqrt()), 0.0, x)


def _not_asked(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("single", "ranks", "printed"),
    [
        (_chosen, _chosen, LEFT_OUT),
        (_chosen, lambda x: (x > 0) * x.log(), LEFT_OUT),
        (_filled, lambda x: (x != 0) * (2 / x), LEFT_OUT),
        (_never_none, _never_none, ""),
        (_asked, _not_asked, FINDS_NUMBERS),
        (lambda x: x.sqrt().nansum(1), lambda x: x.sqrt().sum(1), FINDS_NUMBERS),
        (lambda x: x.sqrt().nan_to_num(0.0), torch.sqrt, CHANGES_NOTHING),
    ],
)
def test_what_may_be_no_number_is_printed(
    single: Callable[[Tensor], Tensor],
    ranks: Callable[[Tensor], Tensor],
    printed: str,
    tmp_path: Path,
) -> None:
    def step(job: sp.Job, function: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        job.start(model)
        rows = 4 // job.world_size
        x = job.batch["x"][job.rank * rows :][:rows]
        made = function(x) * (model(x).mT if function(x).dim() == 1 else model(x))
        job.end(loss=made.mean())

    result = sp.verify(
        lambda job: step(job, single),
        lambda job: step(job, ranks),
        world_size=2,
        batch={"x": sp.tensor((4, 3))},
        out=tmp_path / "run",
        cache=False,
    )
    assert result.verdict == "proved", sp.told(result)
    said = {a.text: a.kind for a in result.assumption_details if a.text in OF_NUMBERS}
    assert said == ({printed: "inferred"} if printed else {})
