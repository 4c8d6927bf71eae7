"""How cost grows along an axis: the last value against the first, and what was asked of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from shardproof.campaigns.sweep.spec import LINEAR, Axis, Scalar, Sweep
from shardproof.campaigns.sweep.table import Row

#: What is compared.  Processor time comes first: wall time follows whatever else the machine does.
MEASURES: Final = ("cpu", "wall", "partition", "solve", "peak_mib", "templates")


@dataclass(frozen=True, slots=True)
class Growth:
    """Ratios from the first value of an axis to the last.  ``bound``: what ``cpu`` was to stay
    within (None: nothing was asked; 0: the axis shows nothing to hold against it).

    Example: along ``layers`` from 2 to 126, ``ratios["cpu"]`` 3.1 within a ``bound`` of 63, linear
    growth.
    """

    sweep: str
    axis: str
    first: Scalar
    last: Scalar
    verdict_first: str
    verdict_last: str
    ratios: Mapping[str, float]
    bound: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the growth of processor time is as asked; a point that is not proved is none."""
        if self.bound is None:
            return None
        both = self.verdict_first == self.verdict_last == "proved"
        return both and self.ratios["cpu"] <= self.bound

    def to_dict(self) -> dict[str, Any]:
        """The growth as plain data."""
        return {**asdict(self), "holds": self.holds}


def growth(sweep: Sweep, rows: Sequence[Row], keys: Sequence[str]) -> list[Growth]:
    """The growth along every axis whose two ends have a row.

    Example: an axis of which only the first point has a row has none.
    """
    result = []
    by_key = {row["key"]: row for row in rows}
    for axis in sweep.axes:
        first, last = (by_key.get(keys[axis.points[end]]) for end in (0, -1))
        if first is None or last is None or len(axis.points) < 2:
            continue
        result.append(
            Growth(
                sweep.name,
                axis.name,
                axis.values[0],
                axis.values[-1],
                first["verdict"],
                last["verdict"],
                {name: _ratio(last[name], first[name]) for name in MEASURES},
                _bound(axis, sweep.bounds.get(axis.name)),
            )
        )
    return result


def _ratio(last: float, first: float) -> float:
    return round(last / first, 3) if first else 0.0


def _bound(axis: Axis, given: float | str | None) -> float | None:
    if given != LINEAR:
        return None if given is None else float(given)
    first, last = axis.values[0], axis.values[-1]
    numbers = isinstance(first, (int, float)) and isinstance(last, (int, float)) and first
    return float(last) / float(first) if numbers else 0.0
