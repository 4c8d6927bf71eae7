"""One call of `sp.verify` for tests: in this process, without a cache, two ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import shardproof.torch as sp

Step = Callable[[sp.Job], None]


def locally(
    folder: Path,
    single: Step,
    parallel: Step,
    batch: Mapping[str, sp.TensorSpec],
    ranks: int = 2,
    **options: Any,
) -> sp.Result:
    """The result of both sides, whose run is kept in a folder of the test."""
    return sp.verify(
        single,
        parallel,
        world_size=ranks,
        batch=batch,
        out=folder / "run",
        executor="local",
        cache=False,
        **options,
    )
