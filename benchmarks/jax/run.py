"""Verify the steps of `programs` (or of another module), and wrong twins; needs jax, flax, optax.

PYTHONPATH=. python benchmarks/jax/run.py [--module blind] [--only NAME] [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def verdict(case: Any) -> tuple[str, str, float]:
    import shardproof
    import shardproof.jax as sj

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = sj.verify(**case(), out=out, cache=False)
        seconds = time.perf_counter() - start
        if result.verdict == "proved":
            return "proved", "" if shardproof.check(out).ok else "check does not hold", seconds
    why = result.reason or next((f.message for f in result.findings), "")
    return result.verdict, why, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", default="programs")
    parser.add_argument("--only", default="")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    module = importlib.import_module(given.module)
    rows = []
    for expected, cases in (("proved", module.RIGHT), ("refuted", module.WRONG)):
        for name, case in cases.items():
            if not name.startswith(given.only):
                continue
            found, why, seconds = verdict(case)
            rows.append([name, expected, found, f"{seconds:.1f}", why])
            print(*rows[-1], sep=" | ", flush=True)
    good = sum(row[1] == row[2] for row in rows)
    print(f"{good} of {len(rows)} as expected")
    if given.csv is not None:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "expected", "verdict", "s", "why"])
            writer.writerows(rows)
    return 1 if any({row[1], row[2]} == {"proved", "refuted"} for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
