"""Long fuzzing with atheris: ``python benchmarks/fuzz/run.py TARGET [--minutes 10] [--out
FOLDER]``.

Needs ``pip install atheris``, in an environment of its own: the product does not. Without
``--guided`` inputs are valid ones with random changes; with it, atheris looks for new paths
through the code. Appends a row to ``fuzz.csv``: inputs tried, how many were read, minutes,
findings; a finding's input is kept beside it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import random
import sys
import time
from pathlib import Path

from benchmarks.fuzz.targets import TARGETS, Finding, Target, attempt, mutated

COLUMNS = ("target", "how", "inputs", "read", "minutes", "findings")


class Campaign:
    """Tries inputs of one target until its time is over; every finding is kept once."""

    def __init__(self, target: Target, minutes: float, out: Path) -> None:
        self.target = target
        self.start = time.monotonic()
        self.end = self.start + minutes * 60
        self.out = out
        self.tried = self.read = 0
        self.findings: dict[str, str] = {}

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def one(self, data: bytes) -> None:
        self.tried += 1
        try:
            self.read += attempt(self.target, data)
        except Finding as finding:
            said = str(finding)[:120]
            if said not in self.findings:
                name = hashlib.sha256(data).hexdigest()[:16]
                self.findings[said] = name
                (self.out / name).write_bytes(data)
                print(f"finding {name}: {finding}", flush=True)

    def row(self, how: str) -> dict[str, str]:
        minutes = (time.monotonic() - self.start) / 60
        cells = (self.target.name, how, self.tried, self.read, f"{minutes:.1f}", len(self.findings))
        return dict(zip(COLUMNS, map(str, cells), strict=True))


def random_changes(campaign: Campaign, seed: int) -> None:
    rng = random.Random(seed)
    seeds = list(campaign.target.seeds())
    for data in seeds:
        campaign.one(data)
    while not campaign.over:
        campaign.one(mutated(rng.choice(seeds), rng))


def guided(campaign: Campaign) -> None:
    import atheris

    seeds = campaign.out / "seeds"
    seeds.mkdir(exist_ok=True)
    for data in campaign.target.seeds():
        (seeds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    atheris.instrument_all()
    seconds = int(campaign.end - time.monotonic())
    atheris.Setup(
        [sys.argv[0], str(seeds), f"-max_total_time={seconds}", "-rss_limit_mb=8192"],
        campaign.one,
    )
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(TARGETS[chosen.target], chosen.minutes, chosen.out)
    try:
        if chosen.guided:
            guided(campaign)
        else:
            random_changes(campaign, chosen.seed)
    finally:
        row = campaign.row("guided" if chosen.guided else "random")
        table = chosen.out / "fuzz.csv"
        new = not table.exists()
        with table.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
