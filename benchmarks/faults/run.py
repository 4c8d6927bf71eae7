"""Kill solver children, actors, worker nodes and drivers at random while a plan is verified on Ray.

    python -m benchmarks.faults.run --kills 200

A head and two worker nodes run as processes of their own on this machine (token authentication on).
The same plan is verified again and again; whatever is killed, the run goes on, a killed driver by
`shardproof resume`. Every finished run is held against one that nobody disturbed: the same verdict
on every template, each once, and the same certificate, byte for byte.
Writes kills.csv, runs.csv and summary.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from cluster.ledger import FILE, read
from tests.cluster.nodes import ROOT, Cluster, family

HERE = Path(__file__).resolve().parent
KINDS = {"solver child": 6, "actor": 4, "node": 1, "driver": 2}
PAUSE_SECONDS = (0.1, 0.7)
PLAN = ("mixtral-8x7b", "--dp", "2", "--tp", "2", "--pp", "2", "--microbatches", "2",
        "--layers", "2")  # fmt: skip
ATTEMPTS = 12


@dataclass
class Kill:
    run: int
    attempt: int
    second: float
    kind: str
    on_record: int


@dataclass
class Run:
    run: int
    kills: int
    attempts: int
    seconds: float
    exit_code: int
    templates: int
    lost: int
    repeated: int
    wrong: int
    same_certificate: bool


def verdicts(out: Path) -> dict[str, str]:
    """Verdicts by text; raises if the ledger is damaged or says anything twice."""
    if not (out / FILE).exists():
        return {}
    table = read(out / FILE)
    keys, said = (table.column(name).to_pylist() for name in ("key", "verdict"))
    return dict(zip(keys, said, strict=True))


def processes(cluster: Cluster, sign: str) -> list[psutil.Process]:
    found = []
    for node in cluster.nodes:
        for process in family(node.pid):
            try:
                if any(word.startswith(sign) or word.endswith(sign) for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
    return found


class Campaign:
    def __init__(self, cluster: Cluster, folder: Path, plan: Path, seed: int) -> None:
        self.cluster = cluster
        self.folder = folder
        self.plan = plan
        self.chance = random.Random(seed)
        self.kills: list[Kill] = []
        self.runs: list[Run] = []
        self.common = ["--executor", "ray", "--address", cluster.address]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "shardproof", *words, *self.common]

    def undisturbed(self) -> Path:
        out = self.folder / "undisturbed"
        done = self.cluster.run(
            *self.command("verify", str(self.plan), "--out", str(out), *SETTINGS)
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return out

    def one(self, number: int, whole: Path, most: int) -> Run:
        out = self.folder / f"run-{number}"
        began = time.monotonic()
        before = len(self.kills)
        code = -1
        for attempt in range(1, ATTEMPTS + 1):
            words = (
                ["resume", str(out)]
                if (out / "run.json").exists()
                else ["verify", str(self.plan), "--out", str(out), *SETTINGS]
            )
            # The last ones are left in peace, so that a run that does not end is our fault.
            still = most if attempt <= ATTEMPTS - 2 else 0
            code = self.attempt(number, attempt, words, out, began, still)
            if code >= 0:
                break
        expected, found = verdicts(whole), verdicts(out)
        same = _bytes(out) == _bytes(whole)
        run = Run(
            number, len(self.kills) - before, attempt, round(time.monotonic() - began, 1), code,
            len(found), len(expected.keys() - found.keys()), len(found.keys() - expected.keys()),
            sum(found.get(key, said) != said for key, said in expected.items()), same,
        )  # fmt: skip
        self.runs.append(run)
        return run

    def attempt(
        self, number: int, attempt: int, words: list[str], out: Path, began: float, most: int
    ) -> int:
        """One driver, disturbed until it ends; its exit code, negative if it was killed."""
        log = (self.folder / f"driver-{number}-{attempt}.log").open("wb")
        driver = subprocess.Popen(
            self.command(*words), cwd=ROOT, env=self.cluster.environment, stdout=log, stderr=log
        )
        while driver.poll() is None:
            time.sleep(self.chance.uniform(*PAUSE_SECONDS))
            if len(self.kills) < most and driver.poll() is None:
                kind = self.disturb(driver)
                if kind:
                    second = round(time.monotonic() - began, 2)
                    kill = Kill(number, attempt, second, kind, len(verdicts(out)))
                    self.kills.append(kill)
                    print(f"  {kill}", flush=True)
        return driver.returncode

    def disturb(self, driver: subprocess.Popen[bytes]) -> str:
        """Kill something that is at work for this driver; what it was, "" if nothing is."""
        actors = processes(self.cluster, "ray::SolverActor")
        children = processes(self.cluster, "solvers/worker.py")
        if not actors and self.chance.random() < 0.99:
            return ""
        (kind,) = self.chance.choices(list(KINDS), list(KINDS.values()))
        try:
            if kind == "solver child":
                self.chance.choice(children).kill()
            elif kind == "actor":
                self.chance.choice(actors).kill()
            elif kind == "driver":
                driver.kill()
                driver.wait()
            else:
                self.cluster.kill(self.chance.choice(self.cluster.nodes[1:]))
                self.cluster.add()
        except (IndexError, psutil.Error):
            return ""
        return kind


SETTINGS = ("--no-cache", "--solver", "both", "--json")


def _bytes(out: Path) -> bytes:
    path = out / "certificate.json"
    return path.read_bytes() if path.exists() else b""


def _rows(path: Path, rows: list[Kill] | list[Run]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def summary(campaign: Campaign) -> Iterator[str]:
    """What was killed and what happened, as a table."""
    by_kind = Counter(kill.kind for kill in campaign.kills)
    runs = campaign.runs
    yield "| killed | times |"
    yield "|---|--:|"
    for kind in KINDS:
        yield f"| {kind} | {by_kind[kind]} |"
    yield f"| all | {len(campaign.kills)} |"
    yield ""
    yield "| runs | finished | verdicts lost | repeated | wrong | certificates that differ |"
    yield "|--:|--:|--:|--:|--:|--:|"
    yield (
        f"| {len(runs)} | {sum(r.exit_code == 0 for r in runs)} | {sum(r.lost for r in runs)} | "
        f"{sum(r.repeated for r in runs)} | {sum(r.wrong for r in runs)} | "
        f"{sum(not r.same_certificate for r in runs)} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + asked.minutes * 60
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as temporary,
        Cluster(dashboard=False) as cluster,
    ):
        folder = Path(temporary)
        plan = folder / "plan"
        made = cluster.run(sys.executable, "-m", "shardproof", "plan", *PLAN, "-o", str(plan))
        if made.returncode:
            raise RuntimeError(made.stderr)
        campaign = Campaign(cluster, folder, plan, asked.seed)
        whole = campaign.undisturbed()
        print(json.dumps({"templates": len(verdicts(whole))}), flush=True)
        number = 0
        while len(campaign.kills) < asked.kills and time.monotonic() < until:
            number += 1
            print(campaign.one(number, whole, asked.kills), flush=True)
            _rows(asked.out / "runs.csv", campaign.runs)
            if campaign.kills:
                _rows(asked.out / "kills.csv", campaign.kills)
    text = "\n".join(summary(campaign)) + "\n"
    (asked.out / "summary.md").write_text(text)
    print(text)
    bad = any(r.exit_code or r.lost or r.repeated or r.wrong or not r.same_certificate
              for r in campaign.runs)  # fmt: skip
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
