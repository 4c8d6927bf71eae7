"""Work that is done when its outcome is asked for, or meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

Outcome = TypeVar("Outcome")
Given = TypeVar("Given", covariant=True)


class Work(Protocol[Given]):
    """Work whose outcome is there once it is asked for, within its context.

    Example: `WhenAsked`, or ``shardproof.run.beside.Beside``, which does it in another process.
    """

    def __enter__(self) -> Self:
        """It may begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Its outcome is not asked for any more."""

    def outcome(self) -> Given:
        """What the work gives; raises what it raises."""


class Meanwhile(Protocol):
    """Who does some work."""

    def __call__(self, work: Callable[[], Outcome], /) -> Work[Outcome]:
        """The work as it is done; for example ``WhenAsked(work)``."""


class WhenAsked(Generic[Outcome]):
    """Work that is done here, when its outcome is asked for, and not at all if it is not.

    Example: ``with WhenAsked(slow) as work:``, and ``work.outcome()`` is ``slow()``.
    """

    def __init__(self, work: Callable[[], Outcome]) -> None:
        self._work = work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was begun."""

    def outcome(self) -> Outcome:
        """What the work gives; raises what it raises."""
        return self._work()
