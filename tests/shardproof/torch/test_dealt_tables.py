"""Known tables of which a rank has some rows beside others: the mask of a contrastive loss over two
views of each row, in which a rank's rows are two runs, and the places of their partners."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.nn.functional as collectives  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, ROWS = 2, 4


@pytest.mark.parametrize(("first", "expected"), [(2, "proved"), (0, "refuted")])
def test_two_views_of_each_row(first: int, expected: str, tmp_path: Path) -> None:
    """``first``: at how many times its number a rank's partners begin, to itself."""

    def single(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        views = torch.cat([model(job.batch["x"]), model(job.batch["y"])])
        scores = views @ views.T
        scores = scores.masked_fill(torch.eye(2 * ROWS, dtype=torch.bool), -1e9)
        loss = F.cross_entropy(scores, torch.arange(2 * ROWS).roll(ROWS))
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = DistributedDataParallel(nn.Linear(3, 2))
        job.start(model)
        both = model(torch.cat([job.batch[n].chunk(RANKS)[job.rank] for n in ("x", "y")]))
        every = torch.cat(
            [torch.cat(collectives.all_gather(v.contiguous())) for v in both.chunk(2)]
        )
        rows = torch.arange(ROWS // RANKS)
        own = torch.cat([rows + 2 * job.rank, rows + 2 * job.rank + ROWS])
        mask = torch.zeros(len(own), 2 * ROWS, dtype=torch.bool)
        mask[torch.arange(len(own)), own] = True
        partners = torch.cat([rows + first * job.rank + ROWS, rows + first * job.rank])
        loss = F.cross_entropy((both @ every.T).masked_fill(mask, -1e9), partners)
        loss.backward()
        job.end(loss=loss)

    result = sp.verify(
        single,
        parallel,
        world_size=RANKS,
        batch={"x": sp.tensor((ROWS, 3)), "y": sp.tensor((ROWS, 3))},
        out=tmp_path / "run",
        executor="local",
        cache=False,
    )
    assert result.verdict == expected, sp.told(result)
