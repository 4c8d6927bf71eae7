"""Forge runs of wrong random programs by the hundred; `check` has to reject every one.

``python -m benchmarks.random_programs.forge --count 500`` makes run directories that say "proved"
of programs that the judge finds different, consistent in every file, in each of the ways of
`tests.checker.forge`; then it checks each.  The right program's own record, stored by the same
path, has to be accepted.  One line for each goes to ``forgeries.csv``; the exit code is 1 if a
forgery was accepted or a true record rejected.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

from benchmarks.random_programs.programs import make
from benchmarks.random_programs.run import labelled, programs
from shardproof.checker import check
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.unrolled import written_out
from shardproof.partition.stages.partition import partition
from shardproof.run.mutant import verify
from tests.checker.conftest import Parts, parts_of
from tests.checker.forge import forgeries

HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Forgery:
    """``way``: how it was forged, "honest" for the right program's own record; ``said``: the first
    thing that `check` said against it."""

    seed: int
    mistake: int
    what: str
    way: str
    accepted: bool
    said: str

    @property
    def is_wrong(self) -> bool:
        return self.accepted != (self.way == "honest")


def checked(parts: Parts) -> tuple[bool, str]:
    """Whether `check` accepts a record, and what it says first if it does not."""
    with tempfile.TemporaryDirectory(prefix="shardproof-forged-") as folder:
        parts.store(Path(folder) / "run")
        found = check(Path(folder) / "run")
    said = "; ".join(str(problem) for problem in found.problems[:1])
    return found.ok, said.splitlines()[0][:200] if said else ""


def forged(seed: int, mistakes: int) -> Iterator[Forgery]:
    """The honest record of a seed's program, if it is proved, and forgeries of wrong ones; of
    plans with their ranks written out where it is proved only so."""
    right = make(seed)
    if right is None or verify(right.plan)[0] != "proved":
        return
    apart = not all(c.holds for c in partition(right.plan).conclusions)
    plan = written_out(right.plan) if apart else right.plan
    assert plan is not None
    yield Forgery(seed, -1, "", "honest", *checked(parts_of(plan)))
    for number, wrong in programs(seed, mistakes):
        if number < 0 or labelled(wrong) != "different":
            continue
        other = written_out(wrong.plan) if apart else wrong.plan
        for way, parts in forgeries(plan, other) if other is not None else ():
            try:
                parts_stored = checked(parts)
            except (Unsupported, ShapeMismatch):
                continue  # what cannot be written down is no forgery
            yield Forgery(seed, number, wrong.mistake, way, *parts_stored)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="forgeries")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mistakes", type=int, default=3, help="wrong programs of each seed")
    parser.add_argument("--out", type=Path, default=HERE, help="where forgeries.csv goes")
    asked = parser.parse_args()
    start, found = time.perf_counter(), Counter[str]()
    wrong = 0
    every = (f for seed in count(asked.first) for f in forged(seed, asked.mistakes))
    with open(asked.out / "forgeries.csv", "w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, list(Forgery.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        for one in islice(every, asked.count):
            writer.writerow(asdict(one))
            table.flush()
            found[f"{one.way}: {'accepted' if one.accepted else 'rejected'}"] += 1
            wrong += one.is_wrong
            if one.is_wrong:
                print(f"WRONG {one}", flush=True)
    for line in sorted(found):
        print(f"{found[line]:5} {line}")
    print(f"{time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
