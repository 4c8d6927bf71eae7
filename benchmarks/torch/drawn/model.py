"""The transformer that is drawn, as one device and as a rank of a mesh has it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.torch.drawn.contexts import by_heads, in_a_ring
from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.experts import Experts
from benchmarks.torch.drawn.mixers import Mixer
from benchmarks.torch.drawn.ranks import Axis, Ranks, copy, cut, gather, join, reduce
from benchmarks.torch.drawn.sides import INSIDE, RootMean, Side, norm, width

#: Numbers of a position where the task is not about tokens.
PATCH = 6


class Attention(Side):
    """Grouped queries; a rank has some of the heads, and of positions those of its part."""

    def __init__(self, drawn: Drawn, at: Ranks, fused: bool, sdpa: bool) -> None:
        super().__init__(drawn, at, fused)
        size, tp = drawn.head, at.tp.size
        self.sdpa, self.heads, self.key_heads = sdpa, drawn.heads // tp, drawn.key_heads // tp
        q, k = self.heads * size, self.key_heads * size
        if fused:
            self.qkv = nn.Linear(width(drawn), q + 2 * k, bias=drawn.bias)
        else:
            self.q = nn.Linear(width(drawn), q, bias=drawn.bias)
            self.k = nn.Linear(width(drawn), k, bias=drawn.bias)
            self.v = nn.Linear(width(drawn), k, bias=drawn.bias)
        self.o = nn.Linear(q, width(drawn), bias=drawn.bias)
        if drawn.normed:
            self.q_norm, self.k_norm = RootMean(size, 1e-6), RootMean(size, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, drawn = self.enter(x), self.drawn
        rows, length, size = x.shape[0], x.shape[1], drawn.head
        q_size, k_size = self.heads * size, self.key_heads * size
        if self.fused:
            q, k, v = self.qkv(x).split([q_size, k_size, k_size], -1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(rows, length, self.heads, size).transpose(1, 2)
        k = k.view(rows, length, self.key_heads, size).transpose(1, 2)
        v = v.view(rows, length, self.key_heads, size).transpose(1, 2)
        if drawn.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        if drawn.positions in ("half", "pairs"):
            q = self.turned(q)
            k = k if drawn.mistake == "keys not turned" and self.at != Ranks() else self.turned(k)
        turned = drawn.mistake == "keys in another order"
        if drawn.mistake != "own keys alone" and drawn.context == "gather":
            k = gather(k, self.at.cp, 2, turned=turned)
            v = gather(v, self.at.cp, 2, turned=turned)
        group = self.heads // self.key_heads
        if drawn.mistake == "key heads of another rank" and self.at != Ranks():
            k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        elif group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = self.over_positions(q, k, v).transpose(1, 2).reshape(rows, length, q_size)
        return self.leave(F.linear(out, self.o.weight), self.o.bias, may_fail=True)

    def over_positions(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of this rank's positions, as they are divided."""
        if self.at.cp.size == 1 or self.drawn.context == "gather":
            return self.attended(q, k, v)
        if self.drawn.context == "heads":
            return by_heads(self.drawn, self.at, (q, k, v), self.attended)
        return in_a_ring(self.drawn, self.at, q, k, v, self.scale())

    def scale(self) -> float:
        size = self.drawn.head
        return {"root": 1 / math.sqrt(size), "head": 1 / size, "one": 1.0}[self.drawn.scale]

    def start(self, length: int, mistake: str = "") -> int:
        """The first of this rank's positions."""
        return 0 if self.drawn.mistake == mistake else self.at.cp.rank * length

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions, halves or neighbours beside each other."""
        size, start = self.drawn.head, self.start(x.shape[2], "positions from 0")
        if self.drawn.mistake == "angles by one" and self.at != Ranks():
            start += self.at.tp.rank + self.at.dp.rank + self.at.cp.rank
        steps = 100.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.arange(start, start + x.shape[2], dtype=torch.float32)[:, None] * steps
        if self.drawn.positions == "half":
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin
        even, odd = x[..., 0::2], x[..., 1::2]
        both = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
        return torch.stack(both, -1).flatten(-2)

    def attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        drawn, scale = self.drawn, self.scale()
        if self.sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=drawn.causal, scale=scale)
        scores = q @ k.transpose(-2, -1) * scale
        start = 0 if drawn.context == "heads" else self.start(q.shape[2], "mask from 0")
        mine = torch.arange(start, start + q.shape[2])[:, None]
        theirs = torch.arange(k.shape[2])[None, :]
        if drawn.mistake == "own keys alone":
            theirs = theirs + start
        if drawn.positions == "slopes":
            first = 0 if drawn.mistake == "slopes of the first ranks" else self.at.tp.rank
            heads = torch.arange(first * self.heads, (first + 1) * self.heads, dtype=torch.float32)
            scores = scores + (2.0 ** -(heads + 1))[:, None, None] * (theirs - mine)
        hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
        if drawn.causal:
            hidden = hidden | (theirs > mine)
        if drawn.window:
            wide = drawn.window + (drawn.mistake == "window by one" and self.at != Ranks())
            hidden = hidden | (theirs < mine - wide)
        if drawn.causal or drawn.window:
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ v


class Inner(Side):
    """The MLP; a rank has some of its inner features."""

    def __init__(self, drawn: Drawn, at: Ranks, fused: bool) -> None:
        super().__init__(drawn, at, fused and drawn.gated)
        inner = drawn.inner // at.tp.size
        if self.fused:
            self.gate_up = nn.Linear(width(drawn), 2 * inner, bias=drawn.bias)
        else:
            self.up = nn.Linear(width(drawn), inner, bias=drawn.bias)
            if drawn.gated:
                self.gate = nn.Linear(width(drawn), inner, bias=drawn.bias)
        self.down = nn.Linear(inner, width(drawn), bias=drawn.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, inside = self.enter(x), INSIDE[self.drawn.inside]
        if self.fused:
            gate, up = self.gate_up(x).chunk(2, -1)
            x = inside(gate) * up
        else:
            x = inside(self.gate(x)) * self.up(x) if self.drawn.gated else inside(self.up(x))
        return self.leave(F.linear(x, self.down.weight), self.down.bias, may_fail=False)


class Block(nn.Module):
    """One layer."""

    def __init__(self, drawn: Drawn, at: Ranks, fused: bool, sdpa: bool) -> None:
        super().__init__()
        self.drawn, self.parallel = drawn, at != Ranks()
        attention = drawn.mixer == "attention"
        self.attention = Attention(drawn, at, fused, sdpa) if attention else Mixer(drawn, at)
        self.inner = Experts(drawn, at) if drawn.experts else Inner(drawn, at, fused)
        eps = 1e-3 if drawn.mistake == "epsilon" and self.parallel else 1e-5
        if drawn.place != "after":
            self.before_attention = norm(drawn, width(drawn), eps)
            if not drawn.beside:
                self.before_inner = norm(drawn, width(drawn))
        if drawn.place != "before":
            self.after_attention = norm(drawn, width(drawn), eps)
            self.after_inner = norm(drawn, width(drawn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong = self.drawn.mistake if self.parallel else ""
        first = self.before_attention(x) if self.drawn.place != "after" else x
        attended = self.attention(first)
        after = self.drawn.place != "before"
        if after and wrong != "order of norms":
            attended = self.after_attention(attended)
        kept = 2 * x if wrong == "residual scale" else x
        if self.drawn.beside:
            inner = self.inner(first)
            return kept + attended + (self.after_inner(inner) if after else inner)
        x = kept + attended
        if after and wrong == "order of norms":
            x = self.after_attention(x)
        inner = self.inner(self.before_inner(x) if self.drawn.place != "after" else x)
        return x + (self.after_inner(inner) if after else inner)


class Transformer(nn.Module):
    """Ids to logits; a stage has its blocks, the first one the table, the last one the head."""

    def __init__(self, drawn: Drawn, at: Ranks, *, fused: bool, sdpa: bool, again: bool) -> None:
        super().__init__()
        self.drawn, self.at, self.again = drawn, at, again
        pp = at.pp
        self.first, self.final = pp.rank == 0, pp.rank == pp.size - 1
        self.divided = drawn.table == "classes" and at.tp.size > 1
        classes = drawn.classes // at.tp.size if self.divided else drawn.classes
        if drawn.task != "tokens":
            if self.first:
                self.patches = nn.Linear(PATCH, width(drawn))
        elif self.first or (self.final and drawn.tied):
            self.table = nn.Embedding(classes, width(drawn))
        if drawn.positions == "learned" and self.first:
            self.places = nn.Embedding(drawn.length, width(drawn))
        bounds = [drawn.layers * n // pp.size for n in (pp.rank, pp.rank + 1)]
        if drawn.mistake == "a block left out" and self.final:
            bounds[0] += 1
        blocks = {str(n): Block(drawn, at, fused, sdpa) for n in range(*bounds)}
        self.blocks = nn.ModuleDict(blocks)
        if self.final:
            self.last = norm(drawn, width(drawn))
            if not drawn.tied:
                self.head = nn.Linear(width(drawn), classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ids, or what the stage before gives, to logits, or to what the next stage takes.

        Logits: rows, positions of this rank, classes (of this rank, where they are divided).
        """
        if self.first:
            x = self.entered(x)
        for block in self.blocks.values():
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.logits(x) if self.final else x

    def entered(self, ids: torch.Tensor) -> torch.Tensor:
        drawn, at = self.drawn, self.at
        x = self.embedded(ids) if drawn.task == "tokens" else self.patches(ids)
        if drawn.positions == "learned":
            start = 0 if drawn.mistake == "positions from 0" else at.cp.rank * ids.shape[1]
            x = x + self.places(torch.arange(start, start + ids.shape[1]))
        return cut(x, at.tp, 1) if drawn.sequence else x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        drawn, at = self.drawn, self.at
        x = self.last(x)
        if drawn.sequence:
            x = gather(x, at.tp, 1) if self.divided else join(x, at.tp, 1)
        elif self.divided:
            x = copy(x, at.tp)
        if drawn.task != "tokens":
            x = x.mean(1) if drawn.task == "pooled" else x[:, 0]
        return F.linear(x, self.table.weight if drawn.tied else self.head.weight)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        if not self.divided:
            return self.table(ids)  # type: ignore[no-any-return]
        first, size = first_class(self.drawn, self.at.tp), self.table.num_embeddings
        mine = (ids >= first) & (ids < first + size)
        found = self.table((ids - first).clamp(0, size - 1))
        if self.drawn.mistake != "unmasked classes":
            found = found * mine.unsqueeze(-1)
        return reduce(found, self.at.tp)


def first_class(drawn: Drawn, tp: Axis) -> int:
    """The first class of this rank's part of the table."""
    size = drawn.classes // tp.size
    if drawn.mistake == "offset of classes":
        return tp.rank * (size - 1) if size > 1 else 0
    return tp.rank * size
