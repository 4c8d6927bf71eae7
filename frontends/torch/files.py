"""What a step writes to files while it is recorded: nothing, since tensors have no values."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from os import PathLike
from typing import Any

import torch
from torch.distributed import checkpoint

from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.standins import replace

#: What is printed where a step saves something.
UNWRITTEN = (
    "stand-in: what the step saves (torch.save, torch.distributed.checkpoint) is not written"
)


def install(note: Callable[[str], None]) -> None:
    """Let a step save checkpoints, in this process, for good; ``note`` is told of it.  What it
    saved it cannot load.

    Example: ``torch.save(model.state_dict(), "model.pt")`` makes no file.
    """
    files: list[object] = []

    for owner, name in ((torch, "save"), (checkpoint, "save"), (checkpoint, "async_save")):
        replace(owner, name, _saving(note, files))
    load: Callable[..., Any] = torch.load

    @wraps(load)
    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        if any(f is file or _path(f) == _path(file) != "" for file in files):
            refuse("the step loads what it saved, which is not written while it is recorded")
        return load(f, *args, **kwargs)

    replace(torch, "load", loaded)


def _path(file: object) -> str:
    """The name of a file that is given by name; of others ""."""
    return str(file) if isinstance(file, (str, PathLike)) else ""


def _saving(note: Callable[[str], None], files: list[object]) -> Callable[..., None]:
    """A function of its own for every name, as torch's compiler wants it; ``files`` are those of
    all of them."""

    def saved(*args: Any, **kwargs: Any) -> None:
        files.extend((*args[1:2], *kwargs.values()))
        note(UNWRITTEN)

    return saved
