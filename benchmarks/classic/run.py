"""Judge every classic mistake and its twin, and say what the diagnosis made of it.

python -m benchmarks.classic.run                     # the table, on standard output
python -m benchmarks.classic.run --csv results.csv   # and as a file
python -m benchmarks.classic.run --only vocabulary   # names that contain this
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.classic import (  # noqa: F401 (they fill the table)
    context,
    data_parallel,
    experts,
    sequence,
    sharded,
    stages,
    tensor_parallel,
    vocabulary,
)
from benchmarks.classic.cases import CASES, Case
from shardproof.engine.plan import same_model
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import wellformed
from shardproof.inputs.assume import Assumptions
from shardproof.run import pipeline
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result


@dataclass(frozen=True, slots=True)
class Judged:
    """``right``: the verdict on the twin; ``verdict`` and what follows: of the plan with the
    mistake; ``placed``, ``named``: whether operator and module, and the cause, are those that were
    expected; ``repaired``: whether a repair was seen to hold."""

    name: str
    what: str
    right: str
    verdict: str
    operator: str
    layer: str
    cause: str
    placed: bool
    named: bool
    repaired: bool
    repair: str
    seconds: float


def judge(case: Case) -> Judged:
    """Verify a case's two plans."""
    start = time.perf_counter()
    twin, found = verified(case.plan(False)), verified(case.plan(True))
    first = found.findings[0] if found.findings and found.verdict == "refuted" else None
    return Judged(
        case.name,
        case.what,
        twin.verdict,
        found.verdict,
        first.operator if first else "",
        first.layer if first else "",
        first.cause if first else "",
        bool(first) and first.operator in case.operators and _within(first.layer, case.layer),
        bool(first) and first.cause in case.causes,
        bool(first) and bool(first.repair),
        first.repair if first else "",
        time.perf_counter() - start,
    )


def _within(layer: str, expected: str) -> bool:
    return any(part in layer for part in expected.split("|"))


def verified(plan: Plan) -> Result:
    """The verdict on a plan in memory, from its form to its composition, with no cache."""
    wellformed.check(plan)
    same_model.check(plan)
    options = Options(executor="local", workers=1, cache=False)
    with tempfile.TemporaryDirectory(prefix="shardproof-classic-") as folder:
        return pipeline.run(
            plan,
            options=options,
            settings=options.settings(),
            out=Path(folder),
            assumptions=Assumptions(),
            load_seconds=0.0,
            progress=Progress(),
        )


def table(found: Sequence[Judged]) -> str:
    """Rows of a Markdown table, and what they come to."""
    lines = [
        "| plan | mistake | twin | verdict | operator | module | cause | place | cause | repair |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {j.name} | {j.what} | {j.right} | {j.verdict} | {j.operator} | {j.layer} | {j.cause} | "
        f"{_mark(j.placed)} | {_mark(j.named)} | {_mark(j.repaired)} |"
        for j in found
    ]
    counts = [
        f"{len(found)} mistakes",
        f"{sum(j.right == 'proved' for j in found)} twins proved",
        f"{sum(j.verdict == 'refuted' for j in found)} refuted",
        f"{sum(j.verdict == 'inconclusive' for j in found)} inconclusive",
        f"{sum(j.verdict == 'proved' for j in found)} proved",
        f"{sum(j.placed for j in found)} at the right operator",
        f"{sum(j.named for j in found)} causes named",
        f"{sum(j.repaired for j in found)} repaired",
    ]
    return "\n".join([*lines, "", ", ".join(counts)])


def _mark(value: bool) -> str:
    return "yes" if value else "no"


def main() -> int:
    """Exit with 0 if no mistake was proved and every twin was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--csv", type=Path, help="write the table here")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    asked = parser.parse_args()
    found = []
    for name, case in CASES.items():
        if not asked.only or any(part in name for part in asked.only):
            found.append(judge(case))
            print(f"{name}: {found[-1].verdict}, {found[-1].seconds:.1f} s", file=sys.stderr)
    print(table(found))
    if asked.csv is not None:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Judged)], lineterminator="\n")
            writer.writeheader()
            writer.writerows({**asdict(j), "seconds": f"{j.seconds:.2f}"} for j in found)
    return 0 if all(j.verdict == "refuted" and j.right == "proved" for j in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
