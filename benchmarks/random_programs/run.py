"""Verify random parallel programs by the thousand, and hold every verdict against the judge's.

``python -m benchmarks.random_programs.run --count 5000`` makes the programs of 5,000 seeds, each as
it should be and with mistakes, and writes one line each to ``outcomes.csv`` beside this file (or in
``--out``).  It exits with 1 if a different program was proved or an equal one refuted.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.random_programs.judge import judge
from benchmarks.random_programs.programs import CLASSES, Made, make
from shardproof.partition.templates.memo import Memo
from shardproof.run.mutant import verify

HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """``label``: what the judge says, "equal" or "different"; ``what``: the mistake, or ""."""

    seed: int
    mistake: int
    what: str
    label: str
    verdict: str
    reason: str
    kinds: str

    @property
    def disagreement(self) -> bool:
        wrong = {"equal": ("refuted", "rejected"), "different": ("proved",)}[self.label]
        return self.verdict in wrong or self.verdict == "internal error"


def labelled(made: Made) -> str | None:
    """What a program is, on three random inputs; None where the single device is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "different" if any(judge(made.plan, n, CLASSES) for n in (1, 2, 3)) else "equal"
        except FloatingPointError:
            return None


def programs(seed: int, mistakes: int) -> Iterator[tuple[int, Made]]:
    """The program of a seed as it should be (-1), and with some mistakes by their numbers."""
    made = make(seed)
    if made is None:
        return
    yield -1, made
    count = min(mistakes, made.opportunities)
    for number in Random(seed).sample(range(made.opportunities), count):
        wrong = make(seed, number)
        if wrong is not None and wrong.mistake:
            yield number, wrong


def outcomes(seeds: Sequence[int], mistakes: int, cache: Path | None = None) -> Iterator[Outcome]:
    """Every program of the seeds with its label and its verdict; texts that are equal, of whichever
    program, are solved once where there is a ``cache``."""
    memo = Memo()
    for seed in seeds:
        for number, made in programs(seed, mistakes):
            label = labelled(made)
            if label is not None:
                verdict, reason = verify(made.plan, cache, memo)
                kinds = " ".join(sorted(made.kinds))
                yield Outcome(seed, number, made.mistake, label, verdict, reason, kinds)


def summary(found: Sequence[Outcome]) -> str:
    """How many programs of each label got which verdict."""
    lines = []
    for label in ("equal", "different"):
        counts = Counter(o.verdict for o in found if o.label == label)
        lines.append(f"{label:9} " + ", ".join(f"{n} {v}" for v, n in counts.most_common()))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mistakes", type=int, default=2, help="wrong programs of each seed")
    parser.add_argument("--out", type=Path, default=HERE, help="where outcomes.csv goes")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: list[Outcome] = []
    start = time.perf_counter()
    with (
        TemporaryDirectory(prefix="shardproof-random-") as cache,
        open(asked.out / "outcomes.csv", "w", newline="", encoding="utf-8") as table,
    ):
        writer = csv.DictWriter(table, list(Outcome.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        seeds = range(asked.first, asked.first + asked.count)
        for outcome in outcomes(seeds, asked.mistakes, Path(cache)):
            found.append(outcome)
            reason = " ".join(outcome.reason.split())
            writer.writerow({**asdict(outcome), "reason": reason[-600:]})
            table.flush()
            if outcome.disagreement:
                print(f"DISAGREEMENT {outcome}", flush=True)
    print(summary(found))
    print(f"{len(found)} programs in {time.perf_counter() - start:.0f} s")
    return 1 if any(outcome.disagreement for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
