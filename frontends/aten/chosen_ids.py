"""Entries by ids of rows that a mask chooses: of a table, and of each row by itself (`chosen`).

Source: PyTorch's documentation of indexing, `stack` and `pad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.chosen import chosen_rows, of_rows, resized, row_by_row, size_in
from shardproof.frontends.aten.lowering import (
    Lowering,
    Real,
    Shape,
    Unviewed,
    dimensions,
)
from shardproof.frontends.aten.routed import Chosen, Where
from shardproof.frontends.aten.rules import rule_of

INDEX = "aten.index.Tensor"
PUT = "aten.index_put.default"


@dataclass(frozen=True, slots=True)
class Numbered(Unviewed):
    """The numbers of rows, of which the first that the mask chooses is 0.

    Example: ``torch.arange(len(rows))``.
    """

    about = "the numbers of rows of which data says how many there are"

    where: Where
    shape: Shape
    dtype: str = "int64"

    def real(self, lo: Lowering) -> Real:
        """Refused: which number a row has is not known."""
        raise Unsupported(self.about)


@chosen_rows("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(lo: Lowering, *numbers: Any, **_: Any) -> Any:
    start, end, step = {1: (0, *numbers, 1), 2: (*numbers, 1)}.get(len(numbers), numbers)
    ((shape, dtype),) = lo.expected
    if (start, step) != (0, 1) or end not in lo.wheres or "int" not in dtype:
        raise Unsupported(f"positions that are no {Numbered.about}")
    return Numbered(lo.wheres[end], shape, dtype)


def entries(lo: Lowering, x: Any, indices: Sequence[Any]) -> Any:
    """Entries of a table by ids of rows, or an entry of each row, ``logs[arange(len(rows)), ids]``;
    raises `Unsupported` for others.

    Example: ``weights[labels[mask]]`` is ``weights[labels]``, at the rows that the mask chooses.
    """
    ((shape, dtype),) = lo.expected
    if isinstance(x, Chosen):
        return _of_each(lo, x, indices, shape, dtype)
    rows, where = _of_all(indices)
    rule = rule_of(INDEX)
    if x.__class__ in (Where, Numbered) or rule is None:
        raise Unsupported(Numbered.about)
    lo.expected = [(resized(lo, shape), dtype)]
    made = of_rows(lo, rule(lo, x, rows), shape)
    if not isinstance(made, Chosen) or made.where.size != where.size:
        raise Unsupported("an index by ids of which data says how many there are, and others")
    return made


def _of_all(indices: Sequence[Any]) -> tuple[list[Any], Where]:
    """Indices of which some are ids of rows by one mask, the first dimension of each, as ids of
    all rows."""
    own = [i for i in indices if isinstance(i, Chosen)]
    others = [i for i in indices if i is not None and not isinstance(i, Chosen)]
    alike = own and all(
        (i.where.size, i.at, i.shape) == (own[0].where.size, 0, own[0].shape) for i in own
    )
    if others or not alike or any("int" not in i.dtype for i in own):
        raise Unsupported("an index by positions of which data says how many there are, and others")
    return [i.rows if isinstance(i, Chosen) else i for i in indices], own[0].where


def _of_each(lo: Lowering, x: Chosen, indices: Sequence[Any], shape: Shape, dtype: str) -> Any:
    """An entry of each row along its second dimension."""
    number, ids = _pair(indices if x.at == 0 and len(x.shape) == 2 else ())
    own = isinstance(number, Numbered) and isinstance(ids, Chosen)
    if not own or not number.where.size == ids.where.size == x.where.size:
        raise Unsupported("an index of rows of which data says how many there are")
    if ids.shape != (x.where.size,) or number.shape != ids.shape:
        raise Unsupported("an index of rows of which data says how many there are")
    column = replace(ids, rows=lo.reshape(ids.rows, (x.where.rows, 1)))
    lo.expected = [((x.where.size, 1), dtype)]
    made = row_by_row(lo, "aten.gather.default", [x, 1, column])
    return replace(made, rows=lo.reshape(made.rows, resized(lo, shape)))


def _pair(indices: Sequence[Any]) -> tuple[Any, Any]:
    """Both indices, if there are two."""
    return (indices[0], indices[1]) if len(indices) == 2 else (None, None)


def put(lo: Lowering, x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """What is added to a table at ids of rows, or to an entry of each row; raises `Unsupported` for
    what is written over.

    Example: the gradient of ``weights[labels[mask]]``.
    """
    if not accumulate or not isinstance(values, Chosen):
        raise Unsupported("entries that are written by ids of which data says how many there are")
    if isinstance(x, Chosen):
        number, ids = _pair(indices)
        own = isinstance(number, Numbered) and isinstance(ids, Chosen)
        if not own or not (x.at == values.at == ids.at == 0 and len(x.shape) == 2):
            raise Unsupported("entries that are written at rows of which data says how many")
        sizes = {number.where.size, ids.where.size, x.where.size, values.where.size}
        if len(sizes) > 1 or ids.shape != values.shape or ids.shape != (x.where.size,):
            raise Unsupported("entries that are written at rows of which data says how many")
        column = (x.where.rows, 1)
        given = [replace(i, rows=lo.reshape(i.rows, column)) for i in (ids, values)]
        return row_by_row(lo, "aten.scatter_add.default", [x, 1, *given])
    rows, where = _of_all(indices)
    rule = rule_of(PUT)
    if values.where.size != where.size or values.at != _place(indices) or rule is None:
        raise Unsupported("entries that are written by ids of other rows")
    return rule(lo, x, rows, values.counted(lo), True)


def _place(indices: Sequence[Any]) -> int:
    """Which dimension of what an index reads is that of the rows."""
    places = [d for d, i in enumerate(indices) if i is not None]
    return places[0] if places == list(range(places[0], places[0] + len(places))) else 0


# -- beside each other ---------------------------------------------------------------------------


@chosen_rows("aten.stack.default")
def _stack(lo: Lowering, xs: Sequence[Any], dim: int = 0) -> Any:
    """Rows by one mask beside each other, along a new dimension."""
    first = xs[0]
    alike = isinstance(first, Chosen) and all(
        isinstance(x, Chosen) and (x.where.size, x.at) == (first.where.size, first.at) for x in xs
    )
    rule = rule_of("aten.stack.default")
    if not alike or rule is None:
        raise Unsupported("rows of which data says how many there are, beside others")
    (place,) = dimensions((*first.shape, 1), dim)
    ((shape, dtype),) = lo.expected
    lo.expected = [(resized(lo, shape), dtype)]
    made = rule(lo, [x.rows for x in xs], dim)
    only = all(x.only for x in xs)
    return Chosen(made, first.where, first.at + (place <= first.at), only=only)


@chosen_rows("aten.constant_pad_nd.default")
def _padded(lo: Lowering, x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """Rows with entries of one number before and behind them."""
    rule = rule_of("aten.constant_pad_nd.default")
    if not isinstance(x, Chosen) or rule is None or any(size_in(lo, n) for n in (value, *pad)):
        raise Unsupported("rows of which data says how many there are, padded")
    back = 2 * (len(x.shape) - 1 - x.at)
    if any(pad[back : back + 2]):
        raise Unsupported("rows of which data says how many there are, and others behind them")
    ((shape, dtype),) = lo.expected
    lo.expected = [(resized(lo, shape), dtype)]
    return of_rows(lo, rule(lo, x.rows, pad, value), shape)
