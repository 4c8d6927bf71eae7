"""Loops over what a mask chooses: experts that have any tokens are taken, each row by itself is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.torch.capture import capture  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

ROWS, WIDTH, INNER, EXPERTS = 6, 4, 8, 4
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS, WIDTH)),
    "keep": sp.tensor((ROWS,), torch.bool),
}

Tensor = torch.Tensor
Job = Any


class Experts(nn.Module):
    """Two experts for each token, in a loop over those that have any, as transformers writes it."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.zeros(EXPERTS, INNER // ranks, WIDTH))
        self.down = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER // ranks))
        self.divided = ranks > 1

    def forward(self, x: Tensor, how: str) -> Tensor:
        x = self.first(x)
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, -1)
        if self.divided:
            x, weights = CopyTo.apply(x), CopyTo.apply(weights)
        made = torch.zeros_like(x)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        if how == "any":
            mask = mask == 1
            hit = mask.any(-1).any(-1).nonzero()
        else:
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for (expert,) in hit:
            if how == "no rows":
                made = made + F.linear(x, self.up[expert]).sum() * weights[:, :1]
                continue
            place, rows = torch.where(mask[expert])
            inner = F.silu(F.linear(x[rows], self.up[expert]))
            made.index_add_(
                0, rows, F.linear(inner, self.down[expert]) * weights[rows, place, None]
            )
        return made


def _step(job: Job, model: nn.Module, how: str, parameters: Any = None) -> None:
    job.start(model, parameters=parameters)
    made = model(job.batch["x"], how)
    made = ReduceFrom.apply(made) if job.world_size > 1 and how != "no sum" else made
    loss = (made - job.batch["y"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("how", ["counts", "any", "no sum"])
def test_a_loop_over_experts_that_have_tokens(tmp_path: Path, how: str) -> None:
    def parallel(job: Job) -> None:
        size = INNER // job.world_size
        rows = {"start": job.rank * size, "size": size}
        parts = {"up": sp.piece("up", dim=1, **rows), "down": sp.piece("down", dim=2, **rows)}
        _step(job, Experts(job.world_size), how, parts)

    def single(job: Job) -> None:
        _step(job, Experts(), how)

    result = locally(tmp_path, single, parallel, {k: BATCH[k] for k in "xy"})
    assert result.verdict == ("refuted" if how == "no sum" else "proved"), sp.told(result)
    assert any("of the 4 numbers that a loop" in str(a) for a in result.assumptions)


LOOPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rows": lambda z, keep: keep.nonzero(),
    "numbers": lambda z, keep: keep.nonzero().flatten().tolist(),
    "places": lambda z, keep: torch.where(keep)[0],
    "rows with any entry": lambda z, keep: (z.detach() > 0).any(-1).nonzero(),
    "rows with a count": lambda z, keep: ((z.detach() > 0).sum(-1) > 0).nonzero(),
    "the rows themselves": lambda z, keep: z[keep],
}


@pytest.mark.parametrize("what", LOOPS)
def test_a_loop_over_rows_is_refused(what: str) -> None:
    """It was taken to have all rows, chosen or not: such a step was proved beside one without any
    mask."""

    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        z = model(job.batch["x"])
        loss = z.sum() * 0
        for row in LOOPS[what](z, job.batch["keep"]):
            loss = loss + (row if what == "the rows themselves" else z[row]).pow(2).sum()
        loss.backward()
        job.end(loss=loss)

    with pytest.raises(InvalidInput, match="a loop over rows that a mask chooses"):
        capture(step, 1, [0], BATCH, {})


def test_a_loop_over_experts_that_takes_all_rows_is_refused() -> None:
    def step(job: Job) -> None:
        _step(job, Experts(), "no rows")

    with pytest.raises(InvalidInput, match="a loop over rows that a mask chooses"):
        capture(step, 1, [0], BATCH, {})


def test_numbers_of_two_rows_are_taken_apart() -> None:
    """A dimension of 2 is no number of rows where a step is recorded again with two of them."""

    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        first, second = model(job.batch["x"]).view(2, ROWS // 2, WIDTH).unbind(0)
        rows = torch.where(job.batch["keep"][: ROWS // 2])[0]
        loss = (first[rows] * second[rows]).sum()
        loss.backward()
        job.end(loss=loss)

    (recorded,) = capture(step, 1, [0], BATCH, {})
    assert recorded.counts
