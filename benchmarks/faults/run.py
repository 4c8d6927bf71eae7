"""Kill solver children, actors, worker nodes and drivers at random while a plan is verified on Ray.

    python -m benchmarks.faults.run --kills 200 --minutes 5      # again and again, until it says so

A head and two worker nodes run as processes of their own on this machine (token authentication on).
The same plan is verified again and again; whatever is killed, the run goes on, a killed driver by
`shardproof resume`. Every finished run is held against one that nobody disturbed: the same verdict
on every template, each once, and the same certificate, byte for byte.

Kills and runs are added to kills.csv and runs.csv as they happen, so that the campaign goes on
where it was; summary.md is made from both. The exit code is 1 if anything was lost, repeated or
wrong, or a run did not come to its end, and 2 while there are kills to go.
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

from shardproof.cluster.verdicts.ledger import FILE, read
from tests.cluster.nodes import ROOT, Cluster, family

HERE = Path(__file__).resolve().parent
KINDS = {"solver child": 6, "actor": 4, "node": 1, "driver": 2}
PAUSE_SECONDS = (0.1, 0.7)
PLAN = ("deepseek-v3-671b", "--dp", "4", "--ep", "2", "--tp", "2", "--pp", "2", "--cp", "2",
        "--microbatches", "2", "--layers", "4")  # fmt: skip
ATTEMPTS = 12
MOST_OF_A_RUN = 25
"""Kills in one run, so that a run ends and is judged."""

KILLS, RUNS = "kills.csv", "runs.csv"


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
    """``record``: the folder with the kills and runs so far."""

    def __init__(self, cluster: Cluster, folder: Path, plan: Path, seed: int, record: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.plan = plan
        self.record = record
        self.kills, self.runs = kills_in(record), runs_in(record)
        self.chance = random.Random(f"{seed} {len(self.runs)}")
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
        most = min(most, before + MOST_OF_A_RUN)
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
        _add(self.record / RUNS, run)
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
                    _add(self.record / KILLS, kill)
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


def _add(path: Path, row: Kill | Run) -> None:
    """Add a row to a table, which begins with the names of its columns."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(row)])
        if fresh:
            writer.writeheader()
        writer.writerow(asdict(row))


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def kills_in(record: Path) -> list[Kill]:
    """The kills of a campaign so far. One whose run the script did not see end counts too."""
    return [
        Kill(int(r["run"]), int(r["attempt"]), float(r["second"]), r["kind"], int(r["on_record"]))
        for r in _read(record / KILLS)
    ]


def runs_in(record: Path) -> list[Run]:
    """The runs of a campaign so far."""
    whole = ("run", "kills", "attempts", "exit_code", "templates", "lost", "repeated", "wrong")
    return [
        Run(
            seconds=float(r["seconds"]),
            same_certificate=r["same_certificate"] == "True",
            **{name: int(r[name]) for name in whole},
        )
        for r in _read(record / RUNS)
    ]


def is_bad(run: Run) -> bool:
    """Whether a run is not what a run that nobody disturbs is."""
    return bool(run.exit_code or run.lost or run.repeated or run.wrong or not run.same_certificate)


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
    yield "| runs | drivers | finished | verdicts | lost | repeated | wrong | other certificate |"
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    yield (
        f"| {len(runs)} | {sum(r.attempts for r in runs)} | "
        f"{sum(r.exit_code == 0 for r in runs)} | {sum(r.templates for r in runs)} | "
        f"{sum(r.lost for r in runs)} | {sum(r.repeated for r in runs)} | "
        f"{sum(r.wrong for r in runs)} | {sum(not r.same_certificate for r in runs)} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="no new run after so many")
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
        campaign = Campaign(cluster, folder, plan, asked.seed, asked.out)
        whole = campaign.undisturbed()
        print(json.dumps({"templates": len(verdicts(whole))}), flush=True)
        while len(campaign.kills) < asked.kills and time.monotonic() < until:
            number = 1 + max((kill.run for kill in campaign.kills), default=0)
            number = max(number, 1 + len(campaign.runs))
            print(campaign.one(number, whole, asked.kills), flush=True)
    text = "\n".join(summary(campaign)) + "\n"
    (asked.out / "summary.md").write_text(text)
    print(text)
    if any(map(is_bad, campaign.runs)):
        return 1
    return 2 if len(campaign.kills) < asked.kills else 0


if __name__ == "__main__":
    sys.exit(main())
