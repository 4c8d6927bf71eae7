"""How fine the rows of matrices are cut among ranks, as the boxes of their parameters say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from shardproof.frontends.torch import trace
from shardproof.frontends.torch.trace import Trace

#: Rows of a parameter, and those of a rank.
Cuts: TypeAlias = frozenset[tuple[int, int]]


def cuts(traces: Iterable[Trace]) -> Cuts:
    """Of every parameter of which ranks have some rows: how many it has, and how many are together.

    Example: of keys [1024, 8192] on 8 ranks of tp and 8 of FSDP, (1024, 16).
    """
    boxes = (
        box
        for one in traces
        for event in one.events
        if event.name == trace.PARAMETER
        for box in event.boxes
        if len(box.shape) > 1
    )
    pairs = {(box.full_shape[0], box.shape[0]) for box in boxes}
    return frozenset((full, rows) for full, rows in pairs if 0 < rows < full)
