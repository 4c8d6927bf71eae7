"""What becomes of a query that did not fit: it is tried again, alone, with more memory.

How much there is at most is the user's limit, or without one what the machine has that solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from solvers import Solved

MIB = 1 << 20

KEPT_FREE = 8
"""One part in so many of a machine's memory is left to everything else on it."""

PORTFOLIO_BYTES = 96 * MIB
"""What the first children of a worker take as soon as they are there."""

_CGROUP = Path("/sys/fs/cgroup")


def with_figures(solved: Solved, tried: Sequence[int]) -> Solved:
    """The verdict "memory" with the limits (bytes) it was tried under and what was seen."""
    limits = ", ".join(f"{level / MIB:.0f}" for level in tried)
    answers = tuple(
        replace(a, reason=f"{a.reason}; tried with {limits} MiB, held {a.rss_mib:.0f} MiB")
        if a.verdict == "memory"
        else a
        for a in solved.answers
    )
    return replace(solved, verdict="memory", answers=answers)


def machine_bytes() -> int:
    """What solvers may have on this machine, or in this container, at most."""
    size = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            size = min(size, int((_CGROUP / name).read_text()))
    return size - size // KEPT_FREE
