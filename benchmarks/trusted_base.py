"""How large the trusted base is: ``python benchmarks/trusted_base.py`` prints the table of
docs/trusted-base.md, which a test holds against it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Rooms: the files in them.
PARTS: dict[str, tuple[str, ...]] = {
    "`engine/ops`, `engine/interpreters`": ("engine/ops/*.py", "engine/interpreters/*.py"),
    "`engine/plan`, `engine/plan_files`": ("engine/plan/*.py", "engine/plan_files/*.py"),
    "`engine/schedule`": ("engine/schedule/*.py",),
    "`engine/algebra`, `engine/lineage`": ("engine/algebra/*.py", "engine/lineage/*.py"),
    "`engine/claims`, `engine/small_model`, `engine/obligations`": (
        "engine/claims/*.py",
        "engine/small_model/*.py",
        "engine/obligations/*.py",
    ),
    "`engine/specification`": ("engine/specification/*.py",),
    "`engine/storage`, `engine/records`, `engine/system`": (
        "engine/storage/*.py",
        "engine/records/*.py",
        "engine/system/*.py",
    ),
    "`engine/reference_runtime`": ("engine/reference_runtime/*.py",),
    "of `engine/simulation`, the small sizes": (
        "engine/simulation/__init__.py",
        "engine/simulation/axis_classes.py",
        "engine/simulation/trace_axes.py",
        "engine/simulation/recording.py",
        "engine/simulation/small_shapes.py",
        "engine/simulation/hiding.py",
    ),
    "`solvers`": ("solvers/*.py",),
    "`checker` but for its proofs": (
        "checker/*.py",
        "checker/values/*.py",
        "checker/obligations/*.py",
        "checker/record/*.py",
        "checker/runtime/*.py",
    ),
    "`checker/proofs`": ("checker/proofs/*.py",),
    "`frontends/nnscaler`, `frontends/untrusted`": (
        "frontends/nnscaler/*.py",
        "frontends/untrusted/*.py",
    ),
    "`frontends/hlo`, `frontends/graphs`": (
        "frontends/hlo/*.py",
        "frontends/graphs/*.py",
    ),
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
        parts = name.split(".")
        floors = parts[1:] if (ROOT / "/".join(parts[1:2]) / "__init__.py").is_file() else parts
        place = ROOT.joinpath(*floors)
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
