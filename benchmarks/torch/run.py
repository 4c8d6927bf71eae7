"""What Shardproof says of PyTorch programs, as a table.

python -m benchmarks.torch.run                      # every program that can run here
python -m benchmarks.torch.run --only FSDP          # names that contain this
python -m benchmarks.torch.run --csv results.csv

A program whose package is not installed is skipped by name.
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
from benchmarks.torch import styles, styles_divided
from benchmarks.torch.style_models import PROGRAMS, Program
from shardproof.engine.errors import InvalidInput

#: Importing them adds their programs.
STYLES = styles, styles_divided


@dataclass(frozen=True, slots=True)
class Row:
    """``operators``: of the single side and of all ranks; ``mib``: at most; ``assumptions``: how
    many the verdict rests on."""

    program: str
    ranks: int
    verdict: str
    single_operators: int
    parallel_operators: int
    seconds: float
    mib: float
    assumptions: int
    says: str


def judged(program: Program) -> Row:
    """The verdict on a program."""
    start = time.perf_counter()
    found = sp.verify(
        program.single,
        program.parallel,
        world_size=program.world_size,
        batch=program.batch,
        executor="local",
        cache=False,
    )
    first = found.findings[0].message if found.findings else ""
    return Row(
        program.name,
        program.world_size,
        found.verdict,
        found.counts.single_operators,
        found.counts.parallel_operators,
        round(time.perf_counter() - start, 1),
        round(found.peak_rss_mib),
        len(found.assumptions),
        " ".join((found.reason or first).split())[:300],
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--csv", type=Path, help="write the table to this file too")
    given = parser.parse_args(arguments)
    rows = []
    for program in PROGRAMS:
        if given.only.lower() not in program.name.lower():
            continue
        row = judged(program)
        rows.append(row)
        print(
            f"{row.verdict:13} {row.seconds:6.1f} s {row.mib:5.0f} MiB "
            f"{row.single_operators:5} {row.parallel_operators:6}  {row.program}"
            + (f": {row.says}" if row.verdict != "proved" else ""),
            flush=True,
        )
    print(f"{sum(r.verdict == 'proved' for r in rows)} of {len(rows)} proved")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(r) for r in rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InvalidInput as error:
        sys.exit(f"{error}")
