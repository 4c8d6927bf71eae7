"""Integers that are no ids as they stand: a tensor into which a box was written, and places of the
largest scores of several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from shardproof.frontends.graphs.graph import Groups, PerRank, Shape

#: Where a box begins along every dimension.
Starts: TypeAlias = "tuple[int | PerRank, ...]"


@dataclass(slots=True)
class Written:
    """The item ``around`` with the item ``part`` instead of its box from ``starts`` on.

    Example: of ids ``s32[1,6]`` at (2, 0) in zeros ``s32[4,6]``: these zeros, the ids and (2, 0).

    ``value``: that of the body that it became; -1: none yet.
    """

    around: Any
    part: Any
    starts: Starts
    shape: Shape
    value: int = -1


@dataclass(frozen=True, slots=True)
class Spots:
    """Where the largest (smallest) scores of each rank are among those of its group, side by side
    along a dimension (`words`).

    Example: of two ranks with eight scores in each of four rows, the ids of a rank's largest score,
    on rank 1 plus 8, of shape (4,), gathered along dimension 0 of (1, 4): shape (2, 4).

    ``ids``: those of a rank.
    """

    ids: Any
    dim: int
    groups: Groups
    shape: Shape
