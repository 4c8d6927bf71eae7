"""Two kinds of steps that were undecided once: labels that a mask of the batch makes the ignored
class, counted over all ranks beside ids that are looked up; and FSDP2 with one row on each rank, of
a model that puts a learned prefix before its tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, LENGTH, WIDTH, WORDS, CLASSES = 2, 4, 8, 16, 3


def words(rows: int, high: int = WORDS) -> sp.TensorSpec:
    return sp.tensor((rows, LENGTH), torch.int64, low=0, high=high)


def completion(job: sp.Job, ranks: int, local: bool = False) -> None:
    """``local``: every rank divides by its own count."""
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS))
    job.start(model)
    ids, mask = (job.batch[name].chunk(ranks)[job.rank] for name in ("ids", "mask"))
    labels = F.pad(ids.masked_fill(mask == 0, -100), (0, 1), value=-100)[:, 1:]
    count = (labels != -100).sum()
    if ranks > 1 and not local:
        dist.all_reduce(count)
    logits = model(ids).flatten(0, 1)
    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / count
    loss.backward()
    for parameter in model.parameters() if ranks > 1 else ():
        dist.all_reduce(parameter.grad)
    job.end(loss=loss)


class Prefixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.prefix = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(2, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.prefix.expand(len(ids), -1, -1), self.table(ids)], 1)
        y: torch.Tensor = self.out(self.layer(x)[:, 2:].mean(1))
        return y


def prefixed(job: sp.Job, ranks: int, double: bool = False) -> None:
    """``double``: gradients are twice what they should be."""
    model = Prefixed()
    if ranks > 1:
        mesh = init_device_mesh("cpu", (ranks,))
        fully_shard(model.layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    job.start(model)
    ids, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("ids", "y"))
    loss = F.cross_entropy(model(ids), y)
    (loss * (2 if double else 1)).backward()
    job.end(loss=loss)


def decided(
    step: Callable[[sp.Job, int, bool], None], batch: dict[str, sp.TensorSpec], out: Path
) -> None:
    """A step on all ranks is proved, and refuted with its mistake."""
    for mistake, verdict in ((False, "proved"), (True, "refuted")):
        result = sp.verify(
            lambda job: step(job, 1, False),
            lambda job, mistake=mistake: step(job, RANKS, mistake),  # type: ignore[misc]
            world_size=RANKS,
            batch=batch,
            executor="local",
            out=out / verdict,
        )
        assert result.verdict == verdict, sp.told(result)


def test_labels_that_a_mask_hides_are_counted_over_all_ranks(tmp_path: Path) -> None:
    decided(completion, {"ids": words(RANKS), "mask": words(RANKS, 2)}, tmp_path)


def test_a_prefix_before_one_row_on_each_rank(tmp_path: Path) -> None:
    labels = sp.tensor((RANKS,), torch.int64, low=0, high=CLASSES)
    decided(prefixed, {"ids": words(RANKS), "y": labels}, tmp_path)
