"""A million instances under ``--exhaustive``: time, and the memory of the driver while it looks.

    python -m benchmarks.throughput.exhaustive

The same plan with more and more replicas: every rank and microbatch is looked at on its own. The
resident memory of the driver is sampled from outside; it must not follow the number of instances.
Writes exhaustive.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa

HERE = Path(__file__).resolve().parent
PLAN = ("llama3-8b", "--tp", "2", "--pp", "2", "--microbatches", "8", "--layers", "4")
REPLICAS = (8, 64, 512)
EVERY_SECONDS = 0.05


def measure(replicas: int, folder: Path, executor: str) -> dict[str, object]:
    plan, out = folder / f"plan-{replicas}", folder / f"run-{replicas}"
    shardproof = [sys.executable, "-m", "shardproof"]
    subprocess.run([*shardproof, "plan", *PLAN, "--dp", str(replicas), "-o", str(plan)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    load = os.getloadavg()[0]
    words = ["verify", str(plan), "--exhaustive", "--no-cache", "--json", "--out", str(out)]
    start = time.perf_counter()
    with (folder / "document.json").open("wb") as document:
        run = subprocess.Popen([*shardproof, *words, "--executor", executor], stdout=document,
                               stderr=subprocess.DEVNULL)  # fmt: skip
        driver = psutil.Process(run.pid)
        looked, auditing = 0.0, []
        while run.poll() is None:
            try:
                held = driver.memory_info().rss / 2**20
            except psutil.Error:
                break
            looked = max(looked, held)
            if (out / "instances.arrow").exists():
                auditing.append(held)
            time.sleep(EVERY_SECONDS)
        run.wait()
    wall = time.perf_counter() - start
    said = json.loads((folder / "document.json").read_bytes())
    with pa.memory_map(str(out / "instances.arrow")) as file:
        reader = pa.ipc.open_file(file)
        instances = sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    return {
        "replicas": replicas,
        "ranks": said["counts"]["ranks"],
        "instances": instances,
        "verdict": said["verdict"],
        "templates": said["counts"]["templates"],
        "wall_s": round(wall, 2),
        "partition_s": round(said["seconds"]["partition"], 2),
        "driver_mib": round(looked, 1),
        "driver_grew_while_looking_mib": round(max(auditing) - auditing[0], 1) if auditing else 0,
        "tree_peak_mib": round(said["peak_rss_mib"], 1),
        "load_before": round(load, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--executor", default="local")
    parser.add_argument("--replicas", type=int, nargs="*", default=REPLICAS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(count, Path(folder), asked.executor) for count in asked.replicas]
    with (asked.out / "exhaustive.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)
    return int(any(row["verdict"] != "proved" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
