"""The process of a bounded call as its parent has it: started afresh, or forked by a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Protocol

from shardproof.engine.storage.sources import python_path
from shardproof.engine.system import portable


class Process(Protocol):
    """A process that leads a group of its own.

    Example: the child of a `BoundedCall`: `ends_within` waits for it, `end` kills what is left, and
    `exit_code` says what became of it.
    """

    @property
    def exit_code(self) -> int:
        """As `subprocess.Popen.returncode`, of a process that has ended: below 0 the signal."""

    def ends_within(self, seconds: float) -> bool:
        """Wait until it ends, for at most ``seconds``; False if it has not."""

    def end(self) -> None:
        """Kill it and what it started; harmless when it is over already."""


class Started:
    """A process of its own: ``python -m module result lifeline call``.

    Example: ``Started("shardproof.frontends.untrusted.child", call, ...)`` has imported nothing.

    The descriptors are handed on under their own numbers; ``errors`` is its standard error.
    """

    def __init__(self, module: str, call: str, result: int, lifeline: int, errors: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(result), str(lifeline), call],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(result, lifeline),
            env=environment(),
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int:
        """Its exit code, of a process that `end` was called of."""
        return self._process.wait()

    def ends_within(self, seconds: float) -> bool:
        """Wait until it ends, for at most ``seconds``; False if it has not."""
        return portable.ends_within(self._process.pid, seconds)

    def end(self) -> None:
        """Kill it and what it started; harmless when it is over already."""
        if self._process.returncode is None:
            # Before it is reaped: until then its number, and its group's, are its own.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def environment() -> dict[str, str]:
    """A reading process's environment: it finds us wherever we are, and keeps to one thread.

    Example: ``{..., "OMP_NUM_THREADS": "1", "PYTHONPATH": "/home/me/shardproof"}``.
    """
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        # Thread pools and malloc arenas reserve address space, which is what is bounded.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        # As it is by default, but for all of the run: what is large is given back when it is freed.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
