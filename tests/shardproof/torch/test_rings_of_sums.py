"""A sum over positions that goes round a ring of four ranks: each adds the positions up in an order
of its own, of which neighbours are not next to one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

WIDTH, RANKS = 8, 4
BATCH = {"x": sp.tensor((RANKS, WIDTH))}


def single(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    job.start(model)
    total = F.linear(job.batch["x"], model.weight).sum(0, keepdim=True)
    job.end(outputs={"y": torch.tanh(total)})


def ring(*, forgets: bool) -> sp.Step:
    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        row = F.linear(job.batch["x"].chunk(RANKS)[job.rank], model.weight).detach()
        total = torch.zeros_like(row)
        after, before = (job.rank + 1) % RANKS, (job.rank - 1) % RANKS
        for turn in range(RANKS):
            if not (forgets and turn == 2):
                total = total + row
            into = torch.empty_like(row)
            sends = [dist.P2POp(dist.isend, row.contiguous(), after)]
            for work in dist.batch_isend_irecv([*sends, dist.P2POp(dist.irecv, into, before)]):
                work.wait()
            row = into
        job.end(outputs={"y": torch.tanh(total)})

    return step


def test_a_sum_that_goes_round_is_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    right = sp.verify(single, ring(forgets=False), world_size=RANKS, batch=BATCH)
    assert right.verdict == "proved", right
    wrong = sp.verify(single, ring(forgets=True), world_size=RANKS, batch=BATCH)
    assert wrong.verdict == "refuted", wrong
