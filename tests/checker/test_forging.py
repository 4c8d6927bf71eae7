"""Somebody who knows how the checker works: what is stored is changed, and then made consistent.

Every obligation is stated again from the changed lineages, as the checker will, and stored as a
template of its own; every stage names it, live or dead as the plan has it. So no text is another
one than is expected: what rejects the run is what the obligations say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.checker.result import Problems
from shardproof.engine.lineage.expressions import Opaque
from tests.checker.changes import operator, output, with_term, without_last_reduction
from tests.checker.forge import concluded, forged
from tests.checker.test_changed_plans import PLAN_CHANGES
from tests.checker.test_tampering import TAMPERINGS


def rejected(parts: Any, folder: Path) -> list[str]:
    parts.store(folder)
    found = check(folder)
    assert found.verdict == "proved"
    assert not found.ok
    return [str(problem) for problem in found.problems]


def test_the_twin_is_accepted(proved: Any, tmp_path: Path) -> None:
    """What makes a run consistent leaves a right one right."""
    forged(concluded(proved.copy())).store(tmp_path)
    found = check(tmp_path)
    assert found.problems == ()
    assert found.ok


#: Changes of what lineages say that are still views of nodes: only solving can tell.
LINEAGES = (
    "a shifted box",
    "a replica's box for all replicas",
    "a microbatch's box for all",
    "a term left out",
    "a term twice",
    "another factor",
    "another node",
    "a part of another interval",
    "a partial sum called complete",
    "another number in a definition",
    "another function",
)
IN_CI = ("a shifted box",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in IN_CI else pytest.mark.slow) for n in LINEAGES]
)
def test_a_consistent_change_is_found_by_solving(name: str, proved: Any, tmp_path: Path) -> None:
    change, _ = TAMPERINGS[name]
    parts = proved.copy()
    parts = change(parts) or parts
    said = rejected(forged(concluded(parts)), tmp_path)
    assert any(
        re.search(r"^(solver: .* is sat|unproved: .*(cannot be stated|no obligation))", line)
        for line in said
    ), said


#: Plans that compute something else, whose wrong gradients are called right ones.
WRONG = ("another constant", "another operator")


def called_right(right: Any, plan: Any) -> Any:
    """The run of a right plan of the same form, lineages and all, said to be of a wrong plan."""
    parts = right.copy(plan=plan)
    return forged(concluded(parts))


@pytest.mark.parametrize("name", [WRONG[0], pytest.param(WRONG[1], marks=pytest.mark.slow)])
def test_a_wrong_plan_with_the_lineages_of_a_right_one(
    name: str, proved: Any, tmp_path: Path
) -> None:
    change, _ = PLAN_CHANGES[name]
    parts = called_right(proved, change(proved.plan))
    assert all(c.holds for c in parts.conclusions)
    said = rejected(parts, tmp_path)
    assert any(re.search(r"^(solver: .* is sat|unproved: )", line) for line in said), said


def test_a_missing_reduction_with_lineages_that_are_complete(
    proved: Any, make_parts: Callable[..., Any], tmp_path: Path
) -> None:
    """Every conclusion holds by what is stored; the last addition that is there does not."""
    parts = make_parts(without_last_reduction(proved.plan))
    for conclusion in parts.conclusions:
        if not conclusion.holds and conclusion.value >= 0:
            lineage = parts.parallel[conclusion.value]
            parts.parallel[conclusion.value] = with_term(lineage, partials=())
    parts = forged(concluded(parts))
    assert all(c.holds for c in parts.conclusions)
    said = rejected(parts, tmp_path)
    assert any(re.search(r"^solver: .* is sat", line) for line in said), said


def test_a_value_that_only_the_parallel_program_has_concludes_nothing(
    proved: Any, tmp_path: Path
) -> None:
    """A node of the forger's own, defined as he likes, is a symbol like any other."""
    parts = proved.copy()
    value = output(parts, operator("linear"))
    lineage = parts.parallel[value]
    term = lineage.addends[0]
    extents = parts.nodes[term.node].extents
    own = parts.nodes.define(Opaque((term,)), extents, frozenset())
    parts.parallel[value] = with_term(lineage, node=own, partials=())
    said = rejected(forged(concluded(parts)), tmp_path)
    assert any("solver:" in line or "node:" in line or "stated" in line for line in said), said


def test_problems_of_one_kind_are_counted() -> None:
    problems = Problems()
    for number in range(12):
        problems.add("solver", f"template {number} is sat")
    assert [str(p) for p in problems.all()][-1] == "solver: and 2 more"
