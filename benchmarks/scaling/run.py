"""How the verifier scales over worker nodes of one CPU each: one plan, and as many plans as nodes.

    python -m benchmarks.scaling.run --nodes 1
    python -m benchmarks.scaling.run --nodes 2

*Strong*: configs/sweeps/scaling.yaml on so many nodes, one run after another. *Weak*: a sweep of as
many different plans as nodes, all at once (``--jobs``), with one pool of workers; the time is that
of the whole sweep. Needs a quiet machine with a CPU for each node. Adds rows to scaling.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.rows import add
from tests.cluster.nodes import ROOT, Cluster

HERE = Path(__file__).resolve().parent
FILE = ROOT / "configs" / "sweeps" / "scaling.yaml"
FIELDS = ("what", "nodes", "plans", "repeat", "partition_s", "solve_s", "total_s", "load_before")


def swept(
    cluster: Cluster, sweep: dict[str, object], folder: Path, jobs: int
) -> list[dict[str, object]]:
    """The points of a sweep on the cluster."""
    file = folder / f"{sweep['name']}.yaml"
    file.write_text(yaml.safe_dump(sweep))
    words = ["sweep", str(file), "-o", str(folder / str(sweep["name"])), "--json"]
    where = ["--executor", "ray", "--address", cluster.address, "--jobs", str(jobs)]
    done = cluster.run(sys.executable, "-m", "shardproof", *words, *where)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    points: list[dict[str, object]] = json.loads(done.stdout)["sweeps"][0]["points"]
    return points


def strong(cluster: Cluster, nodes: int, repeat: int, folder: Path) -> dict[str, object]:
    load = os.getloadavg()[0]
    sweep = yaml.safe_load(FILE.read_text())
    sweep |= {"axes": {"verify.workers": [nodes]}, "repeat": repeat}
    (point,) = swept(cluster, sweep, folder, 1)
    return _row("strong", nodes, 1, repeat, point, load)


def weak(cluster: Cluster, nodes: int, repeat: int, folder: Path) -> dict[str, object]:
    """``nodes`` plans that have no text in common with each other: other degrees, other sizes."""
    load = os.getloadavg()[0]
    sweep = yaml.safe_load(FILE.read_text())
    times, parts = [], []
    for number in range(repeat):
        axes = {"microbatch_size": [number * nodes + n + 1 for n in range(nodes)]}
        chosen = sweep | {"name": f"weak-{number}", "axes": axes, "repeat": 1}
        start = time.perf_counter()
        parts += swept(cluster, chosen, folder, nodes)
        times.append(time.perf_counter() - start)
    seconds = {name: statistics.median(float(str(p[name])) for p in parts)
               for name in ("partition", "solve")}  # fmt: skip
    return _row("weak", nodes, nodes, repeat, seconds | {"total": statistics.median(times)}, load)


def _row(
    what: str, nodes: int, plans: int, repeat: int, point: dict[str, object], load: float
) -> dict[str, object]:
    seconds = [round(float(str(point[name])), 2) for name in ("partition", "solve", "total")]
    return dict(zip(FIELDS, (what, nodes, plans, repeat, *seconds, round(load, 1)), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "scaling.csv")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(workers=asked.nodes, cpus=1, memory_mib=4096, dashboard=False) as cluster,
    ):
        rows = [
            measured(cluster, asked.nodes, asked.repeat, Path(folder))
            for measured in (strong, weak)
        ]
    add(asked.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
