"""What a report says is wrong with a plan, or worth knowing beside its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Difference:
    """One element of a counterexample: what ``ranks`` have at ``index`` of their shard."""

    ranks: tuple[int, ...]
    index: tuple[int, ...]
    expected: float
    actual: float


class Finding(NamedTuple):
    """Something wrong with a plan, or beside its verdict, with everything a report needs.

    ``repair``: an edit of the plan with which it was seen to hold, in words (empty: none is known);
    ``counterexample``: of the conclusion that shows it most, an element of each rank's shard, those
    that agree too.  Both are of a verdict, and never of what a plan records.
    """

    kind: str
    message: str
    operator: str = ""
    layer: str = ""
    source: str = ""
    ranks: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()
    expected: str = ""
    actual: str = ""
    repair: str = ""
    counterexample: tuple[Difference, ...] = ()


#: The fields that a plan stores with what it records.
STORED: Final = Finding._fields[:9]


def listed(finding: Finding) -> list[Any]:
    """A finding that a plan records as plain data: its fields in order, lists where it has
    tuples."""
    cells = finding[: len(STORED)]
    return [list(cell) if isinstance(cell, tuple) else cell for cell in cells]


def unlisted(cells: Sequence[Any]) -> Finding:
    """The finding that `listed` gave."""
    fields: list[Any] = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    return Finding(*fields)


def are_listed(value: object) -> bool:
    """Whether this is a list of what `listed` gives."""
    return isinstance(value, list) and all(_is_listed(cells) for cells in value)


def _is_listed(cells: object) -> bool:
    if not isinstance(cells, list) or len(cells) != len(STORED):
        return False
    return all(
        isinstance(cell, list) and all(type(x) is int for x in cell)
        if field in ("ranks", "microbatches")
        else isinstance(cell, str)
        for field, cell in zip(STORED, cells, strict=True)
    )
