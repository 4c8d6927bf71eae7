"""Cyclic garbage is freed where the collector is off and large tables stay."""

from __future__ import annotations

import gc
import weakref

from shardproof.engine.storage.garbage import no_collector, swept


class Knot:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.own = self


def test_what_was_made_since_is_freed_and_what_was_there_is_not_walked() -> None:
    with no_collector():
        before = weakref.ref(Knot())
        with swept(2) as sweep:
            since = weakref.ref(Knot())
            sweep()
            assert since() is not None
            sweep()
            assert since() is None
            assert before() is not None
        gc.collect()
        assert before() is None


def test_a_process_that_has_not_grown_is_not_swept() -> None:
    with no_collector():
        with swept(1, 1 << 40) as sweep:
            since = weakref.ref(Knot())
            sweep()
            assert since() is not None
        with swept(1, 1 << 20) as sweep:
            since = weakref.ref(Knot())
            grown = bytes(range(256)) * (1 << 15)
            sweep()
            assert since() is None
            del grown
        gc.collect()
