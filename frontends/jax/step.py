"""What the user asks about: a step, its abstract arguments, and a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be lowered: ``step`` for one device, ``parallel`` (or ``step``) for the mesh.

    Example: ``Step(step, None, (params, batch), {"dp": 2, "tp": 4}, shardings, None)``, of eight
    devices.
    """

    step: Callable[..., Any]
    parallel: Callable[..., Any] | None
    args: Sequence[Any]
    axes: Mapping[str, int]
    in_shardings: Any
    out_shardings: Any
    mesh: Any = None

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        count = 1
        for extent in self.axes.values():
            count *= extent
        return count
