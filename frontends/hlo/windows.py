"""Rules for windows of positions: convolutions, running sums, pooling, every so many positions.

What a tap of a window reads is a table of 0 and 1 (`tables.reads`), with which the operand is
contracted: entry (s, k, a) is 1 where result a reads position s by tap k, so that

    y[n, o, a] = sum over c, s, k of x[n, c, s] T[s, k, a] w[o, c, k]

Tables are named inputs of both sides, by their contents: a proof holds whatever they are.  A sum of
all positions up to each is a contraction with the triangle of ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import orders, pooling, semantics, tables
from shardproof.frontends.hlo.divided import Pattern, patterns
from shardproof.frontends.hlo.elementwise import number_of
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.opcodes import Taps
from shardproof.frontends.hlo.state import Lowering

#: Sums up to each of more positions are told by the order of positions, and by no table.
MOST_ROWS = 1024
#: Entries of which there is a product.
MOST_FACTORS = 64
_PLAIN = Taps(1)


def every(low: Lowering, value: int, dim: int, start: int, step: int, count: int) -> int:
    """Every ``step``-th position of a dimension, ``count`` of them, from ``start`` on.

    Example: positions 1, 4 and 7 of nine are column 1 of the ``view`` as [3, 3].
    """
    shape = low.recorder.shape(value)
    dtype = low.recorder.values[value].dtype
    if step == 1 or count == 1:
        if (start, count) == (0, shape[dim]):
            return value
        return low.recorder.op("slice", value, dim=dim, start=start, size=count, dtype=dtype)
    first, skip = divmod(start, step)
    whole = (first + count) * step
    if whole > shape[dim]:
        # What is beyond the end is never chosen.
        box = (*shape[:dim], whole - shape[dim], *shape[dim + 1 :])
        filled = low.values.full(box, Fraction(0))
        value = low.recorder.op("concat", value, filled, dim=dim, dtype=dtype)
    elif whole < shape[dim]:
        value = low.recorder.op("slice", value, dim=dim, start=0, size=whole, dtype=dtype)
    wide = (*shape[:dim], first + count, step, *shape[dim + 1 :])
    split = low.values.view(value, wide)
    own = low.recorder.op("slice", split, dim=dim + 1, start=skip, size=1, dtype=dtype)
    own = low.values.view(own, (*shape[:dim], first + count, *shape[dim + 1 :]))
    if not first:
        return own
    return low.recorder.op("slice", own, dim=dim, start=first, size=count, dtype=dtype)


def _contracted(low: Lowering, value: int, dim: int, table: object) -> int:
    """[..., positions, ...] by a table [positions, ...] that comes last."""
    taps = np.asarray(table, dtype="float32")
    names = "abcdefghijklm"[: len(low.recorder.shape(value))]
    new = "nopqrstuvwxyz"[: taps.ndim - 1]
    rest = names[:dim] + names[dim + 1 :]
    constant = low.recorder.constant([taps])
    equation = f"{names},{names[dim]}{new}->{rest}{new}"
    return low.recorder.op("einsum", value, constant, equation=equation)


def reduce_window(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The sum, maximum or minimum over every window, dimension by dimension, or a running product,
    from the neutral number.

    Example: ``window={size=2 stride=2}`` by ``add`` of six entries is the ``sum`` of each row of
    the ``view`` as [3, 2]; ``window={size=6 pad=5_0}``, a cumulative sum, is a product with a
    triangle of ones.
    """
    how, shape = node.attrs["to_apply"], low.shape(node)
    largest = isinstance(xs[0], Ids) and how not in ("add", "multiply")
    if largest or low.dtype(node) == "bool":
        raise Unsupported(f"windows of ids or predicates by {how}")
    neutral = {"add": 0, "multiply": 1, "maximum": -inf, "minimum": inf}.get(how)
    if neutral is None or number_of(xs[1]) != neutral:
        raise Unsupported(f"windows by {how} from {number_of(xs[1])}")
    if how == "multiply" and (isinstance(xs[0], Known) or node.operands[0] in low.numbers):
        # Of constants alone it is a table.
        raise Unsupported("a running product of constants")
    value = low.tensor(xs[0])
    moving = [d for d, taps in enumerate(node.attrs["window"]) if taps != _PLAIN]
    for d in moving:
        taps = node.attrs["window"][d]
        if how == "add":
            value = _summed(low, value, d, taps, shape[d])
        elif how == "multiply":
            value = _running_product(low, value, d, taps, shape[d])
        else:
            value = _largest(low, value, d, taps, shape[d], how == "minimum")
    return Tensor(value)


