"""Verdicts on bugs of the field and on their fixed twins, as a table.

python -m benchmarks.torch.field.run                  # all
python -m benchmarks.torch.field.run --only norm      # names that contain this
python -m benchmarks.torch.field.run --csv field.csv
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import shardproof.torch as sp
from benchmarks.torch.field.cases import BUGS
from benchmarks.torch.field.parts import Bug
from benchmarks.torch.table import Table, main, one_line, place


@dataclass(frozen=True, slots=True)
class Row:
    """``fixed``, ``wrong``: the verdicts; ``at``: the line of the first finding, of the program."""

    bug: str
    reported: str
    ranks: int
    fixed: str
    wrong: str
    seconds: float
    at: str
    says: str


def verdict(bug: Bug, wrong: bool, validate: bool = False) -> sp.Result:
    """What Shardproof says of the program with the bug, or without it."""
    return sp.verify(
        bug.single,
        bug.make(wrong),
        world_size=bug.world_size,
        batch=bug.batch,
        executor="local",
        cache=False,
        validate=validate,
    )


def judged(bug: Bug, validate: bool) -> Row:
    start = time.perf_counter()
    fixed, wrong = verdict(bug, wrong=False, validate=validate), verdict(bug, wrong=True)
    first = wrong.findings[0] if wrong.findings else None
    says = first.message if first else wrong.reason
    if fixed.verdict != "proved":
        says = f"fixed: {sp.told(fixed)}"
    return Row(
        bug.name,
        bug.reported,
        bug.world_size,
        fixed.verdict,
        wrong.verdict,
        round(time.perf_counter() - start, 1),
        place(first.source) if first else "",
        one_line(says, 300),
    )


def rows(only: str, validate: bool) -> Iterator[Row]:
    return (judged(bug, validate) for bug in BUGS if only in bug.name.lower())


def caught(row: Row) -> bool:
    return (row.fixed, row.wrong) == ("proved", "refuted")


TABLE = Table(
    __doc__ or "",
    Row,
    rows,
    lambda r: f"{r.fixed:9} {r.wrong:13} {r.seconds:6.1f} s  {r.bug} [{r.at}]: {r.says}",
    caught,
    lambda all_: f"{sum(map(caught, all_))} of {len(all_)} refuted beside a proved twin",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, sys.argv[1:]))
