"""Do verdicts depend on what they should not? ``python benchmarks/stability/run.py RUN_DIR [...]``

Every template of the runs is asked again of both solvers, with other seeds, other names of symbols
and another order of conjuncts, declarations, assertions and templates; for each seed in a child of
its own, which answers them all (Z3's answers depend on what it was asked before). Writes the table
of the page beside this file: texts asked, verdicts that changed, the spread of times, per solver.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pyarrow as pa

from shardproof.solvers import Mode, Portfolio, Query
from shardproof.solvers.answers import SolverName

PAGE = Path(__file__).resolve().parent / "README.md"
MARKS = "<!-- table -->\n", "<!-- end of table -->\n"

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


def table(cells: Sequence[dict[str, str]]) -> str:
    """The table of the page."""
    heads = [name.replace("_", " ") for name in COLUMNS]
    lines = [heads, ["---", "---", *["--:"] * (len(COLUMNS) - 2)]]
    lines += [[one[name] for name in COLUMNS] for one in cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def show(cells: Sequence[dict[str, str]]) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(before + MARKS[0] + table(cells) + MARKS[1] + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="run directories; none: the page only")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--every", type=int, default=1, help="take every n-th template only")
    parser.add_argument("--name", default="", help="what to call a run in the table")
    parser.add_argument("--solver", choices=get_args(SolverName), help="one of them only")
    parser.add_argument("--out", type=Path, default=PAGE.parent)
    chosen = parser.parse_args()
    path = chosen.out / "stability.csv"
    known: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="") as file:
            known = list(csv.DictReader(file))
    for run in chosen.runs:
        name = chosen.name or run.name
        templates = templates_of(run)[:: chosen.every]
        for solver in (chosen.solver,) if chosen.solver else get_args(SolverName):
            found = ask(templates, solver, range(1, chosen.seeds + 1), chosen.timeout)
            cells = row(name, solver, found)
            known = [k for k in known if (k["run"], k["solver"]) != (name, solver)] + [cells]
            known.sort(key=lambda k: (k["run"], k["solver"]))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(known)
            sys.stdout.write(table([cells]).splitlines()[-1] + "\n")
            for number, seen in enumerate(found):
                if seen.changed:
                    sys.stdout.write(f"template {number * chosen.every}: {dict(seen.verdicts)}\n")
    if chosen.out == PAGE.parent:
        show(known)


if __name__ == "__main__":
    main()
