"""Do verdicts depend on what they should not? ``python benchmarks/stability/run.py RUN_DIR [...]``

Every template of the runs is asked again of both solvers, with other seeds, other names of symbols
and another order of conjuncts, declarations and assertions; in one warm child each, and in a fresh
one (Z3's answers depend on what it was asked before). Prints a table: texts asked, verdicts that
changed, and the spread of times, per solver.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pyarrow as pa

from solvers import Mode, Portfolio, Query
from solvers.answers import SolverName

_SYMBOL = re.compile(r"^\(declare-fun (\|[^|]*\||\S+) \(\) Real\)$", re.MULTILINE)
_WORD = re.compile(r"\|[^|]*\||[^\s()|]+")


def shuffled(text: str, rng: random.Random) -> str:
    """The text with its symbols renamed, and its declarations and conjuncts in another order."""
    names = _SYMBOL.findall(text)
    fresh = [f"s{i}" for i in range(len(names))]
    rng.shuffle(fresh)
    new = dict(zip(names, fresh, strict=True))
    text = _WORD.sub(lambda found: new.get(found[0], found[0]), text)
    lines = text.splitlines()
    head = lines[0]
    declared = [line for line in lines if line.startswith("(declare-fun ")]
    defined = [line for line in lines if line.startswith("(define-fun ")]
    asserted = [_conjuncts(line, rng) for line in lines if line.startswith("(assert ")]
    rng.shuffle(declared)
    rng.shuffle(asserted)
    return "\n".join([head, *declared, *defined, *asserted, "(check-sat)", ""])


def _conjuncts(line: str, rng: random.Random) -> str:
    """An assertion of "not all of these" with these in another order."""
    start, end = "(assert (not (and ", ")))"
    if not line.startswith(start) or not line.endswith(end):
        return line
    parts = list(_forms(line[len(start) : -len(end)]))
    rng.shuffle(parts)
    return start + " ".join(parts) + end


def _forms(text: str) -> Iterator[str]:
    """The forms at the top of a text."""
    depth, begin = 0, 0
    for place, character in enumerate(text):
        if character == "(":
            if depth == 0:
                begin = place
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                yield text[begin : place + 1]


@dataclass
class Seen:
    """What one solver said of one template."""

    verdicts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return len(self.verdicts) > 1

    @property
    def spread(self) -> float:
        """The slowest by the fastest, above the noise of a millisecond."""
        return max(self.seconds) / max(min(self.seconds), 0.001)


def ask(
    templates: Sequence[tuple[str, str]], solver: SolverName, seeds: Sequence[int], timeout: float
) -> list[Seen]:
    """What a solver says of every template under every seed, names and order, history and none."""
    found = [Seen() for _ in templates]
    for seed in seeds:
        rng = random.Random(seed)
        texts = [tuple(shuffled(t, rng) if t else "" for t in both) for both in templates]
        order = list(range(len(templates)))
        rng.shuffle(order)
        with Portfolio(_mode(solver), timeout, seed=seed) as warm:
            for number in order:
                linear, nonlinear = texts[number]
                solved = warm.solve(Query("", linear, nonlinear))
                found[number].verdicts[solved.verdict] += 1
                found[number].seconds.append(sum(a.seconds for a in solved.answers))
    return found


def _mode(solver: SolverName) -> Mode:
    return solver


def templates_of(run: Path) -> list[tuple[str, str]]:
    """The texts of a run."""
    table = pa.ipc.open_file(pa.memory_map(str(run / "templates.arrow"))).read_all()
    return list(zip(table["linear"].to_pylist(), table["nonlinear"].to_pylist(), strict=True))


COLUMNS = (
    "run",
    "solver",
    "templates",
    "asked",
    "changed",
    "verdicts",
    "median_spread",
    "worst_spread",
    "slowest_s",
)


def row(run: str, solver: str, found: Sequence[Seen]) -> dict[str, str]:
    """One row of the table."""
    spreads = [seen.spread for seen in found]
    verdicts: Counter[str] = sum((seen.verdicts for seen in found), Counter())
    cells = (
        run,
        solver,
        len(found),
        verdicts.total(),
        sum(seen.changed for seen in found),
        " ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
        f"{statistics.median(spreads):.1f}",
        f"{max(spreads):.1f}",
        f"{max(max(seen.seconds) for seen in found):.2f}",
    )
    return dict(zip(COLUMNS, map(str, cells), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--every", type=int, default=1, help="take every n-th template only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    chosen = parser.parse_args()
    table = chosen.out / "stability.csv"
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        for run in chosen.runs:
            templates = templates_of(run)[:: chosen.every]
            for solver in get_args(SolverName):
                found = ask(templates, solver, range(1, chosen.seeds + 1), chosen.timeout)
                cells = row(run.name, solver, found)
                writer.writerow(cells)
                file.flush()
                print("| " + " | ".join(cells.values()) + " |", flush=True)
                for number, seen in enumerate(found):
                    if seen.changed:
                        print(f"   template {number * chosen.every}: {dict(seen.verdicts)}")


if __name__ == "__main__":
    main()
