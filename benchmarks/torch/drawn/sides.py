"""What all parts of a drawn model share: widths, norms, how a rank enters and leaves a block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.ranks import Ranks, copy, gather, reduce, scatter

INSIDE = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "squared": lambda x: F.relu(x).pow(2),
}


def width(drawn: Drawn) -> int:
    """Features of a position: not always what the heads have together."""
    return drawn.heads * drawn.head + (2 if drawn.seed % 3 == 0 else 0)


class RootMean(nn.Module):
    """RMSNorm, written out."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def norm(drawn: Drawn, size: int, eps: float = 1e-5) -> nn.Module:
    return nn.LayerNorm(size, eps=eps) if drawn.norm == "layer" else RootMean(size, eps)


class Side(nn.Module):
    """What attention and MLP share: the step, the rank, how x enters and leaves a block."""

    def __init__(self, drawn: Drawn, at: Ranks, fused: bool) -> None:
        super().__init__()
        self.drawn, self.at, self.fused = drawn, at, fused

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        if self.drawn.sequence:
            return gather(x, self.at.tp, 1)
        wrong = {"no copy": 0, "copy twice": 2}.get(self.drawn.mistake, 1)
        return copy(x, self.at.tp, wrong)

    def leave(self, x: torch.Tensor, bias: torch.Tensor | None, *, may_fail: bool) -> torch.Tensor:
        early = self.drawn.mistake == "bias before the sum"
        if bias is not None and early:
            x = x + bias
        if self.drawn.sequence:
            x = scatter(x, self.at.tp, 1)
        elif not (may_fail and self.drawn.mistake == "no all-reduce"):
            x = reduce(x, self.at.tp)
        return x + bias if bias is not None and not early else x
