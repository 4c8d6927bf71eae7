"""How cost grows with parameters: ``python benchmarks/growth/parameters.py [--out FILE]``.

A step of data parallelism with so many parameters: most of them unused, all of them operands of one
``add_n``, or added one after the other.  Each plan is verified and checked by the commands that a
user types, each in a process of its own; processor seconds and the largest resident process.
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from shardproof.engine.plan.ir import Plan, Program  # noqa: E402
from shardproof.engine.plan_files import store  # noqa: E402
from shardproof.frontends.builder.builder import ProgramBuilder, along  # noqa: E402

#: Kinds of plans and their numbers of parameters.
POINTS = {
    "unused": (2_000, 10_000, 100_000),
    "add_n": (60, 240, 1_000, 2_000),
    "chain": (60, 240, 2_000),
}
#: Parameters that are used where most are not.
USED = 3


def side(program: ProgramBuilder, rows: int, kind: str, count: int) -> Program:
    """One side: forward, backward, and gradients added up over replicas."""
    body = program.body("forward")
    (x,) = body.load_batch(("x", (rows, 4), "float32"))
    held = [program.parameter(f"p{number}", (4,)) for number in range(count)]
    used = held[:USED] if kind == "unused" else held
    read = [body.parameter(shard) for shard in used]
    if kind == "add_n":
        x = body.op("mul", x, body.op("add_n", *read))
    for value in read if kind != "add_n" else ():
        x = body.op("mul", x, value) if kind == "unused" else body.add(x, value)
    body.loss(body.mul_constant(body.sum(x), Fraction(1, 64)))
    program.schedule(body, body.backward(), 1)
    if "dp" in program.extents:
        program.reduce([(shard, along("dp")) for shard in used])
    return program.build()


def plan(kind: str, count: int) -> Plan:
    single = side(ProgramBuilder("single"), 8, kind, count)
    ranks = side(ProgramBuilder("ranks", axes=(("dp", 2, 1),)), 4, kind, count)
    return Plan(f"{kind} {count}", single, (ranks,), 1, replica_axes=("dp",))


def spent(*words: str) -> float:
    """Processor seconds of a command of ours; it must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "shardproof", *words],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> Iterator[dict[str, str]]:
    for kind, counts in POINTS.items():
        for count in counts:
            with tempfile.TemporaryDirectory(prefix="shardproof-growth-") as place:
                where, run = f"{place}/plan", f"{place}/run"
                store.save(plan(kind, count), where)
                verify = spent("verify", where, "--no-cache", "--out", run)
                check = spent("check", run)
            yield {
                "plan": kind,
                "parameters": str(count),
                "verify_cpu_s": f"{verify:.1f}",
                "check_cpu_s": f"{check:.1f}",
            }


def main() -> None:
    """All points; the table is printed and kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "parameters.csv")
    out = parser.parse_args().out
    with out.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows():
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            print(*row.values(), sep="\t", flush=True)


if __name__ == "__main__":
    main()
