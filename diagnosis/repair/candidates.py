"""Candidate repairs of a plan: what an engineer would try where a fault begins.

Each candidate is a plan with one edit and a sentence about it.  Nothing here says that a candidate
helps: `shardproof.diagnosis` tries them, and shows those with which the conclusions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from shardproof.diagnosis.locate.divergences import GAPS, Divergence
from shardproof.diagnosis.repair.addends import (
    late_addends,
    lost_factors,
    other_reductions,
)
from shardproof.diagnosis.repair.communication import (
    exchanged_peers,
    missing_reductions,
    other_collectives,
)
from shardproof.diagnosis.repair.dimensions import other_dimensions
from shardproof.diagnosis.repair.edits import Site
from shardproof.diagnosis.repair.origins import Candidate, FaultContext
from shardproof.diagnosis.repair.positions import exchanged_parameters, offsets, shards
from shardproof.diagnosis.repair.structure import missing_calls
from shardproof.diagnosis.repair.values import (
    constants,
    other_tensors,
    repeated_inputs,
    scales,
    swapped_inputs,
)
from shardproof.partition.stages.partition import Partition

#: The table, in the order in which candidates are tried.
CANDIDATES: Final[tuple[Callable[[FaultContext], Iterator[Candidate]], ...]] = (
    constants,
    offsets,
    repeated_inputs,
    late_addends,
    other_reductions,
    missing_reductions,
    shards,
    exchanged_parameters,
    exchanged_peers,
    other_collectives,
    other_dimensions,
    swapped_inputs,
    other_tensors,
    lost_factors,
    scales,
)


def candidates(
    result: Partition, divergence: Divergence, made: Sequence[tuple[Site, ...]]
) -> Iterator[Candidate]:
    """All candidates for a divergence; ``made``: the `origins` of the rows of ``result``.

    Example: for the input of an ``add`` that is still a partial sum, first that the bias is added
    later, then an all-reduce over each group, then other shards, and so on in the order of
    `CANDIDATES`.
    """
    fault = FaultContext(result, divergence, made)
    if divergence.cause == GAPS:
        yield from missing_calls(result.plan)
    if fault.sites:
        for propose in CANDIDATES:
            yield from propose(fault)
