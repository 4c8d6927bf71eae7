"""The steps of `forms` and `forms_ranks`, beside wrong twins, written before any was run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import forms as layers
import forms_ranks as ranks
from shapes import Case

STEPS: tuple[Callable[[bool], Case], ...] = (
    layers.window,
    layers.alibi,
    layers.softcap,
    layers.buckets,
    layers.complex_rotary,
    layers.interleaved_rotary,
    layers.packed,
    layers.decode,
    layers.greedy,
    layers.selective,
    layers.lstm,
    layers.loop,
    layers.causal_convolution,
    layers.group_norm,
    ranks.prefix,
    ranks.halo,
    ranks.collective_matmul,
    ranks.scattered_matmul,
    ranks.cannon,
    ranks.stacked,
    ranks.contrastive,
    ranks.ignored,
    ranks.experts,
    ranks.tied,
    ranks.segments,
    ranks.scatter_gather,
    ranks.keyed,
    ranks.accumulated,
    ranks.flash,
    ranks.chunked,
    ranks.sorting,
    ranks.spectrum,
)
RIGHT: dict[str, Callable[[], Case]] = {
    step.__name__.replace("_", " "): partial(step, True) for step in STEPS
}
WRONG: dict[str, Callable[[], Case]] = {
    f"{name}, wrong": partial(made.func, False)
    for name, made in RIGHT.items()  # type: ignore[attr-defined]
}
