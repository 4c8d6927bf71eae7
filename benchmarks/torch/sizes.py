"""PyTorch steps at size: ``python benchmarks/torch/sizes.py [8B|70B|405B|tiny] [--layers N]``.

Both sides of a Llama of these shapes are captured, verified cold and checked by the commands that a
user types, each in a process of its own, one after the other; then again with one changed line
and what the first run left in the cache.  One row per run is printed and kept in
``FOLDER/sizes.csv``: wall and processor seconds, and what the largest process took.  The load of
the machine before each run is in its row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.rows import add  # noqa: E402
from benchmarks.torch.shapes import of  # noqa: E402

FILE = str(HERE / "sized.py")


@dataclass(frozen=True)
class Spent:
    """Wall and processor seconds of a command with its children, what it printed, how it ended."""

    wall: float
    cpu: float
    text: str
    code: int


def spent(args: list[str], sized: dict[str, str]) -> Spent:
    """Run a command of shardproof."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **sized}
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, 1, 2):
        raise SystemExit(done.stderr or done.stdout)
    return Spent(wall, cpu, done.stdout, done.returncode)


def run(name: str, folder: Path, cache: Path, extra: dict[str, str]) -> dict[str, object]:
    """Capture, verify and check one size."""
    shape = of(name)
    load = f"{os.getloadavg()[0]:.1f}"
    sized = {"SIZED": name, "XDG_CACHE_HOME": str(cache), **extra}
    ids = f"{shape.dp}x{shape.sequence}:int64[0,{shape.vocabulary}]".replace("]", ")")
    batch = [f"--batch=tokens={ids}", f"--batch=labels={ids}"]
    world = shape.tp * shape.dp
    one = spent(["capture", f"{FILE}:single", *batch, "-o", f"{folder}/one"], sized)
    parallel = ["capture", f"{FILE}:parallel", f"--world-size={world}", f"--single={folder}/one"]
    many = spent([*parallel, *batch, "-o", f"{folder}/many"], sized)
    out = folder / "run"
    command = ["verify", f"{folder}/one", f"{folder}/many", "--json", f"--out={out}"]
    decided = spent([*command, "--executor=local"], sized)
    said = json.loads(decided.text)
    checked = spent(["check", str(out)], sized) if decided.code == 0 else None
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "size": name,
        "changed": " ".join(extra),
        "load": load,
        "ranks": world,
        "captured": len(list((folder / "many").glob("*.trace"))),
        "verdict": said["verdict"],
        "capture_s": round(one.wall + many.wall, 1),
        "capture_cpu_s": round(one.cpu + many.cpu, 1),
        "verify_s": round(decided.wall, 1),
        "verify_cpu_s": round(decided.cpu, 1),
        "check": "" if checked is None else ("passes" if checked.code == 0 else "fails"),
        "check_s": "" if checked is None else round(checked.wall, 1),
        "check_cpu_s": "" if checked is None else round(checked.cpu, 1),
        "largest_mib": round(peak),
        "reason": said.get("reason", "")[:120],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=["8B"])
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--wrong", type=int, default=-1, help="this rank reads another's batch")
    parser.add_argument("--again", action="store_true", help="once more with one changed line")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for size in given.sizes:
        name = f"{size} {given.layers}" if given.layers else size
        wrong = {"SIZED_WRONG": str(given.wrong)} if given.wrong >= 0 else {}
        runs = [wrong, {"SIZED_CHANGED": "1"}] if given.again else [wrong]
        with tempfile.TemporaryDirectory(prefix="shardproof-sizes-") as folder:
            for number, extra in enumerate(runs):
                place = Path(folder) / str(number)
                place.mkdir()
                row = run(name, place, Path(folder) / "cache", extra)
                add(given.out / "sizes.csv", [row])


if __name__ == "__main__":
    main()
