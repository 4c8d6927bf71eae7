"""Queries, keys and values of one projection, of which a rank has one group: one head of keys, as
Megatron has it where there are as many groups as ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import copy_to, reduce_from  # noqa: E402
from shardproof.checker import check  # noqa: E402

PLACES, ROWS, WIDTH, HEAD, GROUPS, QUERIES = 3, 2, 8, 4, 2, 2
RANKS = GROUPS


def normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def rotated(x: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(PLACES).float()[:, None] / 10.0 ** torch.arange(HEAD // 2)
    angles = torch.cat((angles, angles), -1)[:, None, None]
    first, second = torch.chunk(x, 2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


class Attention(nn.Module):
    def __init__(self, ranks: int, way: str) -> None:
        super().__init__()
        self.ranks, self.way = ranks, way
        self.inward = nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, GROUPS // ranks * (QUERIES + 2) * HEAD, bias=False)
        self.out = nn.Linear(GROUPS // ranks * QUERIES * HEAD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        x = copy_to(x) if self.ranks > 1 and "wrong" not in self.way else x
        own = GROUPS // self.ranks
        mixed = self.qkv(x).view(PLACES, ROWS, own, (QUERIES + 2) * HEAD)
        q, k, v = torch.split(mixed, [QUERIES * HEAD, HEAD, HEAD], dim=3)
        q = q.reshape(PLACES, ROWS, own * QUERIES, HEAD)
        for change in [normed] * ("norm" in self.way) + [rotated] * ("rotation" in self.way):
            q, k = change(q), change(k)
        k, v = (t.repeat_interleave(QUERIES, dim=2) for t in (k, v))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        seen = torch.softmax(q @ k.transpose(2, 3), -1) @ v
        y = self.out(seen.permute(2, 0, 1, 3).reshape(PLACES, ROWS, own * QUERIES * HEAD))
        return reduce_from(y) if self.ranks > 1 else y


def verdict(way: str, out: Path) -> sp.Result:
    def step(job: sp.Job, ranks: int) -> None:
        model = Attention(ranks, way)
        qkv, heads = GROUPS * (QUERIES + 2) * HEAD // RANKS, GROUPS * QUERIES * HEAD // RANKS
        parts = {
            "qkv.weight": sp.piece("qkv.weight", dim=0, start=job.rank * qkv, size=qkv),
            "out.weight": sp.piece("out.weight", dim=1, start=job.rank * heads, size=heads),
        }
        job.start(model, parameters=parts if ranks > 1 else None)
        loss = model(job.batch["x"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return sp.verify(
        lambda job: step(job, 1),
        lambda job: step(job, RANKS),
        world_size=RANKS,
        batch={"x": sp.tensor((PLACES, ROWS, WIDTH))},
        executor="local",
        out=out,
    )


@pytest.mark.parametrize("way", ["rotation", "norm, rotation"])
def test_one_group_on_each_rank(tmp_path: Path, way: str) -> None:
    result = verdict(way, tmp_path / "right")
    assert result.verdict == "proved", sp.told(result)
    assert check(result.run_dir).ok
    assert verdict(f"{way}, wrong", tmp_path / "wrong").verdict == "refuted"
