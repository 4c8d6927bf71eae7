"""Verdicts on bugs of the field and on their fixed twins, as a table.

python -m benchmarks.torch.field.run                  # all
python -m benchmarks.torch.field.run --only norm      # names that contain this
python -m benchmarks.torch.field.run --csv field.csv
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import shardproof.torch as sp
from benchmarks.torch.field.cases import BUGS
from benchmarks.torch.field.parts import Bug


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


def verdict(bug: Bug, wrong: bool) -> sp.Result:
    """What Shardproof says of the program with the bug, or without it."""
    return sp.verify(
        bug.single,
        bug.make(wrong),
        world_size=bug.world_size,
        batch=bug.batch,
        executor="local",
        cache=False,
    )


def judged(bug: Bug) -> Row:
    start = time.perf_counter()
    fixed, wrong = verdict(bug, wrong=False), verdict(bug, wrong=True)
    first = wrong.findings[0] if wrong.findings else None
    place, _, rest = (first.source if first else "").partition(":")
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
        f"{Path(place).name}:{rest}" if rest else "",
        " ".join(says.split())[:300],
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose names contain this")
    parser.add_argument("--csv", type=Path, help="write the table to this file too")
    given = parser.parse_args(arguments)
    rows = []
    for bug in BUGS:
        if given.only.lower() not in bug.name.lower():
            continue
        row = judged(bug)
        rows.append(row)
        print(
            f"{row.fixed:9} {row.wrong:13} {row.seconds:6.1f} s  {row.bug} [{row.at}]: {row.says}",
            flush=True,
        )
    caught = sum(r.fixed == "proved" and r.wrong == "refuted" for r in rows)
    print(f"{caught} of {len(rows)} refuted beside a proved twin")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(r) for r in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
