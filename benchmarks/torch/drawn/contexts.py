"""Attention over positions that are divided: in a ring, or with heads exchanged for positions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.ranks import Ranks, exchange, shift


def in_a_ring(
    drawn: Drawn, at: Ranks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of this rank's queries; keys and values go round."""
    cp, length = at.cp, q.shape[2]
    steps = cp.size - 1 if drawn.mistake == "ring one short" else cp.size
    merged: tuple[torch.Tensor, ...] = ()
    for n in range(steps):
        source = (cp.rank - n) % cp.size
        if drawn.mistake == "blocks masked by another rank":
            source = (cp.rank + n) % cp.size
        scores = q @ k.transpose(-2, -1) * scale
        if drawn.causal:
            # All that lies behind is hidden, and not left out: its gradient is sent back, too.
            mine = torch.arange(cp.rank * length, (cp.rank + 1) * length)[:, None]
            theirs = torch.arange(source * length, (source + 1) * length)[None, :]
            scores = scores.masked_fill(theirs > mine, float("-inf"))
        merge = _logs if drawn.context == "ring of logs" else _running
        merged = merge(drawn, merged, scores, v)
        if n < steps - 1:
            k, v = shift(k, cp), shift(v, cp)
    return merged[0] if drawn.context == "ring of logs" else merged[0] / merged[1]


def _running(
    drawn: Drawn, before: tuple[torch.Tensor, ...], scores: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Sums of values and of weights under a running maximum."""
    most = scores.detach().amax(-1, keepdim=True)
    if before:
        most = torch.maximum(most, before[2])
    weights = (scores - most).exp()
    values, total = weights @ v, weights.sum(-1, keepdim=True)
    if before:
        factor = (before[2] - most).exp()
        values = values + before[0] * (1 if drawn.mistake == "not rescaled" else factor)
        total = total + before[1] * factor
    return values, total, most


def _logs(
    drawn: Drawn, before: tuple[torch.Tensor, ...], scores: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Results of blocks, weighed by the logarithms of their sums."""
    total = scores.logsumexp(-1, keepdim=True)
    out = scores.softmax(-1) @ v
    if not before:
        return out, total
    both = torch.logaddexp(before[1], total)
    kept = before[0] if drawn.mistake == "not rescaled" else before[0] * (before[1] - both).exp()
    return kept + out * (total - both).exp(), both


def by_heads(
    drawn: Drawn,
    at: Ranks,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    attended: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Attention of some heads at all positions, and back."""
    q, k, v = (exchange(x, at.cp, 1, 2) for x in qkv)
    turned = drawn.mistake == "heads come back in another order"
    return exchange(attended(q, k, v), at.cp, 2, 1, turned=turned)
