"""All unseen programs."""

from __future__ import annotations

from benchmarks.torch.ordinary.parts import Case
from benchmarks.torch.unseen import (
    attention,
    contexts,
    decoders,
    divided,
    domains,
    heads,
    layouts,
    losses,
    maxima,
    mixtures,
    nets,
    objectives,
    precision,
    recent,
    recurrent,
    rings,
    routed,
    staged,
    training,
    twofold,
    vision,
    zero,
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
    *zero.CASES,
    *routed.CASES,
    *objectives.CASES,
    *domains.CASES,
    *staged.CASES,
    *decoders.CASES,
    *layouts.CASES,
    *contexts.CASES,
    *twofold.CASES,
    *recent.CASES,
    *precision.CASES,
]
