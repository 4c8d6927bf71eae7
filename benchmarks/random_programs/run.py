"""Verify random parallel programs by the thousand, and hold every verdict against the judge's.

``python -m benchmarks.random_programs.run --count 2500 --out DIR`` makes the programs of 2,500
seeds, each as it should be and with mistakes, and writes a line for each to ``outcomes.csv`` in
DIR.  It exits with 1 if a different program was proved or an equal one refuted.  With ``--causes
DIR/outcomes.csv`` it makes ``causes.csv`` beside this file: how many there were of which verdict,
by cause.  With ``--edits 3`` three random edits of each program are programs of their own
(`benchmarks.random_programs.edits`).
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.random_programs.edits import edited
from benchmarks.random_programs.judge import judge
from benchmarks.random_programs.programs import CLASSES, Made, make
from shardproof.partition.templates.memo import Memo
from shardproof.run.mutant import verify

HERE: Final = Path(__file__).resolve().parent
#: Numbers of edits begin here; those of mistakes are smaller.
EDITED: Final = 1000
#: Edits that are drawn for one that has a place.
MOST_DRAWN: Final = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """``label``: what the judge says, "equal", "different" or "meaningless" (it cannot be run);
    ``mistake``: its number, -1 for none, from `EDITED` on that of an edit; ``what``: which."""

    seed: int
    mistake: int
    what: str
    label: str
    verdict: str
    reason: str
    kinds: str

    @property
    def disagreement(self) -> bool:
        wrong = ("refuted", "rejected") if self.label == "equal" else ("proved",)
        return self.verdict in wrong or self.verdict == "internal error"


def labelled(made: Made) -> str | None:
    """What a program is, on three random inputs; None where the single device is not defined.
    "meaningless": an operator does not fit what it reads, or reads what nobody has written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "different" if any(judge(made.plan, n, CLASSES) for n in (1, 2, 3)) else "equal"
        except FloatingPointError:
            return None
        except (ValueError, LookupError, TypeError, AttributeError):
            return "meaningless"


def program(seed: int, number: int) -> Made | None:
    """The program of a seed with the mistake, or from `EDITED` on the edit, of this number."""
    if number < EDITED:
        return make(seed, number)
    made, random = make(seed), Random(f"{seed} {number}")
    tries = (edited(made.plan, random) for _ in range(MOST_DRAWN)) if made is not None else ()
    found = next((one for one in tries if one is not None), None)
    return None if made is None or found is None else replace(made, plan=found[0], mistake=found[1])


def programs(seed: int, mistakes: int, edits: int = 0) -> Iterator[tuple[int, Made]]:
    """The program of a seed as it should be (-1), with some mistakes, and with edits, by their
    numbers."""
    made = make(seed)
    if made is None:
        return
    yield -1, made
    count = min(mistakes, made.opportunities)
    for number in Random(seed).sample(range(made.opportunities), count):
        wrong = make(seed, number)
        if wrong is not None and wrong.mistake:
            yield number, wrong
    for number in range(EDITED, EDITED + edits):
        changed = program(seed, number)
        if changed is not None:
            yield number, changed


def outcomes(
    seeds: Sequence[int], mistakes: int, cache: Path | None = None, edits: int = 0
) -> Iterator[Outcome]:
    """Every program of the seeds with its label and its verdict; texts that are equal, of whichever
    program, are solved once where there is a ``cache``."""
    memo = Memo()
    for seed in seeds:
        for number, made in programs(seed, mistakes, edits):
            found = outcome(seed, number, made, cache, memo)
            if found is not None:
                yield found


def outcome(
    seed: int, number: int, made: Made, cache: Path | None = None, memo: Memo | None = None
) -> Outcome | None:
    """What comes of one program; None where the single device is not defined."""
    label = labelled(made)
    if label is None:
        return None
    verdict, reason = verify(made.plan, cache, memo)
    kinds = " ".join(sorted(made.kinds))
    reason = " ".join(reason.split())[-600:]
    return Outcome(seed, number, made.mistake, label, verdict, reason, kinds)


def again(found: Sequence[Outcome]) -> Iterator[Outcome]:
    """The outcomes, with the programs that were not decided, or decided otherwise than the judge
    said, judged and verified once more."""
    for held in found:
        made = program(held.seed, held.mistake)
        decided = held.verdict in ("proved", "refuted") and not held.disagreement
        now = held if decided or made is None else outcome(held.seed, held.mistake, made)
        if now is not None:
            yield now


