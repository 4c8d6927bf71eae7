"""A depthwise convolution whose channels are divided: its weights [C, 1, K] have a dimension of one
position, along which memory may have any stride."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from torch.nn.functional import conv1d

import shardproof.torch as sp
from tests.shardproof.torch.locally import locally
from tests.shardproof.torch.steps import ReduceFrom

BATCH = {"x": sp.tensor((2, 4, 3))}


def single(job: sp.Job) -> None:
    model = nn.Conv1d(4, 4, 2, groups=4)
    job.start(model)
    loss = model(job.batch["x"]).square().sum()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("right", [True, False])
def test_channels_of_a_rank_are_its_part(tmp_path: Path, right: bool) -> None:
    def parallel(job: sp.Job) -> None:
        model, rank = nn.Conv1d(2, 2, 2, groups=2), job.rank
        model.weight = nn.Parameter(job.full["weight"].chunk(2)[rank])
        model.bias = nn.Parameter(job.full["bias"].chunk(2)[rank])
        job.start(model)
        x = job.batch["x"].chunk(2, 1)[rank if right else 0]
        own = conv1d(x, model.weight, model.bias, groups=2).square().sum()
        loss = ReduceFrom.apply(own)
        loss.backward()
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, BATCH)
    assert result.verdict == ("proved" if right else "refuted"), sp.told(result)
