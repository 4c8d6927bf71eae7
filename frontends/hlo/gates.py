"""Products with predicates of ids: what stands under one counts for the ids for which it holds.

The row of a label that does not count is read all the same (``where(labels >= 0, labels, 0)``), and
multiplied by zero afterwards.  Under such a product a value may be any other one that is the same
wherever the predicate holds; so rows are read there for these ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, chosen_rows
from shardproof.frontends.hlo.items import Gated, Ids, Item, Lookup, per_rank
from shardproof.frontends.hlo.state import Lowering

#: Operators that give a number for all numbers, entry by entry.
TOTAL: Final = frozenset({"add", "sub", "mul"})
#: How many of them are looked through, one inside the other.
DEEPEST: Final = 8


def is_predicate(item: Item) -> bool:
    """Whether an item is 0 or 1 by its ids.

    Example: ``labels >= 0`` is, ``labels`` is not.
    """
    return isinstance(item, Ids) and all(
        piece.slope == 0 and piece.offset in (0, 1) for f in item.functions for piece in f
    )


def number(low: Lowering, predicate: Ids) -> Gated:
    """A predicate as a number: one where it holds.

    Example: ``convert(labels >= 0)`` as ``f32``.
    """
    return Gated(low.values.full(predicate.shape, Fraction(1)), predicate)


def product(low: Lowering, mask: Gated, other: Item) -> Gated:
    """A value that is zero for some ids, times another one.

    Example: ``(labels >= 0) * loss`` is ``loss`` where labels count.
    """
    if mask.value == low.values.full(mask.shape, Fraction(1)):
        return gated(low, other, mask.gate)
    return Gated(low.op("mul", mask.value, low.tensor(other)).value, mask.gate)


def gated(low: Lowering, item: Item, gate: Ids) -> Gated:
    """A value where a predicate of ids holds, and zero elsewhere.

    Example: of ``norm - logits[where(labels >= 0, labels, 0)]`` under ``labels >= 0``, with the
    logits of the labels that there are; of what is zero for other ids of the same, where both hold.
    """
    if isinstance(item, Gated) and (item.gate.origin, item.gate.axes) == (gate.origin, gate.axes):
        return Gated(
            item.value, replace(gate, functions=_and(low, item.gate.functions, gate.functions))
        )
    return Gated(_under(low, low.tensor(item), gate, DEEPEST), gate)


def _and(low: Lowering, one: Sequence[Function], other: Sequence[Function]) -> tuple[Function, ...]:
    """Where two predicates hold, on every rank."""
    ranks = low.graph.ranks
    each = zip(per_rank(one, ranks), per_rank(other, ranks), strict=True)
    both = tuple(piecewise.combine("and", a, b) for a, b in each)
    return both[:1] if len(set(both)) == 1 else both


def _under(low: Lowering, value: int, gate: Ids, depth: int) -> int:
    """A value that is equal wherever a predicate holds: rows are read for these ids alone."""
    lookup = low.values.lookups.get(value)
    if lookup is not None:
        return _chosen(low, value, lookup, gate)
    op = low.reaches.maker(value)
    if op is None or op.name not in TOTAL or not depth:
        return value
    if any(low.recorder.shape(v) != gate.shape for v in op.inputs):
        return value
    inputs = [_under(low, v, gate, depth - 1) for v in op.inputs]
    return value if inputs == list(op.inputs) else low.op(op.name, *inputs, **op.attrs).value


def _chosen(low: Lowering, value: int, lookup: Lookup, gate: Ids) -> int:
    """The rows of a lookup in which many ids choose one row, for ids for which a predicate holds;
    as it is where these choose many, too, or the predicate is of other ids."""
    axes = tuple(
        lookup.places.index(d) if d in lookup.places else -1 for d in range(len(gate.shape))
    )
    if lookup.ids.origin != gate.origin or lookup.shape != gate.shape or axes != gate.axes:
        return value
    live = _and(low, lookup.live, gate.functions)
    if _parts(low, lookup, lookup.live) == 1 or _parts(low, lookup, live) != 1:
        return value
    return low.tensor(replace(lookup, live=live))


def _parts(low: Lowering, lookup: Lookup, live: Sequence[Function]) -> int:
    """In how many intervals of ids rows are read, the same number on every rank; 0: in none, or not
    the same."""
    ranks, rows = low.graph.ranks, low.recorder.shape(lookup.table)[lookup.dim]
    counts = {
        len(chosen_rows(f, own, rows) or ())
        for f, own in zip(per_rank(lookup.ids.functions, ranks), per_rank(live, ranks), strict=True)
    }
    return counts.pop() if len(counts) == 1 else 0