def _running_product(low: Lowering, value: int, dim: int, taps: Taps, steps: int) -> int:
    """The products of all positions up to each, or from each on, one after the other.

    Example: of [2, 3, 5], [2, 6, 30].
    """
    count = low.recorder.shape(value)[dim]
    forwards = tables.up_to_each(taps, count, steps)
    running = forwards or tables.from_each_on(taps, count, steps)
    if not running or not 0 < count <= MOST_FACTORS:
        raise Unsupported("products of windows that are no running products of few positions")
    order = range(count) if forwards else range(count - 1, -1, -1)
    made: dict[int, int] = {}
    total = -1
    for place in order:
        own = low.recorder.op("slice", value, dim=dim, start=place, size=1)
        total = own if total < 0 else low.recorder.op("mul", total, own)
        made[place] = total
    if count == 1:
        return total
    return low.recorder.op("concat", *(made[place] for place in range(count)), dim=dim)


def _summed(low: Lowering, value: int, dim: int, taps: Taps, steps: int) -> int:
    """Sums over windows of a dimension: of all positions up to each; of windows side by side; or by
    a table."""
    shape = low.recorder.shape(value)
    count = shape[dim]
    forwards = tables.up_to_each(taps, count, steps)
    running = forwards or tables.from_each_on(taps, count, steps)
    if running and (count > MOST_ROWS or low.values.by_order):
        lower = orders.triangle(low.recorder, count)
        names = "abcdefghijklm"[: len(shape)]
        own = f"z{names[dim]}" if forwards else f"{names[dim]}z"
        equation = f"{names},{own}->{names.replace(names[dim], 'z')}"
        return low.recorder.op("einsum", value, lower, equation=equation)
    if taps == Taps(taps.size, taps.size) and count == taps.size * steps:
        split = (*shape[:dim], steps, taps.size, *shape[dim + 1 :])
        return low.recorder.op("sum", low.values.view(value, split), dim=(dim + 1,))
    return along(low, value, dim, tables.covers(taps, count, steps))


def along(low: Lowering, value: int, dim: int, table: object) -> int:
    """A dimension by a table of two.

    Example: dimension 1 of ``f32[3,9]`` by a table ``[9, 27]`` is ``f32[3,27]``.
    """
    made = _contracted(low, value, dim, table)
    last = len(low.recorder.shape(made)) - 1
    order = (*range(dim), last, *range(dim, last))
    return made if dim == last else low.recorder.op("permute", made, dims=order)


def _largest(low: Lowering, value: int, dim: int, taps: Taps, steps: int, least: bool) -> int:
    """Maxima over windows that lie inside: of the positions that each tap reads."""
    shape = low.recorder.shape(value)
    inside = (steps - 1) * taps.stride + (taps.size - 1) * taps.apart < shape[dim]
    if taps.before or taps.spread != 1 or not inside or taps.size > pooling.MOST_TAPS:
        return pooling.largest(low, value, dim, taps, steps, least)
    parts = [every(low, value, dim, t * taps.apart, taps.stride, steps) for t in range(taps.size)]
    box = (*shape[:dim], steps, 1, *shape[dim + 1 :])
    wide = [low.values.view(p, box) for p in parts]
    side = low.recorder.op("concat", *wide, dim=dim + 1) if len(wide) > 1 else wide[0]
    if not least:
        return low.recorder.op("amax", side, dim=(dim + 1,))
    negated = low.recorder.op("mul", side, other=Fraction(-1))
    most = low.recorder.op("amax", negated, dim=(dim + 1,))
    return low.recorder.op("mul", most, other=Fraction(-1))


