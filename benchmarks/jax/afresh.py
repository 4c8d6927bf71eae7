"""More steps in the idioms of JAX, each beside a wrong twin, written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable

from afresh_layers import linear_ring, padded, rotary, sequence, tied, two_experts
from afresh_training import clipped, gathered, mixed, per_sample, perceptron, piped
from shapes import Case

RIGHT: dict[str, Callable[[], Case]] = {
    "perceptron, momentum": perceptron,
    "rotary, grouped queries": rotary,
    "fully sharded by hand": gathered,
    "linear attention in a ring": linear_ring,
    "two experts a token": two_experts,
    "pipeline in a scan": piped,
    "tied, divided vocabulary": tied,
    "clipped by the global norm": clipped,
    "sequence parallel norm": sequence,
    "mixed precision": mixed,
    "padding masks, checkpoints": padded,
    "gradients of every sample": per_sample,
}
WRONG: dict[str, Callable[[], Case]] = {
    "perceptron, momentum, sums": lambda: perceptron(mean=False),
    "rotary, grouped queries, keys not turned": lambda: rotary(turned=False),
    "fully sharded by hand, sums": lambda: gathered(scaled=False),
    "linear attention in a ring, one short": lambda: linear_ring(last=False),
    "two experts a token, equal weights": lambda: two_experts(weighted=False),
    "pipeline in a scan, one tick short": lambda: piped(whole=False),
    "tied, divided vocabulary, one row more": lambda: tied(shifted=True),
    "clipped by the global norm, local norms": lambda: clipped(joined=False),
    "sequence parallel norm, not reduced": lambda: sequence(scattered=False),
    "mixed precision, scaled": lambda: mixed(unscaled=False),
    "padding masks, checkpoints, all counted": lambda: padded(masked=False),
    "gradients of every sample, not clipped": lambda: per_sample(normed=False),
}
