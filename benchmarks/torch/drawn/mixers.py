"""What stands in the place of attention: sums of outer products, convolutions, recurrences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.ranks import Ranks
from benchmarks.torch.drawn.sides import Side, width


class Mixer(Side):
    """A rank has some of the heads, or of the channels."""

    def __init__(self, drawn: Drawn, at: Ranks) -> None:
        super().__init__(drawn, at, fused=False)
        tp = at.tp.size
        self.heads, self.key_heads = drawn.heads // tp, drawn.key_heads // tp
        channels, keys = self.heads * drawn.head, self.key_heads * drawn.head
        self.q = nn.Linear(width(drawn), channels, bias=drawn.bias)
        if drawn.mixer == "linear":
            self.k = nn.Linear(width(drawn), keys, bias=drawn.bias)
            self.v = nn.Linear(width(drawn), keys, bias=drawn.bias)
        else:
            self.g = nn.Linear(width(drawn), channels, bias=drawn.bias)
        if drawn.mixer == "conv":
            self.conv = nn.Conv1d(channels, channels, 3, groups=channels, bias=drawn.bias)
        if drawn.mixer == "recurrence":
            self.decay = nn.Parameter(torch.ones(channels))
        self.o = nn.Linear(channels, width(drawn), bias=drawn.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        mixed = {"linear": self.outer, "conv": self.convolved, "recurrence": self.recurrent}
        out = F.linear(mixed[self.drawn.mixer](x), self.o.weight)
        return self.leave(out, self.o.bias, may_fail=True)

    def outer(self, x: torch.Tensor) -> torch.Tensor:
        """Linear attention: queries times the sums of outer products of keys and values."""
        rows, length, size = x.shape[0], x.shape[1], self.drawn.head
        q = self.q(x).view(rows, length, self.heads, size).transpose(1, 2)
        k = self.k(x).view(rows, length, self.key_heads, size).transpose(1, 2)
        v = self.v(x).view(rows, length, self.key_heads, size).transpose(1, 2)
        group = self.heads // self.key_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.drawn.causal:
            sums = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
            out = torch.einsum("bhls,bhlst->bhlt", q, sums)
            total = (q * k.cumsum(2)).sum(-1, keepdim=True)
        else:
            out = q @ (k.transpose(-2, -1) @ v)
            total = (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
        return (out / total).transpose(1, 2).reshape(rows, length, -1)

    def convolved(self, x: torch.Tensor) -> torch.Tensor:
        """A causal convolution of each channel, gated."""
        u = F.pad(self.q(x).transpose(1, 2), (2, 0))
        return F.silu(self.conv(u).transpose(1, 2)) * self.g(x)

    def recurrent(self, x: torch.Tensor) -> torch.Tensor:
        """Each channel's state decays by a gate of the position."""
        keep, u = torch.sigmoid(self.g(x) + self.decay), self.q(x)
        state, states = torch.zeros_like(u[:, 0]), []
        for n in range(u.shape[1]):
            state = keep[:, n] * state + (1 - keep[:, n]) * u[:, n]
            states.append(state)
        return torch.stack(states, 1)
