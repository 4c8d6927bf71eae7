"""Somebody else's figures for the same plans, from a CSV file, to be shown beside ours.

A row belongs to a point if the two agree in every parameter that both have.  Columns are named as
our parameters are, or as in the peer verifier's scalability table.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shardproof.campaigns.sweep.spec import Scalar
from shardproof.engine.errors import InvalidInput

#: The peer's columns and our parameters; `BATCH` is not one, but follows from three.
BATCH: Final = "batch"
PEER: Final[Mapping[str, str]] = {
    "num_layers": "layers",
    "num_dp": "dp",
    "num_pp": "pp",
    "num_tp": "tp",
    "num_mb": "microbatches",
    "gbs": BATCH,
    "num_heads": "heads",
    "hidden_size": "hidden",
    "seqlen": "sequence",
}
OURS: Final = frozenset({*PEER.values(), "microbatch_size", "model", "ep", "cp", "experts"})

#: The seconds of a row: the first of these columns that there is.
SECONDS: Final = ("seconds", "total", "t_total")


class Figure(NamedTuple):
    """Seconds for a plan with these parameters.

    Example: ``Figure({"layers": "2", "tp": "2"}, 41.5)``.
    """

    parameters: Mapping[str, str]
    seconds: float


def read(path: Path) -> list[Figure]:
    """The figures in a file; raises `InvalidInput`.

    Example: columns ``num_layers``, ``num_tp`` and ``t_total`` become ``layers``, ``tp`` and the
    seconds.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    columns = list(rows[0]) if rows else []
    names = {c: PEER.get(c, c) for c in columns if PEER.get(c, c) in OURS}
    seconds = next((c for c in SECONDS if c in columns), "")
    if not names or not seconds:
        raise InvalidInput(
            f"expected a table with parameters ({', '.join(PEER)}) and seconds "
            f"({', '.join(SECONDS)})",
            str(path),
        )
    figures = []
    for number, row in enumerate(rows, start=2):
        try:
            took = float(row[seconds])
        except (TypeError, ValueError):
            raise InvalidInput(
                f"expected seconds in column {seconds}, found {row[seconds]!r}",
                f"{path}: line {number}",
            ) from None
        figures.append(Figure({names[c]: row[c] for c in names if row[c]}, took))
    return figures


def matching(figures: Sequence[Figure], parameters: Mapping[str, Scalar]) -> float | None:
    """The median of the figures for a point; None if there is none.

    Example: of figures of 40, 42 and 60 s for ``tp=2`` the point ``tp=2 dp=1`` gets 42.
    """
    ours = {name: str(value) for name, value in parameters.items()}
    if BATCH not in ours:
        sizes = [parameters.get(n, 1) for n in ("dp", "microbatches", "microbatch_size")]
        if all(isinstance(size, int) for size in sizes):
            ours[BATCH] = str(int(sizes[0]) * int(sizes[1]) * int(sizes[2]))
    seconds = [f.seconds for f in figures if f.parameters.items() <= ours.items()]
    return statistics.median(seconds) if seconds else None
