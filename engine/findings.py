"""What a report says is wrong with a plan, or worth knowing beside its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """Something wrong with a plan, or beside its verdict, with everything a report needs."""

    kind: str
    message: str
    operator: str = ""
    layer: str = ""
    source: str = ""
    ranks: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()
    expected: str = ""
    actual: str = ""


def listed(finding: Finding) -> list[Any]:
    """A finding as plain data: its fields in order, lists where it has tuples."""
    return [list(cell) if isinstance(cell, tuple) else cell for cell in finding]


def unlisted(cells: Sequence[Any]) -> Finding:
    """The finding that `listed` gave."""
    fields: list[Any] = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    return Finding(*fields)


def are_listed(value: object) -> bool:
    """Whether this is a list of what `listed` gives."""
    return isinstance(value, list) and all(_is_listed(cells) for cells in value)


def _is_listed(cells: object) -> bool:
    if not isinstance(cells, list) or len(cells) != len(Finding._fields):
        return False
    return all(
        isinstance(cell, list) and all(type(x) is int for x in cell)
        if field in ("ranks", "microbatches")
        else isinstance(cell, str)
        for field, cell in zip(Finding._fields, cells, strict=True)
    )
