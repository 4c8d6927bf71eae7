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
        "engine/ops/primitives.py",
        "engine/ops/laws.py",
        "engine/arrays/*.py",
    ),
    "programs: unrolling, messages, data flow": (
        "engine/plan/ir.py",
        "engine/plan_files/wellformed.py",
        "engine/plan_files/calling.py",
        "engine/plan/collectives.py",
        "engine/plan/mesh.py",
        "engine/schedule/chunks.py",
        "engine/schedule/rejoin.py",
        "engine/schedule/messages.py",
        "engine/schedule/liveness.py",
        "engine/schedule/dataflow.py",
        "engine/schedule/instances.py",
        "engine/schedule/unroll.py",
    ),
    "lineages and sums": (
        "engine/algebra/affine.py",
        "engine/lineage/blocks.py",
        "engine/lineage/floating.py",
        "engine/lineage/lineage.py",
        "engine/lineage/layout.py",
        "engine/lineage/places.py",
        "engine/lineage/positions.py",
        "engine/lineage/sums.py",
        "engine/specification/tiling.py",
    ),
    "obligations": (
        "engine/claims/claim.py",
        "engine/small_model/related.py",
        "engine/claims/cone.py",
        "engine/small_model/digits.py",
        "engine/small_model/shared_dims.py",
        "engine/small_model/grid.py",
        "engine/small_model/bounds.py",
        "engine/claims/symmetry.py",
        "engine/obligations/entries.py",
        "engine/obligations/obligation.py",
        "engine/obligations/regions.py",
    ),
    "expectations, derivative and conclusions": (
        "engine/plan/expectations.py",
        "engine/specification/given.py",
        "engine/specification/demands.py",
        "engine/specification/gradients.py",
        "engine/specification/conclusions.py",
    ),
    "what is stored, read strictly": (
        "engine/plan/assumptions.py",
        "engine/plan/assumption.py",
        "engine/plan_files/attributes.py",
        "engine/records/certificate.py",
        "engine/plan/recorded.py",
        "engine/plan_files/columns.py",
        "engine/storage/files.py",
        "engine/records/lineage_columns.py",
        "engine/records/payload.py",
        "engine/plan_files/tables.py",
        "engine/records/proofs.py",
        "engine/records/run.py",
        "engine/plan/constants.py",
        "engine/plan_files/store.py",
        "engine/storage/tables.py",
        "engine/small_model/kept_whole.py",
    ),
    "terms and SMT-LIB": ("engine/algebra/terms.py", "solvers/smtlib.py"),
    "solver children": (
        "engine/storage/closing.py",
        "solvers/answers.py",
        "solvers/child.py",
        "solvers/configurations.py",
        "solvers/portfolio.py",
        "solvers/worker.py",
    ),
    "the reference runtime": ("engine/reference_runtime/*.py",),
    "its small sizes": (
        "engine/simulation/factors.py",
        "engine/simulation/recorder.py",
        "engine/simulation/recording.py",
        "engine/simulation/shrink.py",
    ),
    "the checker": ("checker/*.py",),
    "of it, the checker of proofs": (
        "checker/proofs/cpc.py",
        "checker/proofs/rules.py",
        "checker/proofs/terms.py",
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
