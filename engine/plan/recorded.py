"""What a plan says about its own values: claims, to be compared and never believed.

A planner writes beside each value which part of which tensor of its model it takes it for.  Nothing
that the plan computes follows from it, so that no verdict does; where it and the computation
disagree, either the planner or its record is wrong, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardproof.engine.errors import InvalidInput


class RecordedSlice(NamedTuple):
    """What a planner recorded about one value: which part of which tensor of its model it is.

    Example: ``RecordedSlice(12, (0, 0), (16, 128))``, written ``[0:16, 0:128] of full tensor 12``.

    What one value is recorded to be: the box [``low``, ``high``) (one pair per dimension) of the
    full tensor ``full`` (a name, of one microbatch of one replica), or with ``addends`` > 1 only
    the addend ``addend`` of so many whose sum that box is.
    """

    full: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    addend: int = 0
    addends: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the box."""
        return tuple(b - a for a, b in zip(self.low, self.high, strict=True))

    def __str__(self) -> str:
        """``[0:16, 0:128] of full tensor 12``, with which addend it is."""
        box = ", ".join(f"{a}:{b}" for a, b in zip(self.low, self.high, strict=True))
        part = f"addend {self.addend} of {self.addends} of " if self.addends > 1 else ""
        return f"{part}[{box}] of full tensor {self.full}"


def read_claim(row: int, cells: Sequence[Any]) -> RecordedSlice:
    """A row of the table of claims; raises `InvalidInput` if it is no part of a tensor.

    Example: of ``[12, (0, 0), (16, 128), 0, 1]`` that box of full tensor 12; an addend 2 of 2 is
    refused, since they are counted from 0.
    """
    claim = RecordedSlice(*cells)
    is_box = len(claim.low) == len(claim.high) and all(
        0 <= a <= b for a, b in zip(claim.low, claim.high, strict=True)
    )
    if not is_box or not 0 <= claim.addend < claim.addends:
        raise InvalidInput(f"{list(cells)} is no part of a tensor", f"table claims, row {row}")
    return claim


def read_claims(
    where: str, refs: Sequence[int], values: int, claims: Sequence[RecordedSlice]
) -> tuple[RecordedSlice | None, ...]:
    """What is recorded about so many values of a body, by row of ``claims`` (-1: nothing).

    Example: of two values with the rows (0, -1) the first claim, and None.
    """
    if refs and len(refs) != values:
        raise InvalidInput(f"{len(refs)} claims about {values} values", where)
    if any(not -1 <= x < len(claims) for x in refs):
        raise InvalidInput(f"a claim that is none of {len(claims)}", where)
    return tuple(claims[x] if x >= 0 else None for x in refs)
