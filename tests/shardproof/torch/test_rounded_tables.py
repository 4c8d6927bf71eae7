"""Tables that depend on no input and are rounded to fewer digits, as rotary angles are under a
policy of mixed precision: rounding changes nothing about what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shardproof.torch as sp
from tests.shardproof.torch.words_on_two_ranks import verified

WORDS, LENGTH, WIDTH = 16, 4, 8
IDS = sp.tensor((4, LENGTH), torch.int64, low=0, high=WORDS)


class Model(nn.Module):
    """Rows of a table times cosines of angles, which are cast to the rows' element type."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        rates = 1.0 / base ** (torch.arange(0, WIDTH).float() / WIDTH)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.words(ids)
        angles = torch.arange(LENGTH).float()[:, None] * self.rates[None]
        turned = rows * angles.cos().to(rows.dtype)[None]
        return self.head(turned)


def step(job: sp.Job, model: nn.Module, rows: slice) -> None:
    job.start(model)
    logits = model(job.batch["ids"][rows])
    loss = F.cross_entropy(logits.float().flatten(0, 1), job.batch["labels"][rows].flatten())
    loss.backward()
    job.end(loss=loss)


def single(job: sp.Job) -> None:
    step(job, Model(100.0), slice(None))


@pytest.mark.parametrize(("base", "expected"), [(100.0, "proved"), (10.0, "refuted")])
def test_a_table_that_is_cast_to_fewer_digits(base: float, expected: str, tmp_path: Path) -> None:
    def parallel(job: sp.Job) -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(Model(base), mp_policy=policy)
        step(job, model, slice(2 * job.rank, 2 * job.rank + 2))

    verified(tmp_path, single, parallel, IDS, expected, validate=True)
