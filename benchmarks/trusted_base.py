"""How large the trusted base is: ``python benchmarks/trusted_base.py`` prints the table of
docs/trusted-base.md, which a test holds against it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Part: what of the repository it is.
PARTS: dict[str, tuple[str, ...]] = {
    "operators and their readings": (
        "engine/ops/*.py",
        "engine/reading.py",
        "engine/arrays/*.py",
    ),
    "programs: unrolling, messages, data flow": (
        "engine/ir.py",
        "engine/wellformed.py",
        "engine/rendezvous.py",
        "engine/flow.py",
        "engine/unroll.py",
    ),
    "lineages and sums": (
        "engine/affine.py",
        "engine/lineage.py",
        "engine/layout.py",
        "engine/sums.py",
    ),
    "obligations": (
        "engine/cone.py",
        "engine/grid.py",
        "engine/moves.py",
        "engine/meaning.py",
        "engine/obligation.py",
    ),
    "derivative and conclusions": ("engine/derive.py", "engine/conclusions.py"),
    "terms and SMT-LIB": ("engine/terms.py", "solvers/smtlib.py"),
    "solver children": (
        "solvers/answers.py",
        "solvers/child.py",
        "solvers/configurations.py",
        "solvers/portfolio.py",
        "solvers/worker.py",
    ),
    "the checker": ("checker/*.py",),
    "of it, the checker of proofs": (
        "checker/cpc.py",
        "checker/cpc_rules.py",
        "checker/cpc_terms.py",
    ),
    "the nnScaler reader": ("frontends/nnscaler/*.py",),
}


def lines(patterns: tuple[str, ...]) -> int:
    """Lines of all files of a part, comments and all; raises ``LookupError`` for a file that is
    not there."""
    total = 0
    for pattern in patterns:
        files = sorted(ROOT.glob(pattern))
        if not files:
            raise LookupError(f"{pattern} names no file")
        total += sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
    return total


def rows() -> Iterator[tuple[str, int]]:
    """Every part with its lines."""
    for part, patterns in PARTS.items():
        yield part, lines(patterns)


def rounded(count: int) -> int:
    """Lines as the page says them: in hundreds, so that not every change is one of the page."""
    return round(count, -2)


def main() -> None:
    for part, count in rows():
        sys.stdout.write(f"| {part} | {rounded(count):,} |\n")


if __name__ == "__main__":
    main()
