"""One line on stderr while a run works: phase, templates, memory, time.

On a terminal the line is rewritten in place; elsewhere a line appears now and then, and none for a
run that is over soon.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Where nobody can rewrite a line: seconds until the first one, and between two.
FIRST_SECONDS: Final = 3.0
EVERY_SECONDS: Final = 10.0
#: How often something that tells nothing itself is looked at.
TICK_SECONDS: Final = 0.5


class Progress:
    """What a run says of its progress while it works; this one tells nobody.

    Example: ``line()`` is "solve, 80 of 114, 83 MiB, 4 s".

    ``run_dir``: where the run keeps its things, once it has a place; ``memory``: how much memory
    the run takes, in MiB.
    """

    #: The phase of a run that is over.
    DONE: Final = "done"

    def __init__(self) -> None:
        self.run_dir: Path | None = None
        self.memory: Callable[[], float] = lambda: 0.0
        self._started = time.monotonic()
        self._phase = ""
        self._done = 0
        self._total = 0
        self._detail = ""

    @property
    def current(self) -> str:
        """The phase that is under way."""
        return self._phase or "start"

    @property
    def counts(self) -> tuple[int, int]:
        """How much of the phase is done, and of how much; zeros where nobody counts."""
        return self._done, self._total

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started

    def phase(self, name: str) -> None:
        """A new phase begins."""
        self._phase, self._done, self._total, self._detail = name, 0, 0, ""
        self.show()

    def update(self, done: int, total: int, detail: str = "") -> None:
        """So much of the phase is done; ``detail`` says more ("300 of 1200 obligations")."""
        self._done, self._total, self._detail = done, total, detail
        self.show()

    def show(self) -> None:
        """Something has changed."""

    def note(self, text: str) -> None:
        """Something to know before it begins, in one line."""

    def line(self) -> str:
        """The state in one line."""
        parts = [self.current]
        if self._total:
            parts.append(f"{self._done} of {self._total}")
        if self._detail:
            parts.append(self._detail)
        if memory := self.memory():
            parts.append(f"{memory:.0f} MiB")
        parts.append(f"{self.seconds:.0f} s")
        return ", ".join(parts)


class Sparse(Progress):
    """Plain lines to ``stream``, few of them.

    Example: "shardproof: solve, 80 of 114, 83 MiB, 4 s" after three seconds, and every ten from
    then on.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._next = self._started + FIRST_SECONDS

    def show(self) -> None:
        """Write a line, if it is time for one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_SECONDS
            self.note(self.line())

    def note(self, text: str) -> None:
        """Write a line at once.  Where whoever read the stream has gone, nobody needs to know: the
        run goes on."""
        with suppress(BrokenPipeError):
            self._stream.write(f"shardproof: {text}\n")
            self._stream.flush()


class _Live(Progress):
    """The state as something that rich draws anew a few times a second."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(f"shardproof: {text}", markup=False, highlight=False, soft_wrap=True)

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.line(), style="dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def waiting(progress: Progress, detail: str) -> Iterator[None]:
    """Shows, while the context is open, how long something takes that tells nothing itself, as
    children that read a plan.

    Example: "reading one.pkl and many.pkl, 48 MiB" while children read these.
    """
    progress.update(0, 0, detail)
    over = Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            progress.show()

    clock = Thread(target=tick, daemon=True)
    clock.start()
    try:
        yield
    finally:
        over.set()
        clock.join()


@contextmanager
def on_stderr() -> Iterator[Progress]:
    """Progress for whoever looks at stderr, while the context is open.

    Example: a line that is redrawn on a terminal, lines now and then in the log of a job.
    """
    stream = sys.stderr
    if not stream.isatty():
        yield Sparse(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    progress = _Live(console)
    with Live(progress, console=console, refresh_per_second=8, transient=True):
        yield progress
