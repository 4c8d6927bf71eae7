"""Verify the steps of `programs` (or of another module), and wrong twins; needs jax, flax, optax.

PYTHONPATH=. python benchmarks/jax/run.py [--module blind] [--only NAME] [--csv FILE] [--texts]

With `--texts` code in shard_map is verified by what `lower().as_text()` prints of both sides.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


#: Of the process that lowers steps by itself.
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


def texts(case: dict[str, Any], folder: Path) -> list[Path]:
    """Files with the StableHLO of the step on one device, and of its twin on the mesh."""
    import jax
    import numpy as np

    extents = case["mesh"]
    files = []
    for name, sizes in (("step", [1] * len(extents)), ("parallel", list(extents.values()))):
        devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
        with jax.set_mesh(jax.sharding.Mesh(devices, tuple(extents))):
            lowered = jax.jit(case[name], keep_unused=True).lower(*case["args"])
        files.append(folder / f"{name}.mlir")
        files[-1].write_text(lowered.as_text())
    return files


def verdict(case: Any, *, printed: bool = False) -> tuple[str, str, float]:
    import shardproof
    import shardproof.jax as sj

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if printed:
            result = shardproof.verify(*texts(case(), Path(folder)), out=out, cache=False)
        else:
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
    parser.add_argument("--texts", action="store_true")
    given = parser.parse_args()
    if given.texts:
        os.environ.update(DEVICES)
    module = importlib.import_module(given.module)
    rows = []
    for expected, cases in (("proved", module.RIGHT), ("refuted", module.WRONG)):
        for name, case in cases.items():
            if not name.startswith(given.only) or (given.texts and "parallel" not in case()):
                continue
            found, why, seconds = verdict(case, printed=given.texts)
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
