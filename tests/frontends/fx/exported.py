"""Archives of `torch.export`: a transformer's layer on one device, or a rank's part of it.

``python -m tests.frontends.fx.exported FOLDER RANKS [wrong]`` writes ``single.pt2`` and a file for
every rank into a folder; no process talks to another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH, HEADS, INNER, VOCABULARY = 16, 4, 32, 24


class Layer(nn.Module):
    def __init__(self, ranks: int = 1, reduces: bool = True) -> None:
        super().__init__()
        self.ranks, self.reduces = ranks, reduces
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        part = WIDTH // ranks
        self.q, self.k, self.v = (nn.Linear(WIDTH, part) for _ in range(3))
        self.o = nn.Linear(part, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, INNER // ranks)
        self.down = nn.Linear(INNER // ranks, WIDTH, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        b, t, _ = x.shape
        y = self.norm(x)
        q, k, v = (
            f(y).view(b, t, HEADS // self.ranks, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.reduced(self.o(y.transpose(1, 2).reshape(b, t, -1)))
        y = self.down(nn.functional.gelu(self.up(x)))
        return x + (self.reduced(y) if self.reduces else y)

    def reduced(self, x: Any) -> Any:
        if self.ranks == 1:
            return x
        return functional.all_reduce(x, "sum", distributed.group.WORLD)


def write(folder: Path, ranks: int, reduces: bool) -> None:
    args = (torch.zeros(2, 6, dtype=torch.int64),)
    torch.export.save(torch.export.export(Layer(), args), folder / "single.pt2")
    (folder / "ranks").mkdir()
    for rank in range(ranks):
        distributed.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        found = torch.export.export(Layer(ranks, reduces), args)
        torch.export.save(found, folder / "ranks" / f"r{rank}.pt2")
        distributed.destroy_process_group()


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), len(sys.argv) < 4)
