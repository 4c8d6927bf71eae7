"""Proofs of whole plans: ``python benchmarks/proofs/run.py PLAN [...] [--out FOLDER]``.

A PLAN is a plan folder, or two nnScaler files joined by a comma. Prints one row of a table per
plan and appends it to ``FOLDER/proofs.csv``: templates, proofs, their bytes, seconds to verify
without and with proofs, seconds to check, proofs that were followed step by step, templates that
one solver alone proves.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import shardproof

COLUMNS = (
    "plan",
    "verdict",
    "templates",
    "proofs",
    "proof_bytes",
    "proof_steps",
    "followed",
    "by_ethos",
    "single_solver",
    "verify_s",
    "with_proofs_s",
    "check_s",
    "holds",
)


def measure(plan: str, ethos: Path | None, cpc: Path | None, assume: Path | None) -> dict[str, str]:
    """One row of the table."""
    paths = [Path(p) for p in plan.split(",")]
    single, parallel = paths[0], (paths[1] if len(paths) > 1 else None)
    with tempfile.TemporaryDirectory(prefix="shardproof-proofs-") as folder:
        plain, proved = Path(folder, "plain"), Path(folder, "proved")
        start = time.perf_counter()
        shardproof.verify(single, parallel, out=plain, cache=False, assume=assume)
        middle = time.perf_counter()
        result = shardproof.verify(
            single, parallel, out=proved, cache=False, assume=assume, proofs=True
        )
        end = time.perf_counter()
        found = shardproof.check(proved, proofs=True, ethos=ethos, cpc=cpc)
        counts = found.counts
        for problem in found.problems:
            print("  ", problem)
        for note in found.notes:
            print("   note:", note)
        cells = (
            paths[-1].name,
            result.verdict,
            result.counts.templates,
            counts.get("proofs", 0),
            counts.get("proof_bytes", 0),
            counts.get("proof_steps", 0),
            counts.get("proofs_followed", 0),
            counts.get("proofs_by_ethos", 0),
            counts.get("single_solver", 0),
            f"{middle - start:.1f}",
            f"{end - middle:.1f}",
            f"{time.perf_counter() - end:.1f}",
            found.ok,
        )
    return dict(zip(COLUMNS, map(str, cells), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--assume", type=Path)
    parser.add_argument("--ethos", type=Path)
    parser.add_argument("--cpc", type=Path)
    chosen = parser.parse_args()
    table = chosen.out / "proofs.csv"
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        for plan in chosen.plans:
            row = measure(plan, chosen.ethos, chosen.cpc, chosen.assume)
            writer.writerow(row)
            file.flush()
            print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
