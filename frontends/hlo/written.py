"""A tensor of integers into which a box of integers was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from shardproof.frontends.graphs.graph import PerRank, Shape

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
