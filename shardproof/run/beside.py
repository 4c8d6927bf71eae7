"""Work beside this process: in a fork of it, on another processor, from the same memory."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import BinaryIO, Final, Generic, NoReturn, TypeVar

from shardproof.engine.storage.closing import Closing
from shardproof.engine.system import portable

Outcome = TypeVar("Outcome")

#: Packages whose threads a fork does not survive.
_THREADED: Final = ("jax", "ray")


def can_fork() -> bool:
    """Whether there is another processor, and nothing in this process that a fork would break.

    Example: False on macOS, with one processor, and once Ray is imported.
    """
    linux = sys.platform.startswith("linux")
    return linux and portable.cpus() > 1 and not any(name in sys.modules for name in _THREADED)


class _Fork(Closing):
    """A fork of this process, which does something and tells of it while the context is open."""

    def __init__(self) -> None:
        self._child = 0
        self._ends: list[int] = []

    def open(self) -> None:
        """Begin."""
        if not can_fork():
            return
        reading, writing = os.pipe()
        lifeline, ours = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.close(ours)
            self._in_child(lifeline, writing)
        os.close(writing)
        os.close(lifeline)
        self._child, self._ends = child, [reading, ours]

    def _in_child(self, lifeline: int, writing: int) -> NoReturn:
        """The fork: it computes, tells, and runs nothing of what the process does at its end."""
        try:
            portable.bind_to_parent(lifeline)
            with open(writing, "wb") as pipe:
                self._tell(pipe)
        finally:
            os._exit(0)

    @abstractmethod
    def _tell(self, pipe: BinaryIO) -> None:
        """Do it, in the fork, and write what is to be known of it."""

    def close(self) -> None:
        """End the fork, wherever it is."""
        child, self._child = self._child, 0
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self._ended()
        while self._ends:
            os.close(self._ends.pop())

    def _ended(self) -> None:
        """The fork has ended: its pipe has no more than what is in it."""


class Beside(_Fork, Generic[Outcome]):
    """What ``work`` returns, which a fork of this process computes while the context is open.

    Example: ``with Beside(lambda: slow(table)) as beside:`` begins, and ``beside.outcome()`` waits
    for what ``slow`` returns, which has to be picklable.

    Where no fork can be made, or it ends without an outcome, ``work`` is called here when it is
    asked for; so its errors are raised here, too.
    """

    def __init__(self, work: Callable[[], Outcome]) -> None:
        super().__init__()
        self._work = work

    def _tell(self, pipe: BinaryIO) -> None:
        pickle.dump(self._work(), pipe, pickle.HIGHEST_PROTOCOL)

    def outcome(self) -> Outcome:
        """What ``work`` returns; raises what it raises."""
        if not self._child:
            return self._work()
        with open(self._ends[0], "rb", closefd=False) as pipe:
            data = pipe.read()
        self.close()
        try:
            outcome: Outcome = pickle.loads(data)  # of a fork of our own
        except (EOFError, pickle.UnpicklingError):
            return self._work()
        return outcome


class BesideOneByOne(_Fork, Generic[Outcome]):
    """What ``work`` yields, one by one, as a fork of this process computes it while the context is
    open.

    Example: with ``BesideOneByOne(lambda: map(slow, rows))`` what ``arrived()`` gives is what
    ``slow`` made of the first rows, once it is there.

    Nothing may depend on it: where no fork can be made nothing arrives, and where it ends early, no
    more.
    """

    def __init__(self, work: Callable[[], Iterable[Outcome]]) -> None:
        super().__init__()
        self._work = work
        self._made: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="beside", daemon=True)

    def open(self) -> None:
        """Begin."""
        super().open()
        if self._child:
            self._reader.start()

    def _tell(self, pipe: BinaryIO) -> None:
        for one in self._work():
            pickle.dump(one, pipe, pickle.HIGHEST_PROTOCOL)
            pipe.flush()

    def _read(self) -> None:
        ends = suppress(EOFError, pickle.UnpicklingError)
        with open(self._ends[0], "rb", closefd=False) as pipe, ends:
            while True:
                self._made.put(pickle.load(pipe))  # of a fork of our own

    def arrived(self) -> list[Outcome]:
        """What has arrived since this was asked last."""
        return [self._made.get() for _ in range(self._made.qsize())]

    def _ended(self) -> None:
        self._reader.join()