def summary(found: Sequence[Outcome]) -> str:
    """How many programs of each label got which verdict."""
    lines = []
    for label in ("equal", "different", "meaningless"):
        counts = Counter(o.verdict for o in found if o.label == label)
        lines.append(f"{label:11} " + ", ".join(f"{n} {v}" for v, n in counts.most_common()))
    return "\n".join(lines)


#: What ended a verdict, by what its reason says; the first that fits names the cause.
CAUSES: Final = (
    (r"takes (\w+) of values that the single-device", "takes {} of values that are not the same"),
    (r"held as a box that is no view", "ranks along the batch's axes hold different values"),
    (r"values: (backward of )?(\w+) .*another order", "{1} joins parts in another order"),
    (r"values: (backward of )?(\w+) .*partial sum", "{1} of a partial sum"),
    (r"values: (backward of )?(\w+) ", "{0}{1} gives no single-device value"),
    (r"gradient of \w+ is a partial sum", "a gradient that is zero by a law is no partial sum"),
    (r"gradient of \w+ is [-\d/]+ times", "a gradient that is zero by a law has no factor"),
    (r"(.*) is not proved \((\w+)", "a claim is not proved: {1}"),
)


def cause(outcome: Outcome) -> str:
    """What an inconclusive verdict is laid to, in the words of its reason."""
    for pattern, name in CAUSES:
        found = re.search(pattern, outcome.reason)
        if found is not None:
            return name.format(*(group or "" for group in found.groups()))
    return outcome.reason[:60]


def by_cause(found: Sequence[Outcome]) -> list[dict[str, str | int]]:
    """How many programs got which verdict, inconclusive ones by cause, with a seed to look at."""
    rows: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in found:
        written = "edited" if outcome.mistake >= EDITED else "with a mistake"
        written = "right" if outcome.mistake < 0 else written
        why = cause(outcome) if outcome.verdict == "inconclusive" else ""
        rows.setdefault((outcome.label, written, outcome.verdict, why), []).append(outcome)
    names = ("label", "written", "verdict", "cause")
    return [
        {**dict(zip(names, key, strict=True)), "programs": len(same), "seed": same[0].seed}
        for key, same in sorted(rows.items())
    ]


def write_table(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_outcomes(paths: Sequence[Path]) -> list[Outcome]:
    """The outcomes of tables that `main` wrote."""
    found = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as table:
            for row in csv.DictReader(table):
                numbers = {key: int(row.pop(key)) for key in ("seed", "mistake")}
                found.append(Outcome(**numbers, **row))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mistakes", type=int, default=2, help="wrong programs of each seed")
    parser.add_argument("--edits", type=int, default=0, help="random edits of each seed")
    parser.add_argument("--out", type=Path, default=HERE, help="where outcomes.csv goes")
    parser.add_argument(
        "--causes", type=Path, nargs="*", help="judge nothing: causes.csv of these tables"
    )
    parser.add_argument("--again", type=Path, help="only what this table leaves open, once more")
    asked = parser.parse_args()
    if asked.causes:
        write_table(by_cause(read_outcomes(asked.causes)), HERE / "causes.csv")
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.again:
        known = list(again(read_outcomes([asked.again])))
        write_table([asdict(one) for one in known], asked.out / "outcomes.csv")
        print(summary(known))
        return 1 if any(one.disagreement for one in known) else 0
    found: list[Outcome] = []
    start = time.perf_counter()
    with (
        TemporaryDirectory(prefix="shardproof-random-") as cache,
        open(asked.out / "outcomes.csv", "w", newline="", encoding="utf-8") as table,
    ):
        writer = csv.DictWriter(table, list(Outcome.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        seeds = range(asked.first, asked.first + asked.count)
        for one in outcomes(seeds, asked.mistakes, Path(cache), asked.edits):
            found.append(one)
            writer.writerow(asdict(one))
            table.flush()
            if one.disagreement:
                print(f"DISAGREEMENT {one}", flush=True)
    print(summary(found))
    print(f"{len(found)} programs in {time.perf_counter() - start:.0f} s")
    return 1 if any(outcome.disagreement for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
