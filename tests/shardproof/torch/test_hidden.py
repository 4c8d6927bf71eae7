"""Attention whose scores are minus infinity in places, under data parallelism: each beside a twin
whose mask is another one on one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

TOKENS = 8
NOTHING = float("-inf")
#: What is kept of scores [rows, 1, queries, keys], by ids of tokens and flags.
Kept = Callable[[Tensor, Tensor], Tensor]


def window(ids: Tensor, flags: Tensor) -> Tensor:
    gap = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    return (gap >= 0) & (gap < 3)


def tokens(ids: Tensor, flags: Tensor) -> Tensor:
    """Padding: tokens of id 0 are not read."""
    return (ids != 0)[:, None, None, :]


def other_tokens(ids: Tensor, flags: Tensor) -> Tensor:
    return (ids != 1)[:, None, None, :]


def documents(ids: Tensor, flags: Tensor) -> Tensor:
    """Packed documents, numbered: tokens read those before them in theirs."""
    alike = ids[:, :, None] == ids[:, None, :]
    return (alike & torch.ones(TOKENS, TOKENS).tril().bool())[:, None]


def all_documents(ids: Tensor, flags: Tensor) -> Tensor:
    return torch.ones(TOKENS, TOKENS).tril().bool()


def given(ids: Tensor, flags: Tensor) -> Tensor:
    return flags[:, None]


def turned(ids: Tensor, flags: Tensor) -> Tensor:
    return flags.transpose(1, 2)[:, None]


def fused(q: Tensor, kept: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=kept)


def filled(q: Tensor, kept: Tensor) -> Tensor:
    return (q @ q.mT).masked_fill(~kept, NOTHING).softmax(-1) @ q


def added(q: Tensor, kept: Tensor) -> Tensor:
    mask = torch.where(kept, 0.0, torch.tensor(NOTHING))
    return (q @ q.mT + mask).softmax(-1) @ q


def by_sigmoids(q: Tensor, kept: Tensor) -> Tensor:
    return ((q @ q.mT).masked_fill(~kept, NOTHING) - 1.5).sigmoid() @ q


def rectified(q: Tensor, kept: Tensor) -> Tensor:
    return (q @ q.mT + torch.where(kept, 0.0, torch.tensor(NOTHING))).relu().square() @ q


CASES = {
    "documents, by sigmoids": (documents, all_documents, by_sigmoids),
    "window, by sigmoids": (window, all_documents, by_sigmoids),
    "padding, rectified": (tokens, other_tokens, rectified),
    "window, fused": (window, all_documents, fused),
    "window, added": (window, all_documents, added),
    "padding, fused": (tokens, other_tokens, fused),
    "documents, filled": (documents, all_documents, filled),
    "an input, fused": (given, turned, fused),
}


def verify(folder: Path, name: str, *, wrong: bool) -> sp.Result:
    kept, other, attention = CASES[name]

    def loss_of(model: nn.Module, job: sp.Job, rows: slice, mask: Kept) -> Tensor:
        x, ids, flags = (job.batch[key][rows] for key in ("x", "ids", "flags"))
        q = model(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
        return attention(q, mask(ids, flags)).pow(2).mean()

    def single(job: sp.Job) -> None:
        model = nn.Linear(6, 8)
        job.start(model)
        loss = loss_of(model, job, slice(None), kept)
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(6, 8)
        job.start(model)
        mask = other if wrong and job.rank == 1 else kept
        loss = loss_of(model, job, slice(2 * job.rank, 2 * job.rank + 2), mask)
        loss.backward()
        total = loss.detach().clone()
        for tensor in (total, *(p.grad for p in model.parameters())):
            assert tensor is not None
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        job.end(loss=total)

    batch = {
        "x": sp.tensor((4, TOKENS, 6)),
        "ids": sp.tensor((4, TOKENS), torch.long, low=0, high=4),
        "flags": sp.tensor((4, TOKENS, TOKENS), torch.bool),
    }
    return sp.verify(
        single,
        parallel,
        world_size=2,
        batch=batch,
        executor="local",
        cache=False,
        validate=not wrong,
        out=folder / "run",
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_hidden_is_the_same(tmp_path: Path, name: str) -> None:
    right = verify(tmp_path / "right", name, wrong=False)
    assert right.verdict == "proved", sp.told(right)
    wrong = verify(tmp_path / "wrong", name, wrong=True)
    assert wrong.verdict == "refuted", sp.told(wrong)
