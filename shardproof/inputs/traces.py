"""Folders of traces, as ``shardproof capture`` writes them: one file for every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardproof.engine.errors import InvalidInput

if TYPE_CHECKING:
    from shardproof.frontends.torch.trace import Trace

#: What files of traces end in.
SUFFIX: Final = ".trace"
#: Ranks whose traces are read.
MOST_RANKS: Final = 4096


def is_recorded(*folders: Path | None) -> bool:
    """Whether all of these are folders of traces."""
    return all(f is not None and (f / f"0{SUFFIX}").is_file() for f in folders)


def keep(traces: Sequence[Trace], folder: Path) -> None:
    """Write one side's traces; raises `InvalidInput` unless the folder is new or empty."""
    from shardproof.frontends.torch import trace

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("expected a new or empty folder", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for one in traces:
        trace.write(one, folder / f"{one.rank}{SUFFIX}")


def kept(folder: Path) -> list[Trace]:
    """One side's traces, of ranks 0 to the last; raises `InvalidInput`."""
    from shardproof.frontends.torch import trace

    first = trace.read(folder / f"0{SUFFIX}")
    if first.world_size > MOST_RANKS:
        message = f"a world of {first.world_size} ranks (at most {MOST_RANKS})"
        raise InvalidInput(message, str(folder))
    return [first, *(trace.read(folder / f"{n}{SUFFIX}") for n in range(1, first.world_size))]
