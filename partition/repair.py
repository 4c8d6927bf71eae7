"""Candidate repairs of a plan: what an engineer would try where a fault begins.

Each candidate is a plan with one edit and a sentence about it.  Nothing here says that a candidate
helps: `shardproof.diagnosis` tries them, and shows those with which the conclusions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from partition.diagnose import Culprit
from partition.edits import Site
from partition.partition import Partition
from partition.repair_moves import exchanged_peers, missing_reductions, other_collectives
from partition.repair_values import (
    constants,
    other_tensors,
    repeated_inputs,
    scales,
    swapped_inputs,
)
from partition.spot import Candidate, Spot

#: The table, in the order in which candidates are tried.
CANDIDATES: Final[tuple[Callable[[Spot], Iterator[Candidate]], ...]] = (
    constants,
    repeated_inputs,
    missing_reductions,
    exchanged_peers,
    other_collectives,
    swapped_inputs,
    other_tensors,
    scales,
)


def candidates(
    result: Partition, culprit: Culprit, made: Sequence[tuple[Site, ...]]
) -> Iterator[Candidate]:
    """All candidates for a culprit; ``made``: the `origins` of the rows of ``result``."""
    spot = Spot(result, culprit, made)
    if spot.sites:
        for propose in CANDIDATES:
            yield from propose(spot)
