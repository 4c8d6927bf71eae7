"""Rows whose number depends on data, added up over ranks: proved where all ranks choose the same
rows by masks that are computed alike, else not understood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

ROWS, WIDTH, INNER, EXPERTS = 6, 4, 8, 3
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS, WIDTH)),
    "keep": sp.tensor((ROWS, 2), torch.bool),
}

Tensor = torch.Tensor
Job = Any


class Divided(nn.Module):
    """Experts whose inner dimension is divided over ranks; each adds up the rows of its tokens."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        inner, self.divided = INNER // ranks, ranks > 1
        self.up = nn.ModuleList(nn.Linear(WIDTH, inner, bias=False) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(inner, WIDTH, bias=False) for _ in range(EXPERTS))

    def expert(self, i: int, rows: Tensor, wrong: str) -> Tensor:
        if self.divided and wrong != "gradients that stay parts":
            rows = CopyTo.apply(rows)
        made: Tensor = self.down[i](F.silu(self.up[i](rows)))
        return ReduceFrom.apply(made) if self.divided and wrong != "no sum" else made

    def routed(self, x: Tensor, wrong: str) -> Tensor:
        x = self.first(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for i in range(EXPERTS):
            rows, place = torch.where(chosen == i)
            own = (i + 1) % EXPERTS if self.divided and wrong == "another expert" else i
            y.index_add_(0, rows, self.expert(own, x[rows], wrong) * weights[rows, place, None])
        return y


def _pieces(rank: int) -> dict[str, Any]:
    part = {"start": rank * INNER // 2, "size": INNER // 2}
    own = {f"up.{i}.weight": sp.piece(f"up.{i}.weight", dim=0, **part) for i in range(EXPERTS)}
    return own | {
        f"down.{i}.weight": sp.piece(f"down.{i}.weight", dim=1, **part) for i in range(EXPERTS)
    }


def _verdict(folder: Path, made: Callable[[Job, Divided, bool], Tensor]) -> sp.Result:
    def step(job: Job, ranks: int) -> None:
        model = Divided(ranks)
        job.start(model, parameters=_pieces(job.rank) if ranks > 1 else None)
        loss = F.mse_loss(made(job, model, ranks > 1), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return locally(folder, lambda job: step(job, 1), lambda job: step(job, 2), BATCH)


@pytest.mark.parametrize("wrong", ["", "gradients that stay parts", "no sum", "another expert"])
def test_divided_experts_that_add_up_their_rows(tmp_path: Path, wrong: str) -> None:
    result = _verdict(
        tmp_path, lambda job, model, ranks: model.routed(job.batch["x"], wrong if ranks else "")
    )
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)


def _scattered(job: Job, x: Tensor, rank: int) -> Tensor:
    part, keep = x.new_empty(ROWS), job.batch["keep"].float()
    dist.reduce_scatter_tensor(part, keep.t().flatten())
    return part > 1


#: Masks of a rank that are no other rank's, or are not seen to be.
UNLIKE: dict[str, Callable[[Job, Tensor, int], Tensor]] = {
    "another column": lambda job, x, rank: job.batch["keep"][:, rank],
    "the inverse": lambda job, x, rank: job.batch["keep"][:, 0] ^ bool(rank),
    "another threshold": lambda job, x, rank: job.batch["x"][:, 0] > rank,
    "other rows": lambda job, x, rank: job.batch["x"].roll(rank, 0)[:, 0] > 0,
    "other numbers": lambda job, x, rank: torch.tensor([1, 0, 1, 1, 0, rank + 1]) * x[:, 0] > 0,
    "its own part": lambda job, x, rank: x.new_ones(ROWS) * job.full["up.0.weight"][rank, 0] > 0,
    "what is drawn": lambda job, x, rank: torch.rand(ROWS) + 0 * x[:, 0] > 0.5,
    "what is scattered": _scattered,
    "what is received": lambda job, x, rank: _exchanged(job)[:, 0] > 0,
    "what it has of a sum": lambda job, x, rank: job.batch["x"].chunk(2, 1)[rank].sum(-1) > 0,
}


def _exchanged(job: Job) -> Tensor:
    made = torch.empty_like(job.batch["x"])
    dist.all_to_all_single(made, job.batch["x"] * 1)
    return made


#: Masks that are computed alike on all ranks.
ALIKE: dict[str, Callable[[Job, Tensor, int], Tensor]] = {
    "an input": lambda job, x, rank: job.batch["keep"][:, 0],
    "what is computed": lambda job, x, rank: x.detach().tanh().sum(-1) > 0.5,
}


@pytest.mark.parametrize("mask", [*UNLIKE, *ALIKE])
def test_rows_of_masks_that_may_differ_are_not_added_up(tmp_path: Path, mask: str) -> None:
    def made(job: Job, model: Divided, ranks: bool) -> Tensor:
        x = model.first(job.batch["x"])
        how = ALIKE.get(mask) or (UNLIKE[mask] if ranks else ALIKE["an input"])
        keep = how(job, x.detach(), job.rank if ranks else 0)
        y = torch.zeros_like(x)
        y[keep] = model.expert(0, x[keep], "")
        return y

    result = _verdict(tmp_path, made)
    assert (result.verdict == "proved") == (mask in ALIKE), sp.told(result)
    if mask in UNLIKE:
        assert "rows that ranks add up" in sp.told(result)


@pytest.mark.parametrize("unlike", [False, True])
def test_masks_that_differ_in_one_group_of_two(tmp_path: Path, unlike: bool) -> None:
    """Rank 3 would be rank 1 by other names, if its part of the mask were no more than a name."""

    def step(job: Job, ranks: int) -> None:
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        part = sp.piece("weight", dim=1, start=2 * (job.rank % 2), size=2)
        if ranks > 1:
            model = nn.Linear(2, WIDTH, bias=False)
        groups = [dist.new_group([i, i + 1]) for i in range(0, ranks - 1, 2)]
        job.start(model, parameters={"weight": part} if ranks > 1 else None)
        column = int(unlike and job.rank == 3)
        x, keep = job.batch["x"], job.batch["keep"].narrow(1, column, 1).squeeze(1)
        x = x.narrow(1, 2 * (job.rank % 2), 2) if ranks > 1 else x
        with torch.no_grad():
            rows = model(x[keep])
            if ranks > 1:
                dist.all_reduce(rows, group=groups[job.rank // 2])
            made = torch.zeros_like(job.batch["x"]).index_add_(0, keep.nonzero()[:, 0], rows)
        job.end(outputs={"made": made})

    batch = {name: BATCH[name] for name in ("x", "keep")}
    result = locally(tmp_path, lambda job: step(job, 1), lambda job: step(job, 4), batch, ranks=4)
    assert result.verdict == ("inconclusive" if unlike else "proved"), sp.told(result)
    if unlike:
        assert "ranks 0-3: comm.all_reduce" in sp.told(result)
