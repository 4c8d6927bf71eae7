"""All unseen programs."""

from __future__ import annotations

from benchmarks.torch.ordinary.parts import Case
from benchmarks.torch.unseen import (
    attention,
    contexts,
    decoders,
    divided,
    heads,
    layouts,
    losses,
    maxima,
    mixtures,
    nets,
    recurrent,
    rings,
    training,
    vision,
)

CASES: list[Case] = [
    *vision.CASES,
    *attention.CASES,
    *mixtures.CASES,
    *training.CASES,
    *heads.CASES,
    *divided.CASES,
    *recurrent.CASES,
    *nets.CASES,
    *maxima.CASES,
    *losses.CASES,
    *rings.CASES,
    *decoders.CASES,
    *layouts.CASES,
    *contexts.CASES,
]
