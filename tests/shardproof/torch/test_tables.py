"""Tables of constants that a proof takes for any numbers, where a difference may need them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 3))}


def weighted(table: Sequence[float], ranks: int = 1) -> sp.Job:
    """A loss whose rows count as a table says; data parallel over ranks."""

    def step(job: sp.Job) -> None:
        model = nn.Linear(3, 3)
        job.start(model)
        x, y = (job.batch[k].chunk(ranks)[job.rank] for k in ("x", "y"))
        loss = (F.mse_loss(model(x), y, reduction="none") * torch.tensor(table)[:, None]).mean()
        loss.backward()
        for p in model.parameters() if ranks > 1 else ():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step  # type: ignore[return-value]


def verdict(single: Sequence[float], own: Sequence[float]) -> sp.Result:
    return sp.verify(
        weighted(single),  # type: ignore[arg-type]
        weighted(own, 2),  # type: ignore[arg-type]
        world_size=2,
        batch=BATCH,
        executor="local",
        cache=False,
    )


def test_a_program_that_is_right_for_its_own_tables_is_not_refuted() -> None:
    """Each rank has half of a table whose halves are alike: which way losses combine holds is seen
    with the table that the programs have."""
    result = verdict([1.0, 2.0, 1.0, 2.0], [1.0, 2.0])
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)


@pytest.mark.parametrize("own", [[1.0, 3.0], [2.0, 1.0]])
def test_a_table_that_ranks_alone_have_is_refuted_where_it_makes_a_difference(
    own: list[float],
) -> None:
    result = verdict([1.0, 2.0, 1.0, 2.0], own)
    assert result.verdict == "refuted", sp.told(result)


def test_a_table_that_ranks_alone_have_is_no_difference_by_itself() -> None:
    """The single side has 2 to the power of n as a number, the ranks as a table that is divided
    again."""

    def single(job: sp.Job) -> None:
        model = nn.Linear(3, 3)
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(3, 3)
        job.start(model)
        table = torch.tensor([2.0, 4.0, 8.0])
        x, y = (job.batch[k].chunk(2)[job.rank] for k in ("x", "y"))
        loss = F.mse_loss(model(x) * table / table, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    result = sp.verify(single, parallel, world_size=2, batch=BATCH, executor="local", cache=False)
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)
