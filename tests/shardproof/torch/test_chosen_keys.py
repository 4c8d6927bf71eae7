"""Attention over the keys that an indexer chooses (``topk`` of causal scores, zeros scattered over
minus infinity), heads over ranks, as DeepSeek's sparse attention has it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

WIDTH, LENGTH, HEAD = 4, 4, 2
BATCH = {"x": sp.tensor((1, LENGTH, WIDTH))}


class Sparse(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.index = nn.Linear(WIDTH, 4, bias=False).requires_grad_(False)
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * HEAD, bias=False) for _ in "qkv")
        self.out = nn.Linear(heads * HEAD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, h: torch.Tensor, keys: int) -> torch.Tensor:
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        with torch.no_grad():
            q, k = self.index(x).chunk(2, -1)
            chosen = (q @ k.transpose(1, 2)).masked_fill(later, -torch.inf).topk(keys).indices
            mask = torch.full((1, LENGTH, LENGTH), -torch.inf).scatter(-1, chosen, 0.0)
            mask = mask.masked_fill(later, -torch.inf)
        q, k, v = (w(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        return self.out(y.transpose(1, 2).flatten(2))


def single(job: sp.Job) -> None:
    model, x = Sparse(2), job.batch["x"]
    job.start(model)
    loss = model(x, x, 2).square().mean()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize(("keys", "verdict"), [(2, "proved"), (3, "refuted")])
def test_keys_that_are_chosen_are_read_alike(tmp_path: Path, keys: int, verdict: str) -> None:
    def parallel(job: sp.Job) -> None:
        model, x = Sparse(1), job.batch["x"]
        rows = {"start": HEAD * job.rank, "size": HEAD}
        dims = {"q": 0, "k": 0, "v": 0, "out": 1}
        parts = {f"{n}.weight": sp.piece(f"{n}.weight", dim=d, **rows) for n, d in dims.items()}
        job.start(model, parameters=parts)
        loss = ReduceFrom.apply(model(x, CopyTo.apply(x), keys)).square().mean()
        loss.backward()
        job.end(loss=loss)

    given = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    result = sp.verify(single, parallel, world_size=2, batch=BATCH, **given)
    assert result.verdict == verdict, sp.told(result)
