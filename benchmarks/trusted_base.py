"""How large the trusted base is: ``python benchmarks/trusted_base.py`` prints the table of
docs/trusted-base.md, which a test holds against it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Part: what of the repository it is.
PARTS: dict[str, tuple[str, ...]] = {
    "operators and their readings": (
        "engine/ops/*.py",
        "engine/reading.py",
        "engine/laws.py",
        "engine/arrays/*.py",
    ),
    "programs: unrolling, messages, data flow": (
        "engine/ir.py",
        "engine/wellformed.py",
        "engine/calling.py",
        "engine/collectives.py",
        "engine/mesh.py",
        "engine/chunk.py",
        "engine/rejoin.py",
        "engine/rendezvous.py",
        "engine/liveness.py",
        "engine/flow.py",
        "engine/rows.py",
        "engine/unroll.py",
    ),
    "lineages and sums": (
        "engine/affine.py",
        "engine/blocks.py",
        "engine/floating.py",
        "engine/lineage.py",
        "engine/layout.py",
        "engine/places.py",
        "engine/positions.py",
        "engine/sums.py",
        "engine/tiling.py",
    ),
    "obligations": (
        "engine/claim.py",
        "engine/related.py",
        "engine/cone.py",
        "engine/digits.py",
        "engine/dimensions.py",
        "engine/grid.py",
        "engine/labels.py",
        "engine/moves.py",
        "engine/meaning.py",
        "engine/obligation.py",
        "engine/regions.py",
    ),
    "expectations, derivative and conclusions": (
        "engine/expectations.py",
        "engine/given.py",
        "engine/demands.py",
        "engine/derive.py",
        "engine/conclusions.py",
    ),
    "what is stored, read strictly": (
        "engine/assumed.py",
        "engine/assumption.py",
        "engine/attributes.py",
        "engine/certificate.py",
        "engine/claims.py",
        "engine/columns.py",
        "engine/files.py",
        "engine/lineage_columns.py",
        "engine/payload.py",
        "engine/plan_tables.py",
        "engine/proofs.py",
        "engine/records.py",
        "engine/rounding.py",
        "engine/store.py",
        "engine/tables.py",
        "engine/whole.py",
    ),
    "terms and SMT-LIB": ("engine/terms.py", "solvers/smtlib.py"),
    "solver children": (
        "engine/closing.py",
        "solvers/answers.py",
        "solvers/child.py",
        "solvers/configurations.py",
        "solvers/portfolio.py",
        "solvers/worker.py",
    ),
    "the reference runtime": ("engine/reference_runtime/*.py",),
    "its small sizes": (
        "engine/factors.py",
        "engine/recorder.py",
        "engine/recording.py",
        "engine/shrink.py",
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


def listed() -> set[Path]:
    """The files of all parts."""
    return {f for patterns in PARTS.values() for p in patterns for f in ROOT.glob(p)}


def imported(module: str) -> set[Path]:
    """The files of ours that a module needs, itself among them."""
    found: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        place = ROOT.joinpath(*name.split("."))
        file = next(
            (f for f in (place.with_suffix(".py"), place / "__init__.py") if f.exists()), None
        )
        if name in found or file is None:
            continue
        found[name] = file
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
    return set(found.values())


def rounded(count: int) -> int:
    """Lines as the page says them: in hundreds, so that not every change is one of the page."""
    return round(count, -2)


def main() -> None:
    for part, count in rows():
        sys.stdout.write(f"| {part} | {rounded(count):,} |\n")


if __name__ == "__main__":
    main()
