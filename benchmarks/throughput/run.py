"""How fast the Ray executor gets through queries, and what it takes of its own.

    python -m benchmarks.throughput.run

`scaling`: queries of some tens of milliseconds each, over both rungs, with one worker and with two,
in turn. `overhead`:
queries of about a millisecond in batches on one worker; what is not the solver's own time, per
query, and the processor time of the driver. Needs a quiet machine: the processor time that others
took meanwhile is written beside each measurement. Adds rows to throughput.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks.rows import add
from shardproof.cluster.execute import execute
from shardproof.cluster.on_ray.executor import RayExecutor
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.ledger import Ledger
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.solvers import Query
from tests.cluster.nodes import Cluster, family

HERE = Path(__file__).resolve().parent


def matmul(number: int, size: int) -> Query:
    """A square matrix product divided over the inner dimension; products are uninterpreted."""
    table = TermTable()
    a, b = (
        [[table.symbol(f"{name}{number}_{i}_{j}") for j in range(size)] for i in range(size)]
        for name in "ab"
    )
    goals = []
    for i in range(size):
        for j in range(size):
            parts = [a[i][k] * b[k][j] for k in range(size)]
            whole = table.const(0)
            for part in parts:
                whole = whole + part
            halves = table.const(0)
            for part in reversed(parts):
                halves = part + halves
            goals.append((whole, halves))
    return Query.of(f"q{number}", goals)


def regrouped(number: int, size: int) -> Query:
    """(AB)C = A(BC), which needs the nonlinear rung."""
    table = TermTable()
    a, b, c = (
        [[table.symbol(f"{name}{number}_{i}_{j}") for j in range(size)] for i in range(size)]
        for name in "abc"
    )
    places = range(size)

    def total(parts: Iterable[Term]) -> Term:
        return sum(parts, start=table.const(0))

    goals = [
        (
            total(total(a[i][j] * b[j][k] for j in places) * c[k][m] for k in places),
            total(a[i][j] * total(b[j][k] * c[k][m] for k in places) for j in places),
        )
        for i in places
        for m in places
    ]
    return Query.of(f"q{number}", goals)


def others_cpu() -> float:
    """Processor seconds of this machine so far, without this process, the cluster, its workers."""
    whole = psutil.cpu_times()
    held = 0.0
    for process in family(os.getppid()):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # Children that were replaced count with their worker.
            held += times.user + times.system + times.children_user + times.children_system
    return float(whole.user + whole.nice + whole.system) - held


def measure(name: str, queries: list[Query], workers: int) -> dict[str, object]:
    """Seconds from the first batch to the last verdict on record, workers being warm."""
    settings = Settings("ray", workers=workers, mode="z3", memory_limit_bytes=512 << 20)
    with tempfile.TemporaryDirectory() as folder, RayExecutor(settings) as executor:
        with Ledger(Path(folder) / "warm") as ledger:
            warm = [replace(q, key=f"w{n}") for n, q in enumerate(queries[: 4 * workers])]
            execute(warm, settings, ledger, executor=executor)
        with Ledger(Path(folder) / "run") as ledger:
            wall, own, others = time.perf_counter(), time.process_time(), others_cpu()
            done = execute(queries, settings, ledger, executor=executor)
            wall, own = time.perf_counter() - wall, time.process_time() - own
            others = others_cpu() - others
    solver = sum(a.seconds for s in done.solved.values() for a in s.answers)
    assert all(s.verdict == "unsat" for s in done.solved.values())
    return {
        "what": name,
        "workers": workers,
        "queries": len(queries),
        "wall_s": round(wall, 3),
        "queries_per_s": round(len(queries) / wall, 1),
        "solver_s": round(solver, 3),
        "overhead_ms_per_query": round((wall * workers - solver) / len(queries) * 1e3, 3),
        "driver_cpu_ms_per_query": round(own / len(queries) * 1e3, 3),
        "others_cpu_share": round(others / wall / (os.cpu_count() or 1), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--large", type=int, default=150, help="queries for scaling")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--small", type=int, default=5000, help="queries for overhead")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if "RAY_ADDRESS" not in os.environ:
        # Ray reads its token once, when it is imported.
        with Cluster(workers=1, cpus=2, memory_mib=4096, dashboard=False) as cluster:
            environment = cluster.environment | {"RAY_ADDRESS": cluster.address}
            command = [sys.executable, "-m", "benchmarks.throughput.run", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    large = [regrouped(n, 6) for n in range(asked.large)]
    small = [matmul(n, 2) for n in range(asked.small)]
    rows = [
        *(measure("scaling", large, workers) for workers in (1, 2) * asked.repeat),
        *(measure("overhead", small, workers) for workers in (1, 1)),
    ]
    add(asked.out / "throughput.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
