"""Dynamic slices and updates that begin where data says: a cache that is written from a position
on, a crop of a picture.

What begins at an id is read, or written, position by position: position ``t`` of it is the row
``id + t``, a function of the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank, Shape
from shardproof.frontends.hlo.indices import reshaped
from shardproof.frontends.hlo.items import Ids, Item, Lookup, Narrow, Tensor, table_of
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.lookups import MOST_POSITIONS, clamped, gathered, later
from shardproof.frontends.hlo.scatters import added_row, writers
from shardproof.frontends.hlo.state import Lowering

#: Where something begins: at a number, at one for each rank, at an id.
Start: TypeAlias = int | PerRank | Ids


def _starts(low: Lowering, xs: Sequence[Item], shape: Shape, part: Shape) -> list[Start]:
    """Where a part of a tensor begins along each dimension, clamped as XLA says; raises
    `Unsupported` where numbers that are neither known nor ids say so, and `Narrow` where ids may
    lie beyond the last start."""
    starts: list[Start] = []
    for x, count, size in zip(xs, shape, part, strict=True):
        last = count - size
        if not last:
            starts.append(0)
        elif isinstance(x, Known):
            numbers = [int(a.reshape(-1)[0]) for a in x.arrays]
            starts.append(table_of([min(max(n, 0), last) for n in numbers]))
        elif isinstance(x, Ids) and size <= MOST_POSITIONS:
            ends = [p.at(i) for f in x.functions for p in f for i in (p.low, p.high - 1)]
            if not low.settled and not 0 <= min(ends) <= max(ends) <= last:
                raise Narrow(x.origin, last + 1)
            starts.append(replace(x, functions=clamped(x, last + 1)))
        elif isinstance(x, Ids):
            raise Unsupported(f"more than {MOST_POSITIONS} positions that begin where data says")
        else:
            raise Unsupported("starts that depend on data")
    return starts


def dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A part of a tensor that begins at ids along some dimensions.

    Example: ``dynamic-slice(x, i, 0)`` of ``f32[5,6]`` as ``[1, 6]``: the ``onehot`` of ``i`` and
    ``einsum`` by ``v,va->a``; as ``[2, 6]``, that of ``i`` and that of ``i + 1`` side by side.
    """
    value, part = low.tensor(xs[0]), low.shape(node)
    starts = _starts(low, xs[1:], low.recorder.shape(value), part)
    for dim, start in enumerate(starts):
        if not isinstance(start, Ids) and low.recorder.shape(value)[dim] != part[dim]:
            value = low.recorder.op("slice", value, dim=dim, start=start, size=part[dim])
    cut: Item = Tensor(value)
    for dim, start in enumerate(starts):
        if isinstance(start, Ids):
            value = low.tensor(cut)
            rows = [_row(low, value, dim, later(start, by)) for by in range(part[dim])]
            joined = len(rows) > 1
            cut = low.op("concat", *map(low.tensor, rows), dim=dim) if joined else rows[0]
    return cut


def _row(low: Lowering, value: int, dim: int, at: Ids) -> Lookup:
    """One position along a dimension, which stays."""
    shape = low.recorder.shape(value)
    whole = tuple(1 if d == dim else n for d, n in enumerate(shape))
    attrs = {
        "offset_dims": tuple(range(len(shape) - 1)),
        "collapsed_slice_dims": (dim,),
        "start_index_map": (dim,),
        "index_vector_dim": 0,
        "slice_sizes": whole,
    }
    rest = tuple(n for d, n in enumerate(shape) if d != dim)
    row = reshaped(gathered(low, attrs, value, at, (), rest), whole)
    if row is None:
        raise Unsupported("a slice of one position that begins where data says")
    return row


def dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A tensor with a part written over that begins at ids along some dimensions (clamped).

    Example: ``f32[1,6]`` at row ``i`` of ``x = f32[5,6]`` is ``h * u + x * (1 - h)`` where ``h`` is
    the one-hot of ``i`` along the rows; of ``f32[2,6]``, ``h`` is the sum of those of ``i`` and
    ``i + 1``, each times its row of ``u``.
    """
    shape, part = low.shape(node), low.tensor(xs[1])
    have = low.recorder.shape(part)
    starts = _starts(low, xs[2:], shape, have)
    dim = next(d for d, start in enumerate(starts) if isinstance(start, Ids))
    if have == tuple(1 if d == dim else n for d, n in enumerate(shape)):
        at = starts[dim]
        assert isinstance(at, Ids)
        onehot = low.values.onehot(at.origin, writers(low, at, shape[dim]), shape[dim])
        line = low.values.view(onehot, (shape[dim],))
        hit = low.values.broadcast(line, (dim,), shape)
        written = low.op("mul", hit, low.op("expand", part, size=shape).value).value
    else:
        ones = low.values.full(have, Fraction(1))
        hit, written = (_placed(low, value, starts, shape) for value in (ones, part))
    if isinstance(xs[0], Known) and xs[0].number() == 0:
        return Tensor(written)
    missed = low.op("add", low.op("mul", hit, other=Fraction(-1)).value, other=Fraction(1)).value
    return low.op("add", low.op("mul", low.tensor(xs[0]), missed).value, written)


def _placed(low: Lowering, value: int, starts: Sequence[Start], shape: Shape) -> int:
    """A part among zeros, which begins at known numbers or at ids."""
    for dim, (start, count) in enumerate(zip(starts, shape, strict=True)):
        have = low.recorder.shape(value)
        if have[dim] == count:
            continue
        if isinstance(start, Ids):
            total = -1
            for by in range(have[dim]):
                row = low.recorder.op("slice", value, dim=dim, start=by, size=1)
                added = added_row(low, later(start, by), row, dim, count)
                total = added if total < 0 else low.recorder.op("add", total, added)
            value = total
        elif isinstance(start, int):
            sides = ((*have[:dim], n, *have[dim + 1 :]) for n in (start, count - have[dim] - start))
            before, after = ([low.values.full(z, Fraction(0))] if z[dim] else [] for z in sides)
            value = low.recorder.op("concat", *before, value, *after, dim=dim)
        else:
            raise Unsupported("an update that begins at ids and elsewhere on each rank")
    return value
