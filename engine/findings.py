"""What a report says is wrong with a plan, or worth knowing beside its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: What is said of a conclusion that no proof was found of, and no difference either.
UNDECIDED: Final = " (not decided: it agrees where it was run)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One element of a counterexample: what ``ranks`` have at ``index`` of their shard of a tensor.

    Example: ``Difference((1,), (0, 3), 0.96, 0.95, "y", "[0:12, 0:8]")``: rank 1 has 0.95 at [0, 3]
    of its shard of ``y``, and 0.96 is expected.

    ``tensor``: which one, in words; ``shard``: which part of the whole of it (empty: not said);
    ``microbatch``: -1 where all have the same; ``near``: rows of (expected, actual) of the elements
    around it, the last two dimensions only.
    """

    ranks: tuple[int, ...]
    index: tuple[int, ...]
    expected: float
    actual: float
    tensor: str = ""
    shard: str = ""
    microbatch: int = -1
    near: tuple[tuple[tuple[float, float], ...], ...] = ()


class Finding(NamedTuple):
    """Something wrong with a plan, or beside its verdict, with everything a report needs.

    Example: ``Finding("deadlock", "ranks [0, 1] wait for each other; rank 0 waits in recv", "recv",
    ranks=(0, 1))``.

    ``ranks`` and ``microbatches`` have it (no microbatch: all of them); ``agreeing_ranks`` and
    ``agreeing_microbatches`` run the same operator and do not.
    ``repair``: an edit of the plan with which it was seen to hold, in words (empty: none is known);
    ``counterexample``: what a tensor is by rank, those that agree too: first of the tensor where it
    begins, then of the conclusion that shows it most.  ``cause``: what is wrong in a few words,
    verified if there is a repair, else likely; ``group``: the number of the cause, from 1 (0:
    beside the verdict); what follows from the same cause has the same number and no repair.
    ``reference``: the operator of the single-device side that it was compared with.  ``layers``:
    every module that has it.  All of these are of a verdict, and never of what a plan records.
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
    cause: str = ""
    group: int = 0
    reference: str = ""
    layers: tuple[str, ...] = ()
    agreeing_ranks: tuple[int, ...] = ()
    agreeing_microbatches: tuple[int, ...] = ()


#: The kind of a finding about an operator without a meaning; others are contradictions.
UNSUPPORTED: Final = "unsupported operator"

#: The fields that a plan stores with what it records.
STORED: Final = Finding._fields[:9]


def listed(finding: Finding) -> list[Any]:
    """A finding that a plan records as plain data: its fields in order, lists where it has
    tuples.

    Example: ``Finding("deadlock", "...", "recv", ranks=(0, 1))`` is ``["deadlock", "...", "recv",
    "", "", [0, 1], [], "", ""]``.
    """
    cells = finding[: len(STORED)]
    return [list(cell) if isinstance(cell, tuple) else cell for cell in cells]


def unlisted(cells: Sequence[Any]) -> Finding:
    """The finding that `listed` gave.

    Example: of ``["deadlock", "...", "recv", "", "", [0, 1], [], "", ""]`` its ``ranks`` are (0,
    1).
    """
    fields: list[Any] = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    return Finding(*fields)


def are_listed(value: object) -> bool:
    """Whether a value is a list of what `listed` gives.

    Example: ``[]`` is one, and nine cells with the ranks ``[0, 1]`` are; with the ranks ``[True]``
    they are none, since a truth value is no rank.
    """
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
