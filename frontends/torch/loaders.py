"""Data loaders while a step is recorded: their batches are inputs, so they are read in one process.

Made for torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Final

from torch.utils.data import DataLoader

from shardproof.frontends.torch.standins import replace

#: What is printed where a loader has workers.
ALONE = "stand-in: workers of a DataLoader: it reads its data by itself"
#: What a loader is told of its workers, and what it is told without any.
_WORKERS: Final = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}


def install(note: Callable[[str], None]) -> None:
    """Let loaders read in this process, for good: a process of theirs would have tensors of its
    own; ``note`` is told where one has workers.

    Example: ``DataLoader(rows, batch_size=8, num_workers=4)`` reads as with ``num_workers=0``.
    """
    made: Callable[..., None] = DataLoader.__init__

    @wraps(made)
    def alone(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature(made).bind(self, *args, **kwargs)
        if given.arguments.get("num_workers"):
            note(ALONE)
            given.arguments.update(_WORKERS)
        made(*given.args, **given.kwargs)

    replace(DataLoader, "__init__", alone)
