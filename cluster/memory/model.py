"""How much memory a query will need: predicted from its size and shape, learned by measuring.

Queries of like size and shape share a cell. A cell keeps the largest peaks measured in it,
and predicts the peak that all but about one in a hundred queries stay below; one with few
measurements is not believed below what its size suggests. All functions here are pure: a
:class:`Needs` is a value, and learning gives another one.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from shardproof.engine.storage import files
from shardproof.solvers import Query

FORMAT = 1
KEPT = 16
"""The largest peaks that a cell remembers."""

RARE = 100
"""One in so many queries of a cell may need more than is predicted."""

TRUSTED = 8
"""Measurements from which on a cell is believed without what its size suggests."""

MARGIN = 1.15
SLACK_MIB = 8.0
"""A prediction lies above the peaks by this factor and this much."""

EMPTY_MIB = 64.0
"""What a solver child holds before its first question, at most."""

MIB_PER_TEXT_MIB = 160.0
NONLINEAR = 2.0
"""What a text takes besides while nothing is known: per MiB of it, and as often on that rung."""

FILE = "needs.json"


class Shape(NamedTuple):
    """Size and shape of a query: bytes of its longest text, terms named in it, the last rung.

    Example: ``Shape(1 << 20, 300, True)``, a text of 1 MiB with 300 terms that went on to nonlinear
    arithmetic.
    """

    text_bytes: int
    terms: int
    nonlinear: bool


class Cell(NamedTuple):
    """Queries that count as alike: both sizes as powers of two.

    Example: texts of 512 to 1023 bytes with 16 to 31 terms are ``Cell(10, 5, False)``.
    """

    bytes_log2: int
    terms_log2: int
    nonlinear: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured in a cell: how often, and the largest peaks in MiB, falling.

    Example: ``Measured(2, (90.0, 71.5))``, two queries, the larger of which took 90 MiB.
    """

    count: int = 0
    largest: tuple[float, ...] = ()

    def with_peak(self, peak_mib: float) -> Measured:
        """With one more measured peak among the largest ones."""
        largest = sorted((*self.largest, round(peak_mib, 3)), reverse=True)[:KEPT]
        return Measured(self.count + 1, tuple(largest))

    @property
    def high_mib(self) -> float:
        """The peak that all but one in :data:`RARE` measurements stay at or below."""
        rank = min(self.count // RARE, len(self.largest) - 1)
        return self.largest[rank] if self.largest else 0.0


@dataclass(frozen=True, slots=True)
class Needs:
    """The model: cells by their shape.

    Example: ``Needs({Cell(10, 5, False): Measured(1, (90.0,))})`` after one query.
    """

    cells: Mapping[Cell, Measured] = field(default_factory=lambda: MappingProxyType({}))


def shape_of(query: Query) -> Shape:
    """The shape of a query; a scan of its texts, no parsing.

    Example: ``(assert false)`` in a line and ``(check-sat)`` in the next are
    ``Shape(26, 1, False)``.
    """
    texts = (query.linear_text, query.nonlinear_text)
    longest = max(texts, key=len)
    return Shape(len(longest), longest.count("\n("), bool(query.nonlinear_text))


def cell_of(shape: Shape) -> Cell:
    """The cell of a shape.

    Example: ``Shape(1 << 20, 300, True)`` is in ``Cell(21, 9, True)``.
    """
    return Cell(shape.text_bytes.bit_length(), shape.terms.bit_length(), shape.nonlinear)


def suggested(shape: Shape) -> float:
    """The peak in MiB that a size suggests while nothing is known.

    Example: 224 MiB for a linear text of 1 MiB, 384 MiB for a nonlinear one.
    """
    factor = NONLINEAR if shape.nonlinear else 1.0
    return EMPTY_MIB + factor * MIB_PER_TEXT_MIB * shape.text_bytes / (1 << 20)


def predicted(needs: Needs, shape: Shape) -> float:
    """The peak in MiB that a query is expected to stay below.

    Example: after one query of 90 MiB the next of its cell, or a slightly larger one, is expected
    to stay below 111.5 MiB.

    It never falls as a shape grows past what was measured: a cell that is not known well takes
    the largest of what smaller ones on its rung needed, and of what its size suggests.
    """
    here = cell_of(shape)
    own = needs.cells.get(here, Measured())
    if own.count >= TRUSTED:
        return own.high_mib * MARGIN + SLACK_MIB
    smaller = [
        measured.high_mib
        for cell, measured in needs.cells.items()
        if cell.nonlinear == here.nonlinear
        and cell.bytes_log2 <= here.bytes_log2
        and cell.terms_log2 <= here.terms_log2
    ]
    seen = max(smaller, default=0.0) * MARGIN + SLACK_MIB
    return max(seen, suggested(shape))


def learned(needs: Needs, shape: Shape, peak_mib: float) -> Needs:
    """The model after one more measurement, of a peak in MiB. Raises ValueError for none.

    Example: a peak of 90 MiB in an empty model gives its cell ``Measured(1, (90.0,))``.
    """
    if not (peak_mib > 0 and math.isfinite(peak_mib)):
        raise ValueError(f"a peak is a positive number of MiB, not {peak_mib}")
    cell = cell_of(shape)
    cells = {**needs.cells, cell: needs.cells.get(cell, Measured()).with_peak(peak_mib)}
    return Needs(MappingProxyType(cells))


# -- kept beside the verdicts of earlier runs ----------------------------------------------------


class _Row(msgspec.Struct):
    cell: Cell
    count: int
    largest: tuple[float, ...]


class _Document(msgspec.Struct):
    format: int
    cells: list[_Row]


def to_json(needs: Needs) -> bytes:
    """The model as a document, cells in order.

    Example: ``{"format":1,"cells":[{"cell":[10,5,false],"count":1,"largest":[90.0]}]}``.
    """
    rows = [_Row(cell, m.count, m.largest) for cell, m in sorted(needs.cells.items())]
    return msgspec.json.encode(_Document(FORMAT, rows))


def from_json(text: bytes) -> Needs:
    """The model that :func:`to_json` wrote; raises ValueError for anything else.

    Example: a document with ``"format":2``, or with peaks that do not fall, "is no memory model of
    this version".
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is no memory model: {error}") from error
    if document.format != FORMAT or not all(_sound(row) for row in document.cells):
        raise ValueError("is no memory model of this version")
    return Needs(
        MappingProxyType({row.cell: Measured(row.count, row.largest) for row in document.cells})
    )


def _sound(row: _Row) -> bool:
    falling = tuple(sorted(row.largest, reverse=True)) == row.largest
    known = 0 < len(row.largest) <= min(KEPT, row.count)
    return known and falling and all(x > 0 and math.isfinite(x) for x in row.largest)


def recall(folder: Path) -> Needs:
    """The model kept in a folder; the empty one where there is none that can be read.

    Example: the folder of the verdict cache, which has ``needs.json`` after the first run.
    """
    with contextlib.suppress(OSError, ValueError):
        return from_json(files.contents(folder / FILE))
    return Needs()


def keep(folder: Path, fresh: Iterable[tuple[Shape, float]]) -> None:
    """Add measurements to the model kept in a folder; a folder that cannot be written keeps none.

    Example: after a run of 40 texts their 40 shapes and peaks are in ``needs.json``, beside the
    verdicts.

    Of two runs that do this at once one may win: measurements are lost, never mixed.
    """
    needs = recall(folder)
    for shape, peak_mib in fresh:
        needs = learned(needs, shape, peak_mib)
    draft = folder / "drafts" / f"{uuid.uuid4().hex}-{FILE}"
    with contextlib.suppress(OSError):
        draft.write_bytes(to_json(needs))
        draft.rename(folder / FILE)
