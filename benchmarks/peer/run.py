"""Time `shardproof verify` cold on the plans that the peer verifier was measured on.

Every run is a process of its own: a new interpreter, no cache of verdicts, a new run directory.
CPU seconds are user and system time of the process and of everything it started and waited for;
memory is the proportional set size of all of them together, as the result itself reports it.
`README.md` beside this file says how to run it and what it gave.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

RECORDED = '[nnscaler]\ngroups = "as recorded"\n'

_LLAMA = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
_LARGE = "large/llama3_default_{}_gbs32_ly32_h32_hi128_sq8192.pkl.gz"
_MOE = "moe_default_{}_gbs1024_ly2_h16_hi512_sq128_a6_r64.pkl"
_SINGLE = "dp1_pp1_tp1_nm1"


class Case(NamedTuple):
    """``name`` is also the key of `peer.csv`; ``groups``: how process groups are ordered."""

    name: str
    files: str
    parallel: str
    groups: str


CASES = (
    Case("llama3 ly2 dp2 pp2 tp2 nm2", _LLAMA, "dp2_pp2_tp2_nm2", "by rank"),
    Case("llama3 ly2 dp16 pp4 tp8 nm8", _LLAMA, "dp16_pp4_tp8_nm8", "as recorded"),
    Case("llama3 ly2 dp16 pp4 tp8 nm8", _LLAMA, "dp16_pp4_tp8_nm8", "by rank"),
    Case("llama3 ly2 dp64 pp4 tp8 nm8", _LLAMA, "dp64_pp4_tp8_nm8", "as recorded"),
    Case("llama3 ly2 dp64 pp4 tp8 nm8", _LLAMA, "dp64_pp4_tp8_nm8", "by rank"),
    Case("llama3 ly32 dp2 pp2 tp2 nm2", _LARGE, "dp2_pp2_tp2_nm2", "by rank"),
    Case("moe ly2 dp16 pp2 tp4 nm16", _MOE, "dp16_pp2_tp4_nm16", "as recorded"),
    Case("moe ly2 dp16 pp2 tp4 nm16", _MOE, "dp16_pp2_tp4_nm16", "by rank"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one case, or the medians of several."""

    case: str
    groups: str
    verdict: str
    ranks: int
    operators: int
    templates: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(case: Case, plans: Path, work: Path, number: int) -> Measured:
    """One cold run; raises ``SystemExit`` if it gives no result."""
    assumed = work / "as-recorded.toml"
    assumed.write_text(RECORDED, encoding="utf-8")
    command = [
        sys.executable, "-m", "shardproof", "verify",
        str(plans / case.files.format(_SINGLE)), str(plans / case.files.format(case.parallel)),
        "--json", "--no-cache", "--out", str(work / f"run-{number}"),
    ]  # fmt: skip
    if case.groups == "as recorded":
        command += ["--assume", str(assumed)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{case.name}: exit code {done.returncode}\n{done.stderr}") from None
    counts = document["counts"]
    return Measured(
        case.name, case.groups, document["verdict"], counts["ranks"],
        counts["parallel_operators"], counts["templates"], wall,
        after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
        document["peak_rss_mib"],
    )  # fmt: skip


def median(runs: Sequence[Measured]) -> Measured:
    """The medians of the runs of one case; raises ``SystemExit`` if their verdicts differ."""
    verdicts = {run.verdict for run in runs}
    if len(verdicts) > 1:
        raise SystemExit(f"{runs[0].case}: runs differ: {sorted(verdicts)}")
    first = runs[0]
    return Measured(
        first.case, first.groups, first.verdict, first.ranks, first.operators, first.templates,
        statistics.median(run.wall_s for run in runs),
        statistics.median(run.cpu_s for run in runs),
        statistics.median(run.peak_mib for run in runs),
    )  # fmt: skip


def write_csv(path: Path, rows: Sequence[Measured]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([
            "case", "groups", "verdict", "ranks", "operators", "templates", "wall_s", "cpu_s",
            "peak_mib",
        ])  # fmt: skip
        for row in rows:
            out.writerow([
                row.case, row.groups, row.verdict, row.ranks, row.operators, row.templates,
                f"{row.wall_s:.2f}", f"{row.cpu_s:.2f}", f"{row.peak_mib:.0f}",
            ])  # fmt: skip


def peer() -> dict[str, dict[str, str]]:
    """The peer's figures by case."""
    with (HERE / "peer.csv").open(newline="", encoding="utf-8") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


def _ratio(theirs: str, ours: float) -> str:
    return f"{float(theirs) / ours:.0f}x" if theirs else "-"


def table(rows: Sequence[Measured]) -> str:
    """A Markdown table of ours beside the peer's, with ratios."""
    known = peer()
    lines = [
        "| plan | groups | verdict | operators | templates | wall s | CPU s | PSS MiB "
        "| peer CPU s | peer PSS MiB | CPU ratio | memory ratio |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        theirs = known[row.case]
        lines.append(
            f"| {row.case} | {row.groups} | {row.verdict} | {row.operators:,} | {row.templates} "
            f"| {row.wall_s:.1f} | {row.cpu_s:.1f} | {row.peak_mib:.0f} "
            f"| {theirs['peer_cpu_s'] or '-'} | {theirs['peer_pss_mib'] or '-'} "
            f"| {_ratio(theirs['peer_cpu_s'], row.cpu_s)} "
            f"| {_ratio(theirs['peer_pss_mib'], row.peak_mib)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time shardproof verify on the peer's plans.")
    parser.add_argument("--plans", type=Path, required=True, help="the folder with the plans")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs per case")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="the CSV to write")
    given = parser.parse_args()
    results = []
    for case in CASES:
        runs = []
        for number in range(given.repeat):
            with tempfile.TemporaryDirectory(prefix="shardproof-peer-") as work:
                runs.append(measure(case, given.plans.resolve(), Path(work), number))
            print(f"{case.name} ({case.groups}): {runs[-1].verdict}, {runs[-1].cpu_s:.2f} CPU s",
                  file=sys.stderr, flush=True)  # fmt: skip
        results.append(median(runs))
    write_csv(given.out, results)
    print(table(results))


if __name__ == "__main__":
    main()
