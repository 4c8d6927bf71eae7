"""Folders of traces, as ``shardproof capture`` writes them: one file for every rank.

The single side may be a program of `torch.export`, too.
"""

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


def is_recorded(single: Path, parallel: Path | None) -> bool:
    """Whether these are two folders of traces, or an exported program and one.

    Example: two folders with ``0.trace`` and more; ``single.pt2`` and such a folder.
    """
    if parallel is None or not _numbers(parallel):
        return False
    return bool(_numbers(single)) or is_exported(single)


def is_exported(path: Path) -> bool:
    """Whether a file is a program of `torch.export`.

    Example: ``single.pt2`` of ``torch.export.save``.
    """
    from shardproof.frontends.fx import single_step

    return single_step.is_exported(path)


def alone(single: Path) -> Trace:
    """The trace of the single side: the one of a folder, or an exported program as one.

    Example: ``0.trace`` of the folder of ``shardproof capture train.py:single -o DIR``.
    """
    if is_exported(single):
        from shardproof.frontends.fx import single_step

        return single_step.read(single)
    return kept(single)[0]


def _numbers(folder: Path) -> list[int]:
    """The ranks whose traces a folder has."""
    stems = (p.stem for p in folder.glob(f"*{SUFFIX}") if p.is_file())
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def keep(traces: Sequence[Trace], folder: Path) -> None:
    """Write one side's traces; raises `InvalidInput` unless the folder is new or empty.

    Example: the traces of ranks 0 and 3 are ``0.trace`` and ``3.trace``.
    """
    from shardproof.frontends.torch import trace

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("expected a new or empty folder", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for one in traces:
        trace.write(one, folder / f"{one.rank}{SUFFIX}")


def kept(folder: Path) -> list[Trace]:
    """One side's traces, of the ranks that were captured; raises `InvalidInput`.

    Example: ``3.trace`` that says rank 2 is refused.
    """
    from shardproof.frontends.torch import trace

    numbers = _numbers(folder)
    if len(numbers) > MOST_RANKS:
        raise InvalidInput(f"{len(numbers)} traces (at most {MOST_RANKS})", str(folder))
    traces = [trace.read(folder / f"{n}{SUFFIX}") for n in numbers]
    if not traces:
        raise InvalidInput("expected a folder of traces", str(folder))
    for number, one in zip(numbers, traces, strict=True):
        if one.rank != number:
            raise InvalidInput(f"{number}{SUFFIX} is a trace of rank {one.rank}", str(folder))
    if traces[0].world_size > MOST_RANKS:
        message = f"a world of {traces[0].world_size} ranks (at most {MOST_RANKS})"
        raise InvalidInput(message, str(folder))
    return traces
