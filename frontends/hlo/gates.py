"""Products with predicates of ids: what stands under one counts for the ids for which it holds.

The row of a label that does not count is read all the same (``where(labels >= 0, labels, 0)``), and
multiplied by zero afterwards.  Under such a product a value may be any other one that is the same
wherever the predicate holds; so rows are read there for these ids alone.  The same goes for what
ranks add up, if they have the same ids: the predicate then holds on all of them or on none; and
through functions of each row that give numbers for all numbers (an expert's layers): of rows that
are themselves multiplied by the predicate, or rows of a table of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, chosen_rows
from shardproof.frontends.graphs.graph import Groups
from shardproof.frontends.graphs.recorder import GROUP, Recorded
from shardproof.frontends.hlo.items import Gated, Ids, Item, Lookup, Places, per_rank
from shardproof.frontends.hlo.state import Lowering

#: Operators that give a number for all numbers, entry by entry.
TOTAL: Final = frozenset({"add", "sub", "mul"})
#: Functions of one number that give a number for every one.
_OF_ONE: Final = frozenset({"exp", "tanh", "sigmoid", "relu", "sin", "cos", "atan", "abs", "erf"})
#: How many operators are looked through, one inside the other, for what is equal under a predicate.
DEEPEST: Final = 16
#: How many for what is zero without one.
_SHALLOW: Final = 8


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
    there = _under(low, low.tensor(other), mask.gate, DEEPEST)
    return _gated(low, low.op("mul", mask.value, there).value, mask.gate)


def scaled(low: Lowering, x: Gated, factor: Fraction) -> Gated:
    """A value that is zero for some ids, times a number.

    Example: nine tenths of ``(labels >= 0) * loss``; what is zero for these ids anyhow still is.
    """
    return _gated(low, low.op("mul", x.value, other=factor).value, x.gate)


def gated(low: Lowering, item: Item, gate: Ids) -> Gated:
    """A value where a predicate of ids holds, and zero elsewhere.

    Example: of ``norm - logits[where(labels >= 0, labels, 0)]`` under ``labels >= 0``, with the
    logits of the labels that there are; of what is zero for other ids of the same, where both hold.
    """
    if isinstance(item, Gated) and (item.gate.origin, item.gate.axes) == (gate.origin, gate.axes):
        return Gated(
            item.value, replace(gate, functions=_and(low, item.gate.functions, gate.functions))
        )
    return _gated(low, _under(low, low.tensor(item), gate, DEEPEST), gate)


def _gated(low: Lowering, value: int, gate: Ids) -> Gated:
    """A value where a predicate holds; one that is zero elsewhere is as it is."""
    if _vanishes(low, value, gate, _SHALLOW):
        low.values.bare.add((value, gate))
    return Gated(value, gate)


def _vanishes(low: Lowering, value: int, gate: Ids, depth: int) -> bool:
    """Whether a value is zero wherever a predicate does not hold: rows that are read for these ids
    alone, products with them, and sums of such."""
    lookup = low.values.lookups.get(value)
    if lookup is not None:
        if not _is_of(lookup, gate):
            return False
        own = _and(low, lookup.live, lookup.live)
        return _and(low, own, gate.functions) == own
    if (value, gate) in low.values.bare:
        return True
    op = low.reaches.maker(value)
    if op is None or not depth:
        return False
    if op.name == "all_reduce" and not _adds_alike(low, op, gate):
        return False
    if op.name == "sum" and "keepdim" not in op.attrs:
        return _vanishes(low, op.inputs[0], _repeated(low, op, gate), depth - 1)
    if op.name in ("einsum", *_MOVES):
        pairs = zip(op.inputs, _of_operands(low, op, gate), strict=True)
        return any(own is not None and _vanishes(low, v, own, depth - 1) for v, own in pairs)
    if op.name not in ("all_reduce", "add", "sub", "mul") or not op.inputs:
        return False
    if op.name == "add" and op.attrs:
        return False
    if any(low.recorder.shape(v) != gate.shape for v in op.inputs):
        return False
    each = (_vanishes(low, v, gate, depth - 1) for v in op.inputs)
    return any(each) if op.name == "mul" else all(each)


def _and(low: Lowering, one: Sequence[Function], other: Sequence[Function]) -> tuple[Function, ...]:
    """Where two predicates hold, on every rank."""
    ranks = low.graph.ranks
    each = zip(per_rank(one, ranks), per_rank(other, ranks), strict=True)
    both = tuple(piecewise.combine("and", a, b) for a, b in each)
    return both[:1] if len(set(both)) == 1 else both


def _under(low: Lowering, value: int, gate: Ids, depth: int) -> int:
    """A value that is equal wherever a predicate holds: rows are read for these ids alone."""
    key = ("under", value, gate)
    known = low.recorder.known(key)
    return known if known is not None else low.recorder.once(key, _read(low, value, gate, depth))


def _read(low: Lowering, value: int, gate: Ids, depth: int) -> int:
    """As `_under`, of what was not asked for before."""
    lookup = low.values.lookups.get(value)
    if lookup is not None:
        return _chosen(low, value, lookup, gate)
    places = low.values.places.get(value)
    if places is not None:
        return _placed(low, value, places, gate)
    own = low.values.gated.get(value)
    if own is not None and _implies(low, gate, own.gate):
        return _under(low, own.value, gate, depth)
    op = low.reaches.maker(value)
    if op is None or not depth:
        return value
    if _adds_alike(low, op, gate):
        given = _under(low, op.inputs[0], gate, depth - 1)
        return value if given == op.inputs[0] else reduced_again(low, op, given)
    if op.name == "sum" and "keepdim" not in op.attrs:
        given = _under(low, op.inputs[0], _repeated(low, op, gate), depth - 1)
        return value if given == op.inputs[0] else low.op("sum", given, **op.attrs).value
    if op.name in ("einsum", *_MOVES):
        pairs = zip(op.inputs, _of_operands(low, op, gate), strict=True)
        inputs = [v if own is None else _under(low, v, own, depth - 1) for v, own in pairs]
        return value if inputs == list(op.inputs) else low.op(op.name, *inputs, **op.attrs).value
    if op.name not in TOTAL and op.name not in _OF_ONE:
        return value
    if any(low.recorder.shape(v) != gate.shape for v in op.inputs):
        return value
    inputs = [_under(low, v, gate, depth - 1) for v in op.inputs]
    return value if inputs == list(op.inputs) else low.op(op.name, *inputs, **op.attrs).value


#: Operators of one operand that move its entries.
_MOVES: Final = ("view", "expand", "permute")


def _implies(low: Lowering, gate: Ids, other: Ids) -> bool:
    """Whether a predicate of the same ids holds wherever another one does."""
    if (gate.origin, gate.axes, gate.shape) != (other.origin, other.axes, other.shape):
        return False
    return _and(low, gate.functions, other.functions) == _and(low, gate.functions, gate.functions)


def _of_operands(low: Lowering, op: Recorded, gate: Ids) -> list[Ids | None]:
    """A predicate of the rows of a result as one of the rows of each operand; None: the operand has
    no such rows, or lies otherwise.

    Example: of ``ab,bc->ac`` under a predicate of ``a``, that of the first operand.
    """
    if op.name == "einsum":
        left, output = str(op.attrs["equation"]).split("->")
        along = dict(zip(output, gate.axes, strict=True))
        every = [tuple(along.get(a, -1) for a in names) for names in left.split(",")]
    else:
        every = [_before_move(low, op, gate)]
    rows = {axis for axis in gate.axes if axis >= 0}
    shapes = [low.recorder.shape(v) for v in op.inputs]
    return [
        replace(gate, axes=axes, shape=shape) if rows <= set(axes) else None
        for axes, shape in zip(every, shapes, strict=True)
    ]


def _before_move(low: Lowering, op: Recorded, gate: Ids) -> tuple[int, ...]:
    """The axes of a predicate along the operand of a movement; none where rows are put together."""
    shape = low.recorder.shape(op.inputs[0])
    if op.name == "permute":
        order = op.attrs["dims"]
        assert isinstance(order, tuple)
        return tuple(gate.axes[order.index(d)] for d in range(len(shape)))
    if op.name == "expand":
        pairs = zip(shape, gate.shape, gate.axes, strict=True)
        return tuple(axis if n == wide else -1 for n, wide, axis in pairs)
    if [n for n in shape if n > 1] != [n for n in gate.shape if n > 1]:
        return ()
    own = iter(axis for n, axis in zip(gate.shape, gate.axes, strict=True) if n > 1)
    return tuple(next(own) if n > 1 else -1 for n in shape)


def reduced_again(low: Lowering, op: Recorded, given: int) -> int:
    """What a collective makes of another value of the shape of its operand; one that is done
    already is not done again.

    Example: of the all-reduce of ``x`` and the value ``y``, the all-reduce of ``y``.
    """
    key = ("again", op.outputs[0], given)
    known = low.recorder.known(key)
    if known is None:
        result = low.recorder.values[op.outputs[0]]
        known = low.recorder.append(op.name, [given], result.shape, result.dtype, op.attrs)
    return low.recorder.once(key, known)


def _repeated(low: Lowering, op: Recorded, gate: Ids) -> Ids:
    """A predicate of what a sum gives, repeated along the dimensions that it adds up."""
    shape, dims = low.recorder.shape(op.inputs[0]), op.attrs["dim"]
    axes = iter(gate.axes)
    wide = tuple(-1 if d in dims else next(axes) for d in range(len(shape)))
    return replace(gate, axes=wide, shape=shape)


def _adds_alike(low: Lowering, op: Recorded, gate: Ids) -> bool:
    """Whether an operator adds up what ranks have among which a predicate is one."""
    if op.name != "all_reduce" or op.attrs["op"] != "sum":
        return False
    groups = op.attrs[GROUP]
    assert isinstance(groups, tuple)
    return alike(low, gate, groups)


def alike(low: Lowering, gate: Ids, groups: Groups) -> bool:
    """Whether a predicate is the same on all ranks of each group: one function of the same part of
    an input.

    Example: ``labels >= 0`` is among ranks that have all labels, and not among those that divide
    them.
    """
    value = gate.origin
    while (made := low.reaches.maker(value)) is not None and made.name in ("view", "permute"):
        value = made.inputs[0]
    placed = next((p.placement for p in low.recorder.placed if p.value == value), None)
    if placed is None or len(gate.functions) > 1:
        return False
    return all(len({placed.starts[rank] for rank in group}) == 1 for group in groups)


def _chosen(low: Lowering, value: int, lookup: Lookup, gate: Ids) -> int:
    """The rows of a lookup in which many ids choose one row, for ids for which a predicate holds;
    as it is where these choose many, too, or the predicate is of other ids."""
    if not _is_of(lookup, gate):
        return value
    live = _and(low, lookup.live, gate.functions)
    if _parts(low, lookup, lookup.live) == 1 or _parts(low, lookup, live) != 1:
        return value
    return low.tensor(replace(lookup, live=live))


def _placed(low: Lowering, value: int, places: Places, gate: Ids) -> int:
    """A comparison of ids with positions, for ids for which a predicate of these holds."""
    ids = places.ids
    if (ids.origin, ids.axes, ids.shape) != (gate.origin, gate.axes, gate.shape):
        return value
    shown = low.values.places_of(places, gate.functions)
    low.values.bare.add((shown, gate))
    return shown


def _is_of(lookup: Lookup, gate: Ids) -> bool:
    """Whether a predicate is of the ids by which rows are looked up, position by position."""
    axes = tuple(
        lookup.places.index(d) if d in lookup.places else -1 for d in range(len(gate.shape))
    )
    return (lookup.ids.origin, lookup.shape, axes) == (gate.origin, gate.shape, gate.axes)


def _parts(low: Lowering, lookup: Lookup, live: Sequence[Function]) -> int:
    """In how many intervals of ids rows are read, the same number on every rank; 0: in none, or not
    the same."""
    ranks, rows = low.graph.ranks, low.recorder.shape(lookup.table)[lookup.dim]
    counts = {
        len(chosen_rows(f, own, rows) or ())
        for f, own in zip(per_rank(lookup.ids.functions, ranks), per_rank(live, ranks), strict=True)
    }
    return counts.pop() if len(counts) == 1 else 0
