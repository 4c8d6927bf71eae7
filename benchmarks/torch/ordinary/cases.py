"""All ordinary programs."""

from __future__ import annotations

from benchmarks.torch.ordinary import (
    attention,
    byhand,
    data,
    experts,
    sequence,
    sharded,
    stacks,
    tensor,
)
from benchmarks.torch.ordinary.parts import Case

CASES: list[Case] = [
    *tensor.CASES,
    *sequence.CASES,
    *data.CASES,
    *experts.CASES,
    *sharded.CASES,
    *attention.CASES,
    *byhand.CASES,
    *stacks.CASES,
]
