"""What the machine has that solves: processors and memory, in a container those of the container.

Example: of 24 GiB solvers may have 21, and with 2 processors at most 8 of them are at work.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path

import psutil

from shardproof.engine.system.portable import cpus

KEPT_FREE = 8
"""One part in so many of a machine's memory is left to everything else on it."""

PORTFOLIO_BYTES = 96 << 20
"""What the first children of a worker take as soon as they are there."""

WORKERS_PER_CPU = 4
"""More workers than this only wait for each other."""

_CGROUP = Path("/sys/fs/cgroup")


def machine_bytes() -> int:
    """What solvers may have on this machine, or in this container, at most.

    Example: 21 GiB in a container whose ``memory.max`` is 24 GiB, whatever the host has.
    """
    size = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            size = min(size, int((_CGROUP / name).read_text()))
    return size - size // KEPT_FREE


@functools.cache
def most_workers() -> int:
    """How many workers this machine has use for: CPUs, and memory for their solvers.

    Example: 8 on a machine with 2 CPUs and 24 GiB; 5 in a container of 600 MiB.
    """
    return max(1, min(WORKERS_PER_CPU * cpus(), machine_bytes() // PORTFOLIO_BYTES))
