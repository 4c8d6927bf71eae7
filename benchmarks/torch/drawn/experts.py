"""A mixture of experts in the place of the MLP; ranks of tp, or of dp, have some of them."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.ranks import Axis, Ranks, copy, gather, scatter
from benchmarks.torch.drawn.sides import INSIDE, Side, width


class Expert(nn.Module):
    """A plain MLP without biases."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.inside = INSIDE[drawn.inside]
        self.up = nn.Linear(width(drawn), drawn.inner, bias=False)
        self.down = nn.Linear(drawn.inner, width(drawn), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.inside(self.up(x)))  # type: ignore[no-any-return]


class Experts(Side):
    """Every expert reads all positions; what it gives is weighed by the router."""

    def __init__(self, drawn: Drawn, at: Ranks) -> None:
        super().__init__(drawn, at, fused=False)
        self.axis = at.dp if drawn.experts_over == "dp" else at.tp
        each = drawn.experts // self.axis.size
        self.mine = range(self.axis.rank * each, (self.axis.rank + 1) * each)
        self.router = nn.Linear(width(drawn), drawn.experts, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert(drawn) for e in self.mine})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn, away = self.drawn, self.drawn.experts_over == "dp"
        if away:
            weights = self.weights(x)
            if drawn.mistake == "weights of one's own rows":
                weights = torch.cat([weights] * self.axis.size)
            else:
                weights = gather(weights, self.axis, 0)
            return scatter(self.weighed(gather(x, self.axis, 0), weights), self.axis, 0)
        if drawn.router_inside or self.axis == Axis():
            x = self.enter(x)
            weights = self.weights(x)
        else:
            weights = self.weights(x)
            if drawn.mistake != "weights are not copied":
                weights = copy(weights, self.axis)
            x = self.enter(x)
        return self.leave(self.weighed(x, weights), None, may_fail=False)

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """Rows, positions, experts: what each expert's result is multiplied by."""
        scores = self.router(x).softmax(-1)
        if not self.drawn.chosen:
            return scores  # type: ignore[no-any-return]
        top, which = scores.topk(self.drawn.chosen, -1)
        if self.drawn.renormed:
            top = top / top.sum(-1, keepdim=True)
        return torch.stack([(top * (which == e)).sum(-1) for e in range(self.drawn.experts)], -1)

    def weighed(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum over this rank's experts."""
        first = 0 if self.drawn.mistake == "weights of the first experts" else self.mine.start
        out = torch.zeros_like(x)
        for n, e in enumerate(self.mine):
            out = out + weights[..., first + n : first + n + 1] * self.experts[str(e)](x)
        return out
