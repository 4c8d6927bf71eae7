"""The collector of cyclic garbage, and when it is in the way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardproof.engine.system import portable


@contextmanager
def no_collector() -> Iterator[None]:
    """A context without the collection of cyclic garbage.

    Example: a run of ``verify`` as a whole is inside of ``with no_collector():``.

    The tables of a plan are millions of objects and hardly a cycle; walking them again and again is
    a quarter of a large run's time, and frees nothing.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def swept(every: int, grown_bytes: int = 0) -> Iterator[Callable[[], None]]:
    """A function that frees, each so many calls of it, the cyclic garbage made since this began:
    what was there before is set aside and not walked.  ``grown_bytes``: only if the process has
    grown by as much since it was last done, or since this began: to free takes time, and most
    processes end before they need the memory again.

    Example: ``with swept(16, 64 << 20) as sweep:``, and ``sweep()`` after the text of each
    template: every 16th one collects if the process has grown by 64 MiB.
    """
    calls = 0
    before = portable.resident_bytes()[0] if grown_bytes else 0

    def sweep() -> None:
        nonlocal calls, before
        calls += 1
        if calls % every:
            return
        if grown_bytes and portable.resident_bytes()[0] < before + grown_bytes:
            return
        gc.collect()
        if grown_bytes:
            before = portable.resident_bytes()[0]

    gc.freeze()
    try:
        yield sweep
    finally:
        gc.unfreeze()