def convolution(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A convolution: dimension by dimension what the taps read, then one contraction with the
    kernel.

    Example: ``f32[2,6,3]`` by a kernel ``f32[2,3,5]``, ``dim_labels=b0f_0io->b0f``: what both taps
    read, [2, 3, 2, 5], contracted with the kernel by ``bcmg,dcm->bdg``.
    """
    if not low.dtype(node).startswith(("float", "bfloat")):
        raise Unsupported("a convolution of integers")
    at = semantics.labels(node.attrs["dim_labels"])
    shape, window = low.shape(node), node.attrs["window"]
    x, kernel = low.tensor(xs[0]), low.tensor(xs[1])
    x = _ordered(low, x, (at.operand[0], at.operand[1], *at.operand[2]))
    kernel = _ordered(low, kernel, (at.kernel[1], at.kernel[0], *at.kernel[2]))
    features, batches = (node.attrs.get(f"{k}_group_count", 1) for k in ("feature", "batch"))
    groups = features * batches
    if min(features, batches) != 1:
        raise Unsupported("groups of features and of the batch together")
    count = len(window)
    rows, inner, *sizes = low.recorder.shape(x)
    outer, kernel_inner, *_ = low.recorder.shape(kernel)
    # Groups are a dimension of their own, the first one, where there are several.
    lead = "a" if groups > 1 else ""
    if batches > 1:
        x = low.values.view(x, (groups, rows // groups, inner, *sizes))
    elif features > 1:
        split = low.values.view(x, (rows, groups, inner // groups, *sizes))
        x = low.recorder.op("permute", split, dims=(1, 0, *range(2, 3 + count)))
    steps = tuple(shape[d] for d in at.result[2])
    results, tapped = "ghijkl"[:count], "mnopqr"[:count]
    x, order, turned = _tapped(low, x, len(lead) + 2, window, steps)
    for d in turned:
        kernel = _turned(low, kernel, 2 + d)
    own = "".join(tapped[d] if tap else results[d] for d, tap in order)
    taps = [d for d in range(count) if (d, True) in order]
    kernel = low.values.view(
        kernel,
        (*(groups,) * len(lead), outer // groups, kernel_inner, *(window[d].size for d in taps)),
    )
    read = "".join(tapped[d] for d in taps)
    equation = f"{lead}bc{own},{lead}dc{read}->b{lead}d{results}"
    made = low.recorder.op("einsum", x, kernel, equation=equation)
    batch = rows // groups if batches > 1 else rows
    whole = low.values.view(made, (batch, outer, *steps))
    back = [0] * len(shape)
    for source, target in enumerate((at.result[0], at.result[1], *at.result[2])):
        back[target] = source
    return Tensor(_ordered(low, whole, tuple(back)))


def _tapped(
    low: Lowering, x: int, lead: int, window: Sequence[Taps], steps: Shape
) -> tuple[int, list[tuple[int, bool]], list[int]]:
    """Every spatial dimension, after ``lead`` others, as what its taps read: which dimension is
    which, and whether it is one of taps.  One that stays as it is has none of taps.  Then the
    dimensions whose taps were read the last one first."""
    order = [(d, False) for d in range(len(window))]
    sliced: dict[int, Pattern] = {}
    for d, (taps, size) in enumerate(zip(window, steps, strict=True)):
        place = order.index((d, False))
        positions = low.recorder.shape(x)[lead + place]
        large = positions * taps.size * size > tables.MOST_NUMBERS
        slices = patterns(taps, size, d)
        over = next((o for o in slices if large or o in low.other.windows), None)
        if over is not None:
            sliced[d] = over.pattern
            continue
        table = tables.reads(taps, positions, size)
        if taps.size > 1 or not np.array_equal(table[:, 0], np.eye(len(table), size)):
            x = _contracted(low, x, lead + place, table)
            order = [*order[:place], *order[place + 1 :], (d, True), (d, False)]
    # Slices come last: where they are joined, so is what they are contracted with.
    for d, pattern in sliced.items():
        place = order.index((d, False))
        x = _side_by_side(low, x, lead + place, window[d], steps[d], pattern)
        order = [*order[:place], *order[place + 1 :], (d, True), (d, False)]
    turned = [d for d, pattern in sliced.items() if pattern.taps and not window[d].mirrored]
    return x, order, turned


def _turned(low: Lowering, value: int, dim: int) -> int:
    """The positions of a dimension, the last one first."""
    last = low.recorder.shape(value)[dim] - 1
    parts = [every(low, value, dim, last - n, 1, 1) for n in range(last + 1)]
    return low.recorder.op("concat", *parts, dim=dim) if last else value


def _side_by_side(low: Lowering, x: int, dim: int, taps: Taps, steps: int, pattern: Pattern) -> int:
    """What taps read of a dimension, as the last two, [..., taps, steps]: slices side by side, the
    last tap first, so that what several taps read at one step is no interval of positions."""
    shape = low.recorder.shape(x)
    last = (taps.size - 1) * taps.apart + (steps - 1) * taps.stride
    edges = (taps.before, last + 1 - taps.before - shape[dim])
    zeros = [
        [low.values.full((*shape[:dim], n, *shape[dim + 1 :]), Fraction(0))] if n > 0 else []
        for n in edges
    ]
    if edges[0] < 0:
        x = every(low, x, dim, -edges[0], 1, shape[dim] + edges[0])
    parts = [*zeros[0], x, *zeros[1]]
    whole = low.recorder.op("concat", *parts, dim=dim) if len(parts) > 1 else x
    ahead, apart, long = (
        (taps.apart, taps.stride, steps) if pattern.taps else (taps.stride, taps.apart, taps.size)
    )
    box = (*shape[:dim], 1, long, *shape[dim + 1 :])
    rows = [
        low.values.view(every(low, whole, dim, n * ahead, apart, long), box)
        for n in range(pattern.slices)
    ]
    if pattern.taps:
        rows.reverse()
    side = low.recorder.op("concat", *rows, dim=dim) if len(rows) > 1 else rows[0]
    behind = (dim, dim + 1) if pattern.taps else (dim + 1, dim)
    return _ordered(low, side, (*range(dim), *range(dim + 2, len(shape) + 1), *behind))


def _ordered(low: Lowering, value: int, dims: tuple[int, ...]) -> int:
    if dims == tuple(range(len(dims))):
        return value
    return low.recorder.op("permute", value, dims=dims)
