"""Positions beside padding: the running sum of a mask less one, where the mask is not zero.

``(mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)`` are the positions of GPT-2 and its kin in a
batch that is padded on the left.  Where the mask is 0 its sum may be 0, which less one is no row;
there another number is looked up.  Elsewhere it is a row: a mask of whole numbers none of which is
negative is at least 1 where it is not 0, and so is its sum up to there.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.filled import Filled, in_column
from shardproof.frontends.aten.ids import Ids, Narrow
from shardproof.frontends.aten.lookups import added_rows, rows_of
from shardproof.frontends.aten.lowering import Lowered, Lowering
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.roots import maker
from shardproof.frontends.builder import piecewise


def rows_beside(lo: Lowering, table: Lowered, x: Filled) -> Any:
    """Rows of a table by whole numbers of which a mask replaces some: of both, chosen by the mask;
    raises `Unsupported` where some that are kept may be no row.

    Example: of positions [-1, -1, 0, 1] that are 1 where a mask is 0, rows 1, 1, 0 and 1.
    """
    kept = _kept(lo, x, table.shape[0])
    live = lo.reshape(x.live, (*x.shape, 1))
    other = lo.reshape(lo.slice(table, 0, x.number, 1), (*(1 for _ in x.shape), table.shape[1]))
    rows = lo.mul(lo.real(rows_of(lo, table, kept)), live)
    return lo.add(rows, lo.mul(lo.expand(other, rows.shape), inverse(lo, live)))


def added_beside(lo: Lowering, gradient: Lowered, x: Filled, rows: int) -> Any:
    """The derivative of `rows_beside` for its table: what arrives where numbers are kept, by their
    rows, and all the rest in the row of the other number.

    Example: beside positions [-1, 0] of which the mask keeps the second, with the number 1, the
    gradient's second row is added to row 0, and its first one to row 1.
    """
    kept = _kept(lo, x, rows)
    live = lo.reshape(x.live, (*x.shape, 1))
    flat = (prod(x.shape), gradient.shape[-1])
    rest = lo.reshape(lo.mul(gradient, inverse(lo, live)), flat)
    other = in_column(lo, lo.sum(rest, [0]), x.number, rows)
    own = added_rows(lo, lo.mul(gradient, live), kept, rows)
    return lo.add(own, lo.transpose(other, 0, 1))


def _kept(lo: Lowering, x: Filled, rows: int) -> Ids:
    """What is kept, of which all are rows where the mask is 1."""
    if not 0 <= x.number < rows:
        raise Unsupported(f"whole numbers that a mask replaces by {x.number}, which is no row")
    if x.kept.span()[0] < 0:
        return _places(lo, x)
    if x.kept.span()[1] > rows and x.kept.origin.number not in lo.origins:
        raise Unsupported("whole numbers that a mask keeps, which may be no rows")
    return x.kept


def _places(lo: Lowering, x: Filled) -> Ids:
    """Places that a mask counts, from 0 on: those before the first one are not kept."""
    mask, (piece, *others) = x.mask, x.kept.function
    if mask is None or not _sums_up(lo, x.kept, mask) or others or piece[2:] != (1, -1):
        raise Unsupported(f"whole numbers that a mask replaces by {x.number}, as rows")
    if mask.origin.domain is None and mask.origin.number in lo.origins and lo.narrows:
        raise Narrow(mask.origin.number, 2)
    if mask.origin.domain is None:
        raise Unsupported("places that are counted by a mask without a domain (low=0, high=2)")
    if mask.function[0].low < 0 or any(p.low < 1 for p in mask.function if p.offset):
        raise Unsupported("places that are counted by what may be negative, or zero")
    return replace(x.kept, function=(piecewise.Piece(1, piece.high, 1, -1),))


def _sums_up(lo: Lowering, total: Ids, x: Ids) -> bool:
    """Whether one is the running sum of the other's numbers along their last dimension, as it is
    lowered: a product of its rows with a triangle of ones."""
    if total.moves or x.moves or total.origin.shape != x.origin.shape:
        return False
    product = _made_by(lo, total.origin.number, "matmul")
    if product is None:
        return False
    rows, ones = product.inputs
    upper = maker(lo, ones)
    if upper is None or upper.name != "permute" or _made_by(lo, upper.inputs[0], "tril") is None:
        return False
    size = x.origin.shape[-1]
    square = lo.values[ones].shape == (size, size)
    return square and _before_views(lo, rows) == x.origin.number


def _before_views(lo: Lowering, number: int) -> int:
    """The value whose numbers a value has in the same order."""
    while (op := maker(lo, number)) is not None and op.name == "view":
        number = op.inputs[0]
    return number


def _made_by(lo: Lowering, number: int, name: str) -> Op | None:
    """The operator of a name that gives the numbers of a value, in their order."""
    op = maker(lo, _before_views(lo, number))
    return op if op is not None and op.name == name else None
