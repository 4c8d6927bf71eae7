"""What is opened by a ``with`` and closed at its end, whatever ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A ``with`` over it begins with :meth:`open` and ends with :meth:`close`, also where opening
    fails; errors go on.

    Example: ``with Portfolio() as portfolio:`` starts the solver that is asked first, and ends all
    that were started since.
    """

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.close)
            self.open()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:  # noqa: B027 - most have nothing to open
        """Start what takes time to start."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that is held; harmless when done before."""
