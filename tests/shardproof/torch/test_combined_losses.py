"""How losses of microbatches and ranks combine, where no way is proved: numbers decide, of the
programs at their true sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

ROWS, TOKENS, RANKS, WIDTH, CLASSES = 8, 4, 2, 4, 16
BATCH = {
    name: sp.tensor((ROWS, TOKENS), torch.int64, low=0, high=CLASSES)
    for name in ("tokens", "labels")
}


class Attention(nn.Module):
    """Causal attention over an embedding: its positions are fewer where axes are made smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        weights = (x @ x.transpose(1, 2)).masked_fill(later, -torch.inf).softmax(-1)
        return F.cross_entropy(self.head(weights @ x).reshape(-1, CLASSES), labels.reshape(-1))


def single(job: sp.Job) -> None:
    model = Attention()
    job.start(model)
    loss = model(job.batch["tokens"], job.batch["labels"])
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize(("share", "verdict"), [(2, "inconclusive"), (1, "refuted")])
def test_a_program_that_counts_positions(tmp_path: Path, share: int, verdict: str) -> None:
    """Of labels that were floats, which are whole numbers is not known, so each microbatch counts
    them, while the single device divides by their number.  With fewer positions the mean of what
    each loss is divided by (2) looks right, and their sum wrong; the twin does not divide."""

    def parallel(job: sp.Job) -> None:
        model = Attention()
        job.start(model)
        rows = [job.batch[name].chunk(RANKS)[job.rank].chunk(2) for name in BATCH]
        losses = []
        for tokens, labels in zip(*rows, strict=True):
            loss = model(tokens, labels.float().long()) / share
            loss.backward()
            losses.append(loss.detach())
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=losses)

    options = {"out": tmp_path / "run", "executor": "local", "cache": False}
    result = sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)
    assert result.verdict == verdict, result.reason
