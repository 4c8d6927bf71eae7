"""What to try about a run without a verdict follows from its reason."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from shardproof.engine.findings import Finding
from shardproof.report import terminal
from shardproof.report.tries import ORDER, about_order, about_steps, to_try
from tests.shardproof.faces import refuted


@pytest.mark.parametrize(
    ("reason", "timeout", "says"),
    [
        (
            "linear is not proved (timeout: z3: canceled)",
            0.001,
            "a larger --timeout (now 0.001 s),",
        ),
        (
            "linear is not proved (unknown: resource limit 400 reached)",
            None,
            "a larger --timeout, ",
        ),
        ("memory: in phase solve, 9 GiB", 30.0, "a larger --memory-limit"),
        ("rank 0: operator gate_fw is not declared", 30.0, "write it by operators that are"),
        ("aten.bernoulli_.float has no lowering", 30.0, "write the step or graph without"),
        ("operands that its declaration does not fit", 30.0, "write it by operators that are"),
        ("--strict: the proof rests on what is inferred: x", None, "state the assumption"),
        ("local mismatch that no conclusion confirms: x", None, "--shapes +1"),
        (
            "local mismatch that could not be confirmed (it is too large to be run): x",
            None,
            "the same code at a small size",
        ),
        (
            "local mismatch that could not be confirmed (9000 numbers after shrinking): x",
            None,
            "the same code at a small size",
        ),
        (
            "not among the conclusions, though expected (--assume): x",
            None,
            "the single-device plan",
        ),
        ("something else", None, ""),
    ],
)
def test_a_reason_has_its_line(reason: str, timeout: float | None, says: str) -> None:
    found = to_try(reason, timeout)
    assert found.startswith(says)
    assert bool(found) == bool(says)
    assert "{" not in found


def test_the_order_of_groups_is_explained_where_it_matters() -> None:
    kinds = ["mismatch", "chunk position"]
    for verdict in ("refuted", "inconclusive"):
        found = about_order(verdict, kinds)
        assert "--nnscaler-groups as-recorded" in found
        assert '`groups = "as recorded"`' in found
    assert about_order("proved", kinds) == ""
    assert about_order("refuted", ["mismatch"]) == ""


def test_the_terminal_says_it_too() -> None:
    finding = Finding("chunk position", "rank 1 takes positions 512 to 1024 of dimension 2")
    result = replace(refuted(), findings=(*refuted().findings, finding))
    drawn = StringIO()
    terminal.show(lambda to: terminal.write(result, to), drawn)
    text = " ".join(drawn.getvalue().split())
    assert ORDER in text
    drawn = StringIO()
    terminal.show(lambda to: terminal.write(refuted(), to), drawn)
    assert "nnscaler" not in drawn.getvalue()


def test_labels_that_may_not_count_are_named_where_a_step_is_refuted() -> None:
    note = (
        "labels batch y are classes from 0 to 3, or -100, which does not count: the step has no "
        "meaning for others"
    )
    (given,) = about_steps("refuted", ("numbers are real", note))
    assert "`sp.tensor(..., low=0, high=4)`" in given
    assert "`[0,4)`" in given
    assert about_steps("proved", (note,)) == []
    assert about_steps("refuted", ("numbers are real",)) == []
    drawn = StringIO()
    result = replace(refuted(), assumptions=(note,))
    terminal.show(lambda to: terminal.write(result, to), drawn)
    assert given in " ".join(drawn.getvalue().split())
