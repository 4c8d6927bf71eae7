"""Tables of verdicts: one command line for every set of programs.

`Table` says what a set's rows are, how one is printed, and which verdicts are expected; `main` runs
those that were asked for, prints them, writes them as CSV, and fails where a verdict is not the
expected one.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step
from shardproof.engine.errors import InvalidInput

R = TypeVar("R")


class Table(NamedTuple, Generic[R]):
    """A set of programs.

    `rows` takes the part of a name that was asked for and whether to replay right ones in PyTorch.
    """

    about: str
    row: type[R]
    rows: Callable[[str, bool], Iterator[R]]
    line: Callable[[R], str]
    expected: Callable[[R], bool]
    summary: Callable[[Sequence[R]], str]


class _Judged(Protocol):
    @property
    def verdict(self) -> str: ...

    @property
    def says(self) -> str: ...


J = TypeVar("J", bound=_Judged)


def right(
    about: str, row: type[J], rows: Callable[[str, bool], Iterator[J]], line: Callable[[J], str]
) -> Table[J]:
    """Programs that are all right: each is to be proved, and the summary counts those that were."""

    def proved(row: J) -> bool:
        return row.verdict == "proved"

    def printed(row: J) -> str:
        return line(row) if proved(row) else f"{line(row)}: {row.says}"

    def summary(rows: Sequence[J]) -> str:
        return f"{sum(map(proved, rows))} of {len(rows)} proved"

    return Table(about, row, rows, printed, proved, summary)


def main(table: Table[Any], arguments: Sequence[str]) -> int:
    """Exit code 0 if every verdict is the expected one, else 1."""
    parser = argparse.ArgumentParser(
        description=table.about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--csv", type=Path, help="write the table to this file too")
    parser.add_argument("--validate", action="store_true", help="replay right ones in PyTorch")
    given = parser.parse_args(arguments)
    rows = []
    for row in table.rows(given.only.lower(), given.validate):
        rows.append(row)
        print(table.line(row), flush=True)
    print(table.summary(rows))
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            columns = [field.name for field in fields(table.row)]
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    return 0 if all(map(table.expected, rows)) else 1


def one_line(text: str, most: int) -> str:
    """Its words with one space between, as many characters as a cell of a table may have."""
    return " ".join(text.split())[:most]


def place(source: str) -> str:
    """Where a finding is, without the folders of the file: ``tensor.py:62 (forward)``."""
    file, _, rest = source.partition(":")
    return f"{Path(file).name}:{rest}" if rest else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``twin``: the mistake, or "right"; ``at``: where the first finding is."""

    program: str
    twin: str
    ranks: int
    verdict: str
    seconds: float
    at: str
    says: str


def judged(case: Case, twin: str, step: Step, validate: bool) -> Verdict:
    """The verdict on one side of a case."""
    start = time.perf_counter()
    at = says = ""
    try:
        result = sp.verify(
            case.single,
            step,
            world_size=case.world_size,
            batch=case.batch,
            executor="local",
            cache=False,
            validate=validate,
        )
        verdict, says = result.verdict, result.reason
        if result.findings:
            says, at = says or result.findings[0].message, result.findings[0].source
    except InvalidInput as error:
        verdict, says = "invalid input", str(error)
    seconds = round(time.perf_counter() - start, 1)
    return Verdict(
        case.name, twin, case.world_size, verdict, seconds, place(at), one_line(says, 400)
    )


def cases(about: str, programs: Sequence[Case]) -> Table[Verdict]:
    """Programs beside wrong twins: right ones are to be proved, wrong ones to be refuted."""

    def rows(only: str, validate: bool) -> Iterator[Verdict]:
        for case in programs:
            if only in case.name.lower():
                yield judged(case, "right", case.right, validate)
                for mistake, step in case.wrong.items():
                    yield judged(case, mistake, step, False)

    def line(row: Verdict) -> str:
        text = f"{row.verdict:13} {row.seconds:6.1f} s  {row.program} / {row.twin}"
        text += f": {row.says}" if row.verdict != "proved" else ""
        return text + (f" [{row.at}]" if row.at else "")

    def expected(row: Verdict) -> bool:
        return row.verdict == ("proved" if row.twin == "right" else "refuted")

    def summary(rows: Sequence[Verdict]) -> str:
        right = [r for r in rows if r.twin == "right"]
        wrong = [r for r in rows if r.twin != "right"]
        return (
            f"{sum(map(expected, right))} of {len(right)} right ones proved, "
            f"{sum(map(expected, wrong))} of {len(wrong)} wrong ones refuted"
        )

    return Table(about, Verdict, rows, line, expected, summary)
