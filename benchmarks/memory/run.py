"""Queries that need from 60 MiB to more than a node has, on a node with a small reservation.

    python -m benchmarks.memory.run

One Ray node of two CPUs may reserve 1,536 MiB in all, and no other limit is set. Texts of random
size take memory in proportion to it. Writes queries.csv, summary.md and a plot of what the
memory model predicted against what was measured; the second half counts, after the model has
learned from the first.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

from shardproof.cluster.memory.model import Needs, predicted, shape_of
from shardproof.cluster.on_ray.executor import RayExecutor
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.events import FILE, Events
from shardproof.solvers import Query, Solved
from tests.cluster.nodes import Cluster

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
NODE_MIB = 1536
DEPTHS = (2_000, 2_500_000)


def texts(count: int, seed: int) -> list[Query]:
    """Chains of differences and of products, with depths spread evenly in the logarithm."""
    chance = random.Random(seed)
    queries = []
    for number in range(count):
        depth = int(math.exp(chance.uniform(*map(math.log, DEPTHS))))
        chain = "(- " * depth + "x" + ")" * depth
        logic, goal = "QF_UFLRA", f"(and (> x 0) (< {chain} x) (> {chain} x))"
        if chance.random() < 0.3:
            logic, goal = "QF_UFNRA", f"(and (> (* x y) 0) (< {chain} x) (> {chain} x))"
        declared = "(declare-fun x () Real)\n(declare-fun y () Real)"
        text = f"(set-logic {logic})\n{declared}\n(assert {goal})\n(check-sat)\n"
        queries.append(Query(f"q{number}", text, ""))
    return queries


def solve(
    queries: list[Query], needs: Needs, folder: Path
) -> tuple[list[dict[str, object]], Needs]:
    """Rows of what was predicted and measured, and what was learned."""
    settings = Settings("ray", workers=2, mode="z3", timeout=60)
    by_key = {query.key: query for query in queries}
    rows: list[dict[str, object]] = []
    with RayExecutor(settings, needs, Events(folder)) as executor:

        def told(key: str, solved: Solved) -> None:
            shape = shape_of(by_key[key])
            rows.append(
                {
                    "key": key,
                    "text_mib": round(shape.text_bytes / 2**20, 3),
                    "predicted_mib": round(predicted(needs, shape), 1),
                    "measured_mib": round(max(a.rss_mib for a in solved.answers), 1),
                    "verdict": solved.verdict,
                    "reason": solved.reason,
                }
            )

        executor.solve(queries, told)
        return rows, executor.needs


def draw(rows: list[dict[str, object]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(5, 5))
    for verdict, mark in (("unsat", "o"), ("memory", "x")):
        chosen = [r for r in rows if r["verdict"] == verdict]
        x, y = ([r[name] for r in chosen] for name in ("measured_mib", "predicted_mib"))
        axes.plot(x, y, mark, alpha=0.5, label=verdict)
    axes.plot([40, 2000], [40, 2000], "k-", linewidth=0.5)
    axes.set(xscale="log", yscale="log", xlabel="measured peak, MiB", ylabel="predicted, MiB")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    half = asked.queries // 2
    if "RAY_ADDRESS" not in os.environ:
        # Ray reads its token once, when it is imported.
        with Cluster(workers=1, cpus=2, memory_mib=NODE_MIB, dashboard=False) as cluster:
            environment = cluster.environment | {"RAY_ADDRESS": cluster.address}
            command = [sys.executable, "-m", "benchmarks.memory.run", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        learned_rows, needs = solve(texts(half, 1), Needs(), folder)
        rows, _ = solve(texts(half, 2), needs, folder)
        events = [json.loads(line) for line in (folder / FILE).open()]
    fits = [r for r in rows if r["verdict"] != "memory"]
    short = [r for r in fits if float(str(r["measured_mib"])) > float(str(r["predicted_mib"]))]
    retries = [e for e in events if e["event"] == "retry" and e["cause"] == "memory"]
    dead = [e for e in events if e["event"] == "worker died"]
    for name, found in (("learning.csv", learned_rows), ("queries.csv", rows)):
        with (asked.out / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    draw(rows, asked.out / "predicted.svg")
    told = "\n".join(
        [
            "| | first half (learning) | second half |",
            "|---|--:|--:|",
            f"| queries | {len(learned_rows)} | {len(rows)} |",
            *(
                f"| {verdict} | {sum(r['verdict'] == verdict for r in learned_rows)} | "
                f"{sum(r['verdict'] == verdict for r in rows)} |"
                for verdict in ("unsat", "memory", "timeout", "crashed")
            ),
            f"| predicted too low, of those that fit | | {len(short)} of {len(fits)} |",
            "",
            f"Workers killed: {len(dead)}. Tried again with more memory: {len(retries)}.",
            "",
        ]
    )
    (asked.out / "summary.md").write_text(told)
    print(told)
    return int(bool(dead) or len(short) * 50 > len(fits))


if __name__ == "__main__":
    sys.exit(main())
