"""Proofs of whole plans: ``python benchmarks/proofs/run.py [PLAN ...] [--runs FOLDER]``.

A PLAN is a plan folder, two nnScaler files joined by a comma, or a name in `PLANS`; without one,
all of `PLANS` are taken. Each is verified with proofs and checked with proofs, in two steps that
are kept in FOLDER: what is there is not done again, and ``--step`` does one of them only. Writes
one row per plan to ``proofs.csv`` and to the page beside this file: templates, proofs, their bytes,
proofs that were followed step by step, templates that one solver alone proves, seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shardproof
from shardproof.engine.plan_files import store
from shardproof.frontends import zoo

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
MARKS = "<!-- table -->\n", "<!-- end of table -->\n"

#: Plans of the zoo by name; what `shardproof plan` makes of these words.
PLANS: dict[str, dict[str, Any]] = {
    "zoo-llama3-8b-2-layers": {
        "name": "llama3-8b",
        "layers": 2,
        "dp": 2,
        "tp": 2,
        "pp": 2,
        "microbatches": 2,
    },
    "zoo-d3": {"name": "deepseek-v3-671b", "parallel": "d3"},
    "zoo-l3": {"name": "llama3-405b", "parallel": "l3"},
}

COLUMNS = (
    "plan",
    "verdict",
    "templates",
    "proofs",
    "proof_bytes",
    "proof_steps",
    "followed",
    "by_ethos",
    "one_solver",
    "verify_with_proofs_s",
    "check_with_proofs_s",
    "holds",
)


def sides(plan: str, folder: Path) -> tuple[Path, Path | None]:
    """The files of a plan; a plan of the zoo is written to ``folder`` first."""
    if plan in PLANS:
        if not (folder / "plan").exists():
            settings = dict(PLANS[plan])
            name, parallel = settings.pop("name"), settings.pop("parallel", None)
            degrees = {} if parallel is None else zoo.parallelization(parallel)
            store.save(zoo.build(name, **degrees, **settings), folder / "plan")
        return folder / "plan", None
    single, _, parallel = plan.partition(",")
    return Path(single), Path(parallel) if parallel else None


def named(plan: str) -> str:
    return plan if plan in PLANS else Path(plan.split(",")[-1]).name.split(".")[0]


def verify(plan: str, folder: Path, assume: Path | None) -> None:
    """The first step: a run with proofs."""
    start = time.perf_counter()
    single, parallel = sides(plan, folder)
    result = shardproof.verify(
        single, parallel, out=folder / "run", cache=False, assume=assume, proofs=True
    )
    figures = {
        "plan": named(plan),
        "verdict": result.verdict,
        "templates": result.counts.templates,
        "verify_with_proofs_s": f"{time.perf_counter() - start:.1f}",
    }
    (folder / "verified.json").write_text(json.dumps(figures))


def check(folder: Path, ethos: Path | None, cpc: Path | None) -> None:
    """The second step: the run and its proofs, checked."""
    start = time.perf_counter()
    found = shardproof.check(folder / "run", proofs=True, ethos=ethos, cpc=cpc)
    counts = found.counts
    figures = {
        "proofs": counts.get("proofs", 0),
        "proof_bytes": counts.get("proof_bytes", 0),
        "proof_steps": counts.get("proof_steps", 0),
        "followed": counts.get("proofs_followed", 0),
        "by_ethos": counts.get("proofs_by_ethos", 0),
        "one_solver": counts.get("single_solver", 0),
        "check_with_proofs_s": f"{time.perf_counter() - start:.1f}",
        "holds": "yes" if found.ok else "no",
        "said": [*map(str, found.problems), *found.notes],
    }
    (folder / "checked.json").write_text(json.dumps(figures))


def rows(runs: Path) -> list[dict[str, Any]]:
    """What has been measured, by plan."""
    return [
        json.loads((folder / "verified.json").read_bytes())
        | json.loads((folder / "checked.json").read_bytes())
        for folder in sorted(runs.iterdir())
        if (folder / "verified.json").exists() and (folder / "checked.json").exists()
    ]


def table(found: Sequence[dict[str, Any]]) -> str:
    """The table of the page."""
    heads = [name.replace("_", " ") for name in COLUMNS]
    lines = [heads, ["---", "---", *["--:"] * (len(COLUMNS) - 3), "---"]]
    for row in found:
        lines.append(
            [f"{v:,}" if isinstance(v, int) else str(v) for v in (row[c] for c in COLUMNS)]
        )
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="*", default=[*PLANS])
    parser.add_argument("--runs", type=Path, default=HERE.parent.parent / "build" / "proofs")
    parser.add_argument("--step", choices=("verify", "check"))
    parser.add_argument("--assume", type=Path)
    parser.add_argument("--ethos", type=Path)
    parser.add_argument("--cpc", type=Path)
    chosen = parser.parse_args()
    for plan in chosen.plans:
        folder = chosen.runs / named(plan)
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.step != "check" and not (folder / "verified.json").exists():
            verify(plan, folder, chosen.assume)
        if chosen.step != "verify" and not (folder / "checked.json").exists():
            check(folder, chosen.ethos, chosen.cpc)
    found = rows(chosen.runs)
    with (HERE / "proofs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(before + MARKS[0] + table(found) + MARKS[1] + after, encoding="utf-8")
    for row in found:
        for line in row["said"]:
            sys.stdout.write(f"{row['plan']}: {line}\n")


if __name__ == "__main__":
    main()
