"""docs/trusted-base.md says how large each part is; benchmarks/trusted_base.py counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.trusted_base import ROOT, imported, lines, listed, rounded, rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "trusted-base.md"


def test_the_page_has_the_sizes_that_are_counted() -> None:
    told = dict(re.findall(r"^\| ([^|]+?) \| ([\d,]+) \|", PAGE.read_text(encoding="utf-8"), re.M))
    counted = dict(rows())
    assert told.keys() == counted.keys()
    # A hundred more or less is no reason to touch the page; twice as much is.
    wrong = {
        part: (told[part], count)
        for part, count in counted.items()
        if abs(int(told[part].replace(",", "")) - count) > max(150, count // 10)
    }
    assert not wrong


def test_a_part_without_files_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"engine/nothing\.py names no file"):
        lines(("engine/nothing.py",))
    assert rounded(1449) == 1400


#: What the checker imports that decides nothing: errors, what is said, a package's own list.
SMALL = {"engine/__init__.py", "engine/errors.py", "engine/findings.py"}


#: The plan's data classes and the declarations of operators over float64, with what these need.
PLAN_AND_OPERATORS = (
    "engine/reference_runtime/",
    "engine/ops/",
    "engine/interpreters/",
    "engine/algebra/affine.py",
    "engine/algebra/selection.py",
    "engine/plan/assumption.py",
    "engine/plan/recorded.py",
    "engine/errors.py",
    "engine/findings.py",
    "engine/plan/ir.py",
    "engine/ops/laws.py",
    "engine/ops/primitives.py",
    "engine/algebra/terms.py",
    "engine/__init__.py",
)


def test_the_reference_runtime_knows_plan_and_operators_alone() -> None:
    """It is an eye of its own: nothing that prover and checker share reaches it."""
    folder = ROOT / "engine" / "reference_runtime"
    for file in folder.glob("*.py"):
        needed = imported(f"engine.reference_runtime.{file.stem}")
        names = {str(f.relative_to(ROOT)) for f in needed}
        assert {n for n in names if not n.startswith(PLAN_AND_OPERATORS)} == set(), file
    assert len(list(folder.glob("*.py"))) >= 5


def test_what_the_checker_needs_is_on_the_page() -> None:
    """The checker shares nothing with the prover that is not named as trusted."""
    needed = {str(f.relative_to(ROOT)) for f in imported("shardproof.checker.verify")}
    named = {str(f.relative_to(ROOT)) for f in listed()}
    assert needed - named == SMALL
    assert not any(f.startswith(("partition/", "cluster/", "shardproof/")) for f in needed)
    assert "engine/small_model/bounds.py" in needed
