"""The memory of this process and everything below it, as it was at most.

The proportional set size counts a page that several processes share once; where the kernel does
not give it, the resident set size stands in, which counts it once for each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from shardproof.engine.storage.closing import Closing

EVERY_SECONDS = 0.1
SHARE_OF_TIME = 0.05
SHARE_UNWATCHED = 0.02
"""Sampling never takes more than this share of one core: it gets rarer where it costs more.  The
second one holds where nobody has to be told in time: the kernel walks all pages for each look."""

_MIB = 1 << 20

_PARENT, _FLAGS, _START = 1, 6, 19
"""Fields of /proc/PID/stat behind the name, as proc(5) has them."""

_NO_PROGRAM_YET = 0x40
"""The kernel's flag of a process that was forked and has not begun another program."""

_PAGE = os.sysconf("SC_PAGE_SIZE")

_TICKS = os.sysconf("SC_CLK_TCK")

_YOUNG_SECONDS, _SAME = 1.0, 0.95
"""A process is started within this time, and two sizes are one if they differ by less."""


def family(root: int) -> Iterator[int]:
    """The process and its descendants, as far as they are still there.

    Example: of a run with two workers its own number, and those of the Z3 and cvc5 children of
    both.
    """
    yield root
    try:
        tasks = list(Path(f"/proc/{root}/task").iterdir())
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:
        yield from _descendants(root)
        return
    for pid in children:
        yield from family(int(pid))


def _descendants(root: int) -> Iterator[int]:
    try:
        yield from (child.pid for child in psutil.Process(root).children(recursive=True))
    except psutil.Error:
        return


def memory_bytes(pid: int) -> int:
    """The proportional set size of a process, else its resident set size; 0 if it is gone.

    Example: two forked processes that share 100 MiB have 50 MiB of it each.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident_bytes(pid)


def resident_bytes(pid: int) -> int:
    """The resident set size of a process, which is no less than its proportional one; 0 if it is
    gone.

    Example: two forked processes that share 100 MiB have all of it each.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def borrows(pid: int) -> bool:
    """Whether a process has no memory of its own yet: a child that is started runs in its parent's
    until it begins its program (vfork(2)), and would be counted as a second one of that size.

    Example: true of a solver's child for the milliseconds before it is a Python process; false of a
    fork, which has half of each page that it shares with its parent.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        begun = not int(fields[_FLAGS]) & _NO_PROGRAM_YET
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START]) / _TICKS
        if begun or age > _YOUNG_SECONDS:
            return False
        (own, share), (parents, _) = map(_sizes, (pid, int(fields[_PARENT])))
    except (OSError, ValueError, LookupError, AttributeError):
        return False
    return share > _SAME * own > _SAME * _SAME * parents


def _sizes(pid: int) -> tuple[int, int]:
    """The resident and the proportional set size of a process; raises what is raised where the
    kernel does not give them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    known = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return int(known["Rss"]), int(known["Pss"])


class MemorySampler(Closing):
    """Looks at the memory of a process tree about ten times a second while its context is open.

    Example: of a run whose tables take 300 MiB while its two solver children hold 60 MiB each,
    ``peak_mib`` is 420.

    ``watch`` is told what is in use, in MiB, at each look, in the sampling thread.  Without one,
    the kernel is not asked for sizes (it walks all pages of a process for one) while resident
    ones, of which it keeps account, show that they are no more than what was seen before.
    """

    def __init__(
        self,
        root: int | None = None,
        watch: Callable[[float], None] | None = None,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._root = os.getpid() if root is None else root
        self._tell = watch
        self._every_seconds = every_seconds
        self._peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory sampler", daemon=True)

    @property
    def peak_mib(self) -> float:
        """The most that any sample has seen so far."""
        return self._peak_bytes / _MIB

    def sample(self) -> float:
        """Look now; what is in use at this moment, in MiB."""
        # All are named before one is looked at: of what is forked meanwhile the half that it
        # shares is counted with its parent.
        members = list(family(self._root))
        now = sum(memory_bytes(pid) for pid in members if not borrows(pid))
        self._peak_bytes = max(self._peak_bytes, now)
        return now / _MIB

    def open(self) -> None:
        """Look a first time, and go on looking."""
        self.sample()
        self._thread.start()

    def close(self) -> None:
        """Look a last time, and no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.sample()

    def _watch(self) -> None:
        pause = self._every_seconds
        while not self._stop.wait(pause):
            start = time.thread_time()
            if self._tell is not None:
                self._tell(self.sample())
            elif sum(map(resident_bytes, family(self._root))) > self._peak_bytes:
                self.sample()
            share = SHARE_OF_TIME if self._tell is not None else SHARE_UNWATCHED
            pause = max(self._every_seconds, (time.thread_time() - start) / share)
