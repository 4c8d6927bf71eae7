"""Steps of ids and labels on two ranks, verified as a user would; what is proved has to pass
`check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import shardproof.torch as sp
from shardproof.api import check

Step = Callable[[sp.Job], None]


def verified(
    folder: Path, single: Step, parallel: Step, ids: sp.TensorSpec, expected: str, **more: bool
) -> None:
    """Assert the verdict over two steps whose batch is ``ids`` and ``labels``, both of ``ids``."""
    result = sp.verify(
        single,
        parallel,
        world_size=2,
        batch={"ids": ids, "labels": ids},
        executor="local",
        cache=False,
        out=folder / "run",
        **more,
    )
    assert result.verdict == expected, sp.told(result)
    if expected == "proved":
        assert check(folder / "run").ok
