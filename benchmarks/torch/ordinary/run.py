"""Verdicts on the ordinary programs and on their wrong twins, as a table.

python -m benchmarks.torch.ordinary.run                     # all
python -m benchmarks.torch.ordinary.run --only vocabulary   # names that contain this
python -m benchmarks.torch.ordinary.run --csv results.csv --validate
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import shardproof.torch as sp
from benchmarks.torch.ordinary.cases import CASES
from benchmarks.torch.ordinary.parts import Case, Step
from shardproof.engine.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Row:
    """``twin``: the mistake, or "right"; ``at``: where the first finding is."""

    program: str
    twin: str
    ranks: int
    verdict: str
    seconds: float
    at: str
    says: str


def judged(case: Case, twin: str, step: Step, validate: bool) -> Row:
    start = time.perf_counter()
    at = says = ""
    try:
        found = sp.verify(
            case.single,
            step,
            world_size=case.world_size,
            batch=case.batch,
            executor="local",
            cache=False,
            validate=validate,
        )
        verdict = found.verdict
        says = found.reason
        if found.findings:
            says, at = says or found.findings[0].message, found.findings[0].source
    except InvalidInput as error:
        verdict, says = "invalid input", str(error)
    seconds = round(time.perf_counter() - start, 1)
    at = (
        ":".join(Path(at.split(":")[0]).name for _ in [0]) + ":" + at.split(":", 1)[-1]
        if at
        else ""
    )
    return Row(case.name, twin, case.world_size, verdict, seconds, at, " ".join(says.split())[:400])


def rows(only: str, validate: bool) -> Iterator[Row]:
    for case in CASES:
        if only.lower() not in case.name.lower():
            continue
        yield judged(case, "right", case.right, validate)
        for mistake, step in case.wrong.items():
            yield judged(case, mistake, step, False)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--csv", type=Path, help="write the table to this file too")
    parser.add_argument("--validate", action="store_true", help="replay right ones in PyTorch")
    given = parser.parse_args(arguments)
    found = []
    for row in rows(given.only, given.validate):
        found.append(row)
        print(
            f"{row.verdict:13} {row.seconds:6.1f} s  {row.program} / {row.twin}"
            + (f": {row.says}" if row.verdict != "proved" else "")
            + (f" [{row.at}]" if row.at else ""),
            flush=True,
        )
    right = [r for r in found if r.twin == "right"]
    wrong = [r for r in found if r.twin != "right"]
    print(
        f"{sum(r.verdict == 'proved' for r in right)} of {len(right)} right ones proved, "
        f"{sum(r.verdict == 'refuted' for r in wrong)} of {len(wrong)} wrong ones refuted"
    )
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(r) for r in found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
