"""What Shardproof says of PyTorch programs, as a table.

python -m benchmarks.torch.run                      # every program that can run here
python -m benchmarks.torch.run --only FSDP          # names that contain this
python -m benchmarks.torch.run --csv results.csv
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import shardproof.torch as sp
from benchmarks.torch import styles, styles_divided
from benchmarks.torch.style_models import PROGRAMS, Program
from benchmarks.torch.table import main, one_line, right
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


def judged(program: Program, validate: bool) -> Row:
    """The verdict on a program."""
    start = time.perf_counter()
    result = sp.verify(
        program.single,
        program.parallel,
        world_size=program.world_size,
        batch=program.batch,
        executor="local",
        cache=False,
        validate=validate,
    )
    first = result.findings[0].message if result.findings else ""
    return Row(
        program.name,
        program.world_size,
        result.verdict,
        result.counts.single_operators,
        result.counts.parallel_operators,
        round(time.perf_counter() - start, 1),
        round(result.peak_rss_mib),
        len(result.assumptions),
        one_line(result.reason or first, 300),
    )


def rows(only: str, validate: bool) -> Iterator[Row]:
    return (judged(program, validate) for program in PROGRAMS if only in program.name.lower())


def line(row: Row) -> str:
    return (
        f"{row.verdict:13} {row.seconds:6.1f} s {row.mib:5.0f} MiB "
        f"{row.single_operators:5} {row.parallel_operators:6}  {row.program}"
    )


TABLE = right(__doc__ or "", Row, rows, line)

if __name__ == "__main__":
    try:
        sys.exit(main(TABLE, sys.argv[1:]))
    except InvalidInput as error:
        sys.exit(f"{error}")
