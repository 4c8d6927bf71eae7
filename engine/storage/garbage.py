"""The collector of cyclic garbage, and when it is in the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
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
