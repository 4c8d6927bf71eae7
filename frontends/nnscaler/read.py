"""The public face: plan files to records here, or to the bytes of a result in a bounded child."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.source import MAX_PLAN_BYTES, open_source
from shardproof.frontends.nnscaler.unpickle import load
from shardproof.frontends.untrusted.child import (
    MEMORY_BYTES,
    RESULT_BYTES,
    SECONDS,
    BoundedCall,
    Bounds,
)
from shardproof.frontends.untrusted.inert import Record, printable


def read_records(path: str, limit: int = MAX_PLAN_BYTES) -> Record:
    """The root record of the plan in ``path``, a pickle, plain or gzip, of up to ``limit`` bytes.

    Example: of ``plan.pkl`` the record of the ``ModuleCodeGen``; a file that names ``os.system`` is
    refused.

    Runs nothing of the file, but memory and time are the caller's: for a file that is not
    trusted, use `read_bounded` with a function that calls this.
    Raises `UnreadablePlan` naming the file and the byte.
    """
    with open_source(path, limit) as source:
        try:
            return load(source)
        except UnreadablePlan as error:
            raise error.within(printable(path, 400)) from error.__cause__


@contextmanager
def reading(
    path: str,
    function: str,
    args: Sequence[str | int] = (),
    *,
    memory_bytes: int = MEMORY_BYTES,
    seconds: float = SECONDS,
    result_bytes: int = RESULT_BYTES,
) -> Iterator[Callable[[], bytes]]:
    """While it is open, a bounded child calls our ``module:function`` with ``(path, *args)``; what
    is handed in waits for the bytes.

    Example: the two plans of ``shardproof verify single.pkl parallel.pkl`` are read by two children
    at once.

    That raises `UnreadablePlan` or `InvalidInput`, both naming the file; `BoundedCallError` if the
    fault is ours.
    """
    bounds = Bounds(memory_bytes, seconds, result_bytes)
    with BoundedCall(function, [path, *args], bounds) as call:

        def result() -> bytes:
            try:
                return call.result()
            except InvalidInput as error:
                # Limits and views do not know the file; the reader itself has named it.
                name = printable(path, 400)
                raise (error if error.where.startswith(name) else error.within(name)) from None

        yield result


def read_bounded(path: str, function: str, args: Sequence[str | int] = (), **bounds: Any) -> bytes:
    """What our ``module:function`` makes of ``(path, *args)`` in a bounded child, as `reading`.

    Example: ``read_bounded("plan.pkl", "shardproof.frontends.nnscaler.read:outline")``.
    """
    with reading(path, function, args, **bounds) as result:
        return result()


def outline(path: str) -> bytes:
    """A plan in numbers, as JSON: devices, ranks, microbatches, distinct cells by kind.

    Example: an MLP of dp 2, pp 2, tp 2: ``{"devices": 4, "ranks": 8, "microbatches": 2, "cells":
    {"Adapter": 28, ...}}``.

    Looks at every cell, so that a plan with an outline is one whose records are all readable.
    Made to be called by `read_bounded`; raises `UnreadablePlan`.
    """
    from shardproof.frontends.nnscaler import cells

    plan = cells.plan(read_records(path))
    distinct: Counter[str] = Counter()
    met: set[int] = set()

    def count(cell: cells.Cell) -> None:
        if id(cell) not in met:
            met.add(id(cell))
            distinct[type(cell).__name__] += 1
            for node in cell.nodes if isinstance(cell, cells.Segment) else ():
                count(node)

    for device in plan.devices:
        for item in plan.sequence(device):
            count(item.cell if isinstance(item, cells.Use) else item)
    return json.dumps({
        "devices": len(plan.devices),
        "ranks": plan.ranks,
        "microbatches": plan.microbatches,
        "cells": dict(sorted(distinct.items())),
    }).encode()  # fmt: skip
