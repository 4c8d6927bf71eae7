"""The collector of cyclic garbage, and when it is in the way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Without cyclic collection: the tables of a plan are millions of objects and hardly a cycle;
    walking them again and again is a quarter of a large run's time, and frees nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def swept(every: int) -> Iterator[Callable[[], None]]:
    """A function that frees, each so many calls of it, the cyclic garbage made since this began:
    what was there before is set aside and not walked."""
    calls = 0

    def sweep() -> None:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            gc.collect()

    gc.freeze()
    try:
        yield sweep
    finally:
        gc.unfreeze()
