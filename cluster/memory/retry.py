"""What becomes of a query that did not fit: it is tried again, alone, with more memory.

How much there is at most is the user's limit, or without one what the machine has that solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardproof.solvers import Solved

MIB = 1 << 20


def with_figures(solved: Solved, tried: Sequence[int]) -> Solved:
    """The verdict "memory" with the limits (bytes) it was tried under and what was seen.

    Example: "out of memory; tried with 256, 512 MiB, held 200 MiB".
    """
    limits = ", ".join(f"{level / MIB:.0f}" for level in tried)
    answers = tuple(
        replace(a, reason=f"{a.reason}; tried with {limits} MiB, held {a.rss_mib:.0f} MiB")
        if a.verdict == "memory"
        else a
        for a in solved.answers
    )
    return replace(solved, verdict="memory", answers=answers)
