"""A rank with as many words as there are classes: what one is, the other one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

#: A rank of two has 2 x 3 words, and there are 6 classes.
ROWS, LENGTH, CLASSES, WIDTH = 4, 3, 6, 4


@pytest.mark.parametrize(("own", "verdict"), [(False, "proved"), (True, "refuted")])
def test_labels_that_count_beside_as_many_classes(tmp_path: Path, own: bool, verdict: str) -> None:
    def step(job: Any, own: bool) -> None:
        model = nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES))
        job.start(model)
        ids, labels = (job.batch[k].chunk(job.world_size)[job.rank] for k in ("ids", "labels"))
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")
        count = (labels != -100).sum()
        if job.world_size > 1 and not own:
            dist.all_reduce(count)
        loss = loss / count
        loss.backward()
        for parameter in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    batch = {
        "ids": sp.tensor((ROWS, LENGTH), torch.long, low=0, high=CLASSES),
        "labels": sp.tensor((ROWS, LENGTH), torch.long),
    }
    made = locally(tmp_path, lambda job: step(job, False), lambda job: step(job, own), batch)
    assert made.verdict == verdict
