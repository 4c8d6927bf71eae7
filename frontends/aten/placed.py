"""One value of each row at the place that a computed id gives it, as ``scatter`` has it."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

from shardproof.frontends.aten import lookups
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lessened import Less, written_back
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering


def placed(lo: Lowering, chosen: Lowered, values: Lowered, size: int) -> Any:
    """[..., size] of values [..., 1], each at the place that its id gives it, zeros at others;
    None: ids are no function of the input's, or it is not them that decide which values are zero.

    Example: of labels that a rank has, less its first class: 1 there, zeros for other labels.
    """
    if not isinstance(chosen, Ids) or chosen.shape[-1] != 1:
        return None
    if isinstance(values, lookups.Zeroed):
        return lookups.added_entries(lo, values, chosen, size)
    if not isinstance(values, Ids):
        return None
    total = prod(chosen.shape)
    zeros = Const(Fraction(0), (total, size), values.dtype)
    flat = chosen.reshape((total,)), values.reshape((total,))
    return lo.reshape(lookups.entries_written(lo, zeros, *flat), (*chosen.shape[:-1], size))


def written_over(lo: Lowering, target: Lowered, chosen: Lowered, values: Lowered) -> Any:
    """``target`` [..., size], one entry of each row written over: of zeros, or of the entries from
    which the values were made; None: it is something else.

    Example: ``p.scatter(-1, at, p.gather(-1, at) - own)`` is ``p`` less 1 at the places of a rank's
    own labels.
    """
    if isinstance(target, Const) and target.value == 0:
        return placed(lo, chosen, values, target.shape[-1])
    if not isinstance(chosen, Ids) or not isinstance(values, Less):
        return None
    rows = (prod(chosen.shape),)
    less = values.reshape(rows)
    table = lo.reshape(target, (*rows, target.shape[-1]))
    return lo.reshape(written_back(lo, table, chosen.reshape(rows), less), target.shape)
