"""What a step writes to files while it is recorded: nothing, since tensors have no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import checkpoint

from shardproof.frontends.torch.standins import replace

#: What is printed where a step saves something.
UNWRITTEN = (
    "stand-in: what the step saves (torch.save, torch.distributed.checkpoint) is not written"
)


def install(note: Callable[[str], None]) -> None:
    """Let a step save checkpoints, in this process, for good; ``note`` is told of it.

    Example: ``torch.save(model.state_dict(), "model.pt")`` makes no file.
    """

    for owner, name in ((torch, "save"), (checkpoint, "save"), (checkpoint, "async_save")):
        replace(owner, name, _saving(note))


def _saving(note: Callable[[str], None]) -> Callable[..., None]:
    """A function of its own for every name, as torch's compiler wants it."""

    def saved(*_: Any, **__: Any) -> None:
        note(UNWRITTEN)

    return saved
