"""What to try about a run without a verdict follows from its reason."""

from __future__ import annotations

import pytest

from shardproof.report.tries import to_try


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
        ("no declaration of operator gate_fw", 30.0, "write it by operators that are declared"),
        ("--strict: the proof rests on what is inferred: x", None, "state the assumption"),
        ("local mismatch that no conclusion confirms: x", None, "--shapes +1"),
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
