"""Ranks captured side by side on a Ray cluster: a map over ranks, which the frontend is handed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from shardproof.cluster.settings import Settings
from shardproof.frontends.torch import trace
from shardproof.frontends.torch.capture import Limits, capture
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.stated import TensorSpec

#: What one task reserves of a node: the capture of one rank, on fake tensors.
RESERVED_BYTES = 1 << 30


class CaptureRequest(NamedTuple):
    """What every task needs to capture one rank.

    Example: ``CaptureRequest(parallel, 64, {"x": tensor((8, 16))}, full, limits)``, with the full
    parameters of the single side by name.
    """

    step: Callable[[Job], Any]
    world_size: int
    batch: Mapping[str, TensorSpec]
    full: Mapping[str, TensorSpec]
    limits: Limits


def record(request: CaptureRequest, ranks: Sequence[int], settings: Settings) -> list[trace.Trace]:
    """The traces of ``ranks``, each captured by a task of its own; what is wrong with the step is
    raised here.  Nodes need the step's modules, and torch.

    Example: ranks 0 to 7 of a world of 64, on as many nodes as have a CPU and 1 GiB free.
    """
    from shardproof.cluster.on_ray.tasks import spread

    contents = spread(_one, request, lambda _: list(ranks), settings, RESERVED_BYTES)
    with TemporaryDirectory(prefix="shardproof-captured-") as folder:
        paths = [Path(folder) / f"{rank}.trace" for rank in ranks]
        for path, data in zip(paths, contents, strict=True):
            path.write_bytes(data)
        return [trace.read(path) for path in paths]


def _one(request: CaptureRequest, rank: int) -> bytes:
    """On a node: the trace of one rank, as a file has it."""
    step, world_size, batch, full, limits = request
    (recorded,) = capture(step, world_size, [rank], batch, full, limits)
    with TemporaryDirectory(prefix="shardproof-captured-") as folder:
        path = Path(folder) / "trace"
        trace.write(recorded, path)
        return path.read_bytes()
