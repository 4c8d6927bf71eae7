"""Lineages as columns: equal lineages, addends, intervals and parts are stored once, by first
use."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    PartialRange,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.records.payload import dump, fraction_of, fraction_text, load
from shardproof.engine.storage.tables import Columns

H = TypeVar("H", bound=Hashable)


class LineageWriter:
    """Collects lineages; calling it with one gives its number (-1: None).

    Example: ``[4] = n3[a0[4]]`` first is 0, ``[4] = 0`` then 1, and the former again 0; the table
    "terms" has one row.
    """

    def __init__(self) -> None:
        self._lineages: dict[Lineage, int] = {}
        self._addends: dict[Addend, int] = {}
        self._intervals: dict[StridedInterval, int] = {}
        self._partials: dict[PartialRange, int] = {}
        self._starts: dict[Affine, str] = {}
        self._seen: dict[int, int] = {}

    def __call__(self, lineage: Lineage | None) -> int:
        if lineage is None:
            return -1
        number = self._seen.get(id(lineage))
        if number is None:
            number = self._seen[id(lineage)] = _number(self._lineages, lineage)
        return number

    def _text(self, start: Affine) -> str:
        if start not in self._starts:
            self._starts[start] = dump(start)
        return self._starts[start]

    def tables(self) -> dict[str, Columns]:
        """The tables ``lineages``, ``terms``, ``atoms`` and ``parts``."""
        lineages: Columns = {
            "shape": [x.shape for x in self._lineages],
            "terms": [[_number(self._addends, t) for t in x.addends] for x in self._lineages],
        }
        terms: Columns = {
            "factor": [fraction_text(t.factor) for t in self._addends],
            "node": [t.node for t in self._addends],
            "dims": [[len(dim) for dim in t.view.dims] for t in self._addends],
            "atoms": [
                [_number(self._intervals, a) for dim in t.view.dims for a in dim]
                for t in self._addends
            ],
            "fixed": [[_number(self._intervals, a) for a in t.view.fixed] for t in self._addends],
            "parts": [[_number(self._partials, p) for p in t.partials] for t in self._addends],
            "places": [[n for p in t.places for n in p] for t in self._addends],
        }
        atoms: Columns = {
            "axis": [a.axis for a in self._intervals],
            "stride": [a.stride for a in self._intervals],
            "extent": [a.extent for a in self._intervals],
            "start": [self._text(a.start) for a in self._intervals],
            "size": [a.size for a in self._intervals],
        }
        parts: Columns = {
            "token": [p.reduction for p in self._partials],
            "start": [self._text(p.start) for p in self._partials],
            "size": [p.size for p in self._partials],
            "extent": [p.extent for p in self._partials],
        }
        return {"lineages": lineages, "terms": terms, "atoms": atoms, "parts": parts}


def _number(known: dict[H, int], item: H) -> int:
    return known.setdefault(item, len(known))


class _Pool:
    """The rows of one table as values, and which of them something refers to."""

    def __init__(self, table: str, values: Sequence[Any]) -> None:
        self.table = table
        self.values = values
        self.used = bytearray(len(values))
        if len(set(values)) < len(values):
            raise InvalidInput("has equal rows", f"{table}.arrow")

    def get(self, number: int, where: str) -> Any:
        if not 0 <= number < len(self.values):
            raise InvalidInput(f"refers to row {number} of {len(self.values)} {self.table}", where)
        self.used[number] = 1
        return self.values[number]

    def all(self, numbers: Sequence[int], where: str) -> tuple[Any, ...]:
        return tuple(self.get(n, where) for n in numbers)

    def finish(self) -> None:
        unused = self.used.find(0)
        if unused >= 0:
            raise InvalidInput("is used by nothing", f"{self.table}.arrow, row {unused}")


class LineageReader:
    """The lineages of tables as values; raises `InvalidInput` with the file and row at fault.

    Example: a stride of -1 is refused with "atoms.arrow, row 0: axis 0, stride -1, extent 4, size
    4".
    """

    def __init__(
        self, tables: Mapping[str, Mapping[str, list[Any]]], nodes: int, tokens: int
    ) -> None:
        starts: dict[str, Affine] = {}

        def start(text: str, where: str) -> Affine:
            if text not in starts:
                starts[text] = load(Affine, text, where)
            return starts[text]

        intervals = []
        for row, (axis, stride, extent, text, size) in enumerate(_rows(tables["atoms"])):
            where = f"atoms.arrow, row {row}"
            if axis < BROADCAST or stride < 0 or extent < 0 or size < 0:
                raise InvalidInput(
                    f"axis {axis}, stride {stride}, extent {extent}, size {size}", where
                )
            intervals.append(StridedInterval(axis, stride, extent, start(text, where), size))
        partials = []
        for row, (token, text, size, extent) in enumerate(_rows(tables["parts"])):
            where = f"parts.arrow, row {row}"
            if not 0 <= token < tokens:
                raise InvalidInput(f"token {token}, expected one of {tokens}", where)
            partials.append(PartialRange(token, start(text, where), size, extent))
        self._intervals = _Pool("atoms", intervals)
        self._parts = _Pool("parts", partials)
        self._addends = _Pool(
            "terms",
            [
                self._addend(f"terms.arrow, row {row}", nodes, *cells)
                for row, cells in enumerate(_rows(tables["terms"]))
            ],
        )
        self._lineages = _Pool(
            "lineages",
            [
                Lineage(shape, self._addends.all(terms, f"lineages.arrow, row {row}"))
                for row, (shape, terms) in enumerate(_rows(tables["lineages"]))
            ],
        )

    def _addend(
        self,
        where: str,
        nodes: int,
        factor: str,
        node: int,
        counts: Sequence[int],
        atoms: Sequence[int],
        fixed: Sequence[int],
        parts: Sequence[int],
        places: Sequence[int],
    ) -> Addend:
        if not 0 <= node < nodes:
            raise InvalidInput(f"node {node}, expected one of {nodes}", where)
        if any(n < 0 for n in counts) or sum(counts) != len(atoms):
            raise InvalidInput(f"{len(atoms)} atoms for dimensions of {list(counts)}", where)
        dims: list[Dim] = []
        first = 0
        for count in counts:
            dims.append(self._intervals.all(atoms[first : first + count], where))
            first += count
        try:
            exact = fraction_of(factor)
        except ValueError as error:
            raise InvalidInput(f"factor {factor[:40]!r}", where) from error
        view = View(tuple(dims), self._intervals.all(fixed, where))
        width = len(Place._fields)
        if len(places) % width:
            raise InvalidInput(f"{len(places)} numbers for places", where)
        lies = tuple(Place(*places[i : i + width]) for i in range(0, len(places), width))
        return Addend(exact, node, view, self._parts.all(parts, where), lies)

    def __call__(self, number: int, where: str) -> Lineage | None:
        if number == -1:
            return None
        lineage: Lineage = self._lineages.get(number, where)
        return lineage

    def finish(self) -> None:
        """Raise `InvalidInput` for a row that nothing refers to."""
        for pool in (self._lineages, self._addends, self._intervals, self._parts):
            pool.finish()


def _rows(columns: Mapping[str, list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*columns.values(), strict=True))
