"""Attention: masks of positions, and scaled dot-product attention as one operator."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, isfinite, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import ids, lookups
from shardproof.frontends.aten.bands import Window, as_table, window
from shardproof.frontends.aten.bits import (
    Additive,
    Bits,
    entries,
    everywhere,
    plane,
    runs,
    shown_columns,
)
from shardproof.frontends.aten.cells import Cell, cells
from shardproof.frontends.aten.filled import filled, fills
from shardproof.frontends.aten.hidden import (
    Mask,
    as_numbers,
    cleared,
    hidden_after,
    is_nothing,
    is_zero_there,
    keep,
    masked,
    offset,
    opened,
    position_flags,
    softmax,
)
from shardproof.frontends.aten.joined import Joined, part_by_part
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Undefined,
    broadcast,
    floating,
    fraction,
    is_symbolic,
)
from shardproof.frontends.aten.masks import chosen, inverse
from shardproof.frontends.aten.positions import Compared, Positions
from shardproof.frontends.aten.predicates import selected
from shardproof.frontends.aten.rules import lowers, number_as
from shardproof.frontends.aten.scores import Hidden, nothing


def causal(lo: Lowering, scores: Real, first: int = 0) -> Real:
    """Scores [..., queries, keys] with minus infinity where the key comes after the query, the
    first of which is at position ``first``.

    Example: scores [2, 4, 4] are viewed as [1, 2, 4, 4] for ``apply_mask`` with the [1, 4] mask
    that ``create_mask`` makes, and viewed back.
    """
    return _causal_from(lo, scores, first, 0)


def _causal_from(lo: Lowering, scores: Real, row: int, column: int) -> Real:
    """Scores with the part of a causal mask that begins at a row and a column; one that begins
    behind the last row hides all."""
    *lead, queries, keys = scores.shape
    length = max(row + queries, column + keys)
    like = lo.real(Const(Fraction(0), (1, length), "float32"))
    mask: Any = lo.emit("create_mask", like, like)
    mask = lo.real(lo.slice(lo.slice(mask, 2, row, queries), 3, column, keys))
    four = lo.reshape(scores, (1, prod(lead), queries, keys) if len(lead) != 2 else scores.shape)
    return lo.reshape(lo.emit("apply_mask", four, mask), scores.shape)  # type: ignore[no-any-return]


def _recent(lo: Lowering, scores: Real, least: int) -> Real:
    """Scores [..., queries, keys] with minus infinity where key j comes before i + ``least``: by
    the transpose of a causal mask."""
    *lead, queries, keys = scores.shape
    row, column = max(least, 0), max(-least, 0)
    length = max(row + queries, column + keys)
    like = lo.real(Const(Fraction(0), (1, length), "float32"))
    mask: Any = lo.permute(lo.emit("create_mask", like, like), (0, 1, 3, 2))
    mask = lo.real(lo.slice(lo.slice(mask, 2, row, queries), 3, column, keys))
    four = lo.reshape(scores, (1, prod(lead), queries, keys) if len(lead) != 2 else scores.shape)
    return lo.reshape(lo.emit("apply_mask", four, mask), scores.shape)  # type: ignore[no-any-return]


def hide(lo: Lowering, scores: Real, mask: Mask) -> Real:
    """Scores [..., queries, keys] with minus infinity where a mask of positions is true; raises
    `Unsupported` for one of which a query sees other than an interval of keys, and for a window
    that is a table (`bands`).

    Example: a window of two keys is a causal mask and the transpose of another one.
    """
    first = hidden_after(mask, scores.shape)
    if first is None:
        hidden = entries(plane(mask, scores.shape))
        try:
            return _by_columns(lo, scores, hidden)
        except Unsupported:  # Rows show several intervals, or the mask is a large window.
            return _in_cells(lo, scores, cells(lo, hidden))
    *_, queries, keys = scores.shape
    _require_compared(lo, Window(first, -queries, queries, keys), scores)
    return causal(lo, scores, first)


def _require_compared(lo: Lowering, own: Window | None, scores: Real) -> None:
    if own is not None and as_table(lo, own, prod(scores.shape)) is not None:
        raise Unsupported("a window of many keys as comparisons of positions")


def _by_columns(lo: Lowering, scores: Real, hidden: NDArray[np.bool_]) -> Real:
    """Scores with minus infinity where a mask is true: in columns that no row sees altogether, and
    in the others row by row."""
    at, (queries, keys) = len(scores.shape) - 1, hidden.shape
    start, stop = shown_columns(hidden)
    _require_compared(lo, window(hidden), scores)

    def part(begin: int, end: int) -> Real:
        return lo.real(lo.slice(scores, at, begin, end - begin))

    parts = [_by_rows(lo, part(start, stop), hidden[:, start:stop])]
    if start:
        parts.insert(0, _causal_from(lo, part(0, start), 0, queries))
    if stop < keys:
        parts.append(_causal_from(lo, part(stop, keys), 0, queries))
    return lo.real(lo.concat(parts, at))


def _in_cells(lo: Lowering, scores: Real, bands: list[list[Cell]]) -> Real:
    """Scores with minus infinity where a mask of such cells is true."""
    queries, keys = len(scores.shape) - 2, len(scores.shape) - 1

    def shown(cell: Cell) -> Real:
        part: Any = lo.slice(scores, queries, cell.start, cell.stop - cell.start)
        part = lo.real(lo.slice(part, keys, cell.left, cell.right - cell.left))
        return _causal_from(lo, part, max(cell.last, 0), max(-cell.last, 0))

    rows = [lo.concat([shown(cell) for cell in band], keys) for band in bands]
    return lo.real(lo.concat(rows, queries))


def _by_rows(lo: Lowering, scores: Real, hidden: NDArray[np.bool_]) -> Real:
    """Scores with minus infinity where a mask is true of which each row shows an interval."""
    at = len(scores.shape) - 2
    parts = []
    for run in runs(hidden):
        part = lo.real(lo.slice(scores, at, run.start, run.rows))
        part = part if run.last is None else causal(lo, part, run.last)
        parts.append(part if run.least is None else _recent(lo, part, run.least))
    return lo.real(lo.concat(parts, at))


def _filled(lo: Lowering, x: Lowered, mask: Lowered, value: Operand) -> Any:
    """``value`` where a mask of the input is true: a number, not minus infinity."""
    if not isinstance(value, (int, float)):
        raise Unsupported("masked_fill with a tensor")
    filled = lookups.written(lo, x, mask, value)
    if filled is not None:
        return filled
    return lookups.chosen(lo, lo.real(mask), fraction(value), x)


@lowers("aten.masked_fill.Scalar")
def _masked_fill(lo: Lowering, x: Lowered, mask: Lowered, value: Operand) -> Any:
    value = value if isinstance(x, (int, float)) else number_as(value, x.dtype)
    parts = part_by_part(lo, _masked_fill, x, mask, value) if isinstance(mask, Joined) else None
    if parts is not None:
        return parts
    alike = everywhere(mask) if isinstance(mask, (Compared, Bits)) else None
    if alike is not None:
        mask = Const(Fraction(alike), mask.shape, "bool")
    if isinstance(mask, Const):
        if mask.value == 0:
            return lo.expand(x, broadcast(x.shape, mask.shape))
        return _written_everywhere(lo, x, mask, value)
    if fills(x, mask, value):
        kept = ids.inverse(mask) if isinstance(mask, ids.Ids) else None
        return filled(lo, x, inverse(lo, as_numbers(lo, mask)), value, kept)
    if value == -inf:
        return _without(lo, x, mask)
    x = opened(lo, x)
    if isinstance(x, Hidden):
        return cleared(lo, x, inverse(lo, as_numbers(lo, mask)), value, mask)
    return _replaced(lo, x, mask, value)


def _replaced(lo: Lowering, x: Lowered, mask: Lowered, value: Operand) -> Any:
    """``value`` where a mask is true: a number, not minus infinity; ``x`` elsewhere."""
    if isinstance(mask, Real):
        return chosen(lo, mask, value, x)
    if not isinstance(mask, (Compared, Bits)):
        return _filled(lo, x, mask, value)
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise Unsupported(f"masked_fill with {value}")
    if value == 0 and is_zero_there(lo, x, mask):
        return x
    if hidden_after(mask, x.shape) == 0 and x.shape[-1] == x.shape[-2]:
        real = lo.real(x)
        return lo.emits("fill_after", [real], {"value": fraction(value)}, real.dtype)[0]
    return chosen(lo, position_flags(lo, mask), value, x)


def _written_everywhere(lo: Lowering, x: Lowered, mask: Const, value: Operand) -> Any:
    if value == -inf:
        return nothing(lo, x.shape, x.dtype)
    number = value.value if isinstance(value, Const) else value
    if not isinstance(number, (int, float, Fraction)) or not isfinite(number):
        raise Unsupported(f"masked_fill with {value} everywhere")
    return Const(fraction(number), broadcast(x.shape, mask.shape), x.dtype)


def _without(lo: Lowering, x: Operand, hidden: Lowered) -> Any:
    """``x`` with minus infinity where a mask is true."""
    alike = everywhere(hidden) if isinstance(hidden, (Compared, Bits)) else None
    if alike:
        given = (x.shape, x.dtype) if is_symbolic(x) or isinstance(x, Real) else ((), "float32")
        return nothing(lo, broadcast(given[0], hidden.shape), given[1])
    if alike is not None and isinstance(x, Real):
        return lo.expand(x, broadcast(x.shape, hidden.shape))
    if isinstance(hidden, (Compared, Bits)) and isinstance(x, Real):
        shape = broadcast(x.shape, hidden.shape)
        every = lo.real(lo.expand(x, shape))
        try:
            left = hide(lo, every, hidden)
            lo.hides[left.number] = every, hidden.expand(shape)
            return left
        except Unsupported:  # Other than an interval of a row is shown.
            pass
    scores = keep(lo, x, inverse(lo, as_numbers(lo, hidden)))
    if isinstance(hidden, Bits) and not isinstance(x, Hidden):
        seen = ~hidden.expand(scores.shape).array
        lines = {d for d in range(seen.ndim) if seen.any(axis=d).all()}
        scores = replace(scores, shown=frozenset(lines))
    return scores


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(lo: Lowering, mask: Lowered, x: Operand, y: Operand) -> Any:
    """x where the mask is true, y elsewhere."""
    if is_nothing(x) or is_nothing(y):
        return _shown(lo, mask, x, y)
    x, y = opened(lo, x), opened(lo, y)
    if isinstance(x, Hidden):
        others = mask.inverse() if isinstance(mask, (Compared, Bits)) else None
        return cleared(lo, x, as_numbers(lo, mask), y, others)
    if isinstance(y, Hidden):
        return cleared(lo, y, inverse(lo, as_numbers(lo, mask)), x, mask)
    if fills(x, mask, y):
        return filled(lo, x, as_numbers(lo, mask), y, mask if isinstance(mask, ids.Ids) else None)
    if fills(y, mask, x):
        kept = ids.inverse(mask) if isinstance(mask, ids.Ids) else None
        return filled(lo, y, inverse(lo, as_numbers(lo, mask)), x, kept)
    if isinstance(mask, ids.Ids) and (_one(mask, x, y) or not floating(lo.expected[0][1])):
        return selected(lo, mask, x, y)
    if isinstance(mask, ids.Ids) and isinstance(x, lookups.Lookup) and _is_zero(y):
        if lookups.by_rows(x, mask):
            return lookups.restricted(x, mask, True)
        x = lo.real(x)
    if isinstance(mask, ids.Ids):
        kept = _kept(lo, mask, x, y)
        return chosen(lo, lo.real(mask), x, y) if kept is None else kept
    if not isinstance(mask, (Compared, Bits)):
        return chosen(lo, mask, x, y)
    return _of_positions(lo, mask, x, y)


def _of_positions(lo: Lowering, mask: Compared | Bits, x: Operand, y: Operand) -> Any:
    """One of two by a mask of positions: as it is where it is zero at the other's places already,
    and that is zero."""
    for value, other, hidden in ((x, y, mask.inverse()), (y, x, mask)):
        if _is_zero(other) and is_zero_there(lo, value, hidden):
            return value
    return chosen(lo, position_flags(lo, mask), x, y)


def _one(mask: ids.Ids, x: Operand, y: Operand) -> bool:
    """Whether a function of ids is kept where the ids at its places decide it, and 0 elsewhere."""
    return isinstance(x, ids.Ids) and x.at() == mask.at() and _is_zero(y)


def _kept(lo: Lowering, mask: ids.Ids, x: Operand, y: Operand) -> Any:
    """One of two that is kept where ids decide it, and is zero elsewhere; None: no other is zero.

    Example: ``where((ids < 16)[:, None], rows, 0)`` is ``rows.masked_fill((ids >= 16)[:, None],
    0)``.
    """
    for value, other, hidden in ((x, y, ids.inverse(mask)), (y, x, mask)):
        if not _is_zero(other) or not isinstance(value, Real | Const) or not floating(value.dtype):
            continue
        shapes = value.shape, (*value.shape[:-1], 1)
        if lo.expected[0][0] == value.shape and mask.shape in shapes:
            return lookups.written(lo, value, hidden, 0.0)
    return None


def _shown(lo: Lowering, mask: Lowered, x: Operand, y: Operand) -> Any:
    """`_where`, where one side is minus infinity."""
    shape, dtype = lo.expected[0]
    if is_nothing(x) and is_nothing(y):
        return nothing(lo, shape, dtype)
    if isinstance(mask, (Compared, Bits)):
        hidden, scores = (mask, y) if is_nothing(x) else (mask.inverse(), x)
        if _is_zero(scores) and everywhere(hidden) is None:
            return Additive(hidden.expand(shape), dtype)
        return lo.expand(_without(lo, scores, hidden), shape)
    if isinstance(mask, Const):
        picked = x if mask.value else y
        if isinstance(picked, Real):
            return lo.expand(picked, shape)
    kept = as_numbers(lo, mask)
    result = keep(lo, y, inverse(lo, kept)) if is_nothing(x) else keep(lo, x, kept)
    return result.expand(shape)


def _is_zero(x: Operand) -> bool:
    return (isinstance(x, (int, float)) and x == 0) or (isinstance(x, Const) and x.value == 0)


def added(lo: Lowering, x: Operand, y: Operand) -> Any:
    """x + y, where one is minus infinity in places; None: none is so.

    Example: scores [2, 4, 4] plus ``torch.full((4, 4), -inf).triu(1)`` are causal scores; scores
    plus 1.0 are None.
    """
    for scores, mask in ((x, y), (y, x)):
        if isinstance(mask, Additive) and isinstance(scores, Real):
            return _without(lo, _shifted(lo, scores, mask), mask.where)
        hidden = masked(lo, mask)
        if hidden is not None:
            other = masked(lo, scores)
            total = lo.add(hidden.scores, scores if other is None else other.scores)
            if other is None and hidden.where is not None:
                wide = hidden.expand(total.shape)
                return replace(wide, scores=total)
            kept = hidden.kept if other is None else lo.mul(hidden.kept, other.kept)
            return keep(lo, total, kept)
    return None


def _later(
    lo: Lowering,
    q: Lowered,
    k: Lowered,
    dropout: float,
    causally: bool,
    mask: Lowered | None,
) -> Mask | None:
    """Which keys attention hides from which queries; None where it hides none (a mask that is none
    of these is added to scores).  Raises `Unsupported` for dropout."""
    if dropout:
        raise Unsupported("attention with dropout")
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is None and causally and queries != keys:
        raise Unsupported(f"a causal mask of {queries} queries and {keys} keys")
    if mask is None and causally:
        return Compared(Positions(-1, (-1, 1), (queries, keys), "int64"))
    if isinstance(mask, Additive) and not causally:
        try:
            hidden = plane(mask.where, (*q.shape[:-1], keys))
            own = _window(lo, entries(hidden))
        except Unsupported:  # The mask is not made of a few causal ones, or rows differ.
            return None
        scores = prod(q.shape[:-1]) * keys
        return None if own is not None and as_table(lo, own, scores) is not None else hidden
    if causally and mask is not None:
        raise Unsupported("attention with a mask that is causal besides")
    return None


def _window(lo: Lowering, hidden: NDArray[np.bool_]) -> Window | None:
    """As `bands.window`; None where the mask consists of `cells`, too."""
    try:
        return window(hidden)
    except Unsupported:
        cells(lo, hidden)
        return None


def _scale(q: Lowered, scale: float | None) -> Fraction:
    factor = fraction(1 / sqrt(q.shape[-1]) if scale is None else scale)
    if factor <= 0:
        raise Unsupported(f"attention with a scale of {scale}: its kernels give no numbers")
    return factor


def _grouped(lo: Lowering, q: Lowered, *shared: Lowered) -> list[Real]:
    """Tensors [b, h, s, e] of query heads, and keys or values of fewer heads, as [b, k, g, s, e]:
    every key head serves g query heads, one after the other."""
    heads, keys = q.shape[-3], shared[0].shape[-3]
    if keys == heads:
        return [lo.real(q), *(lo.real(x) for x in shared)]
    if not keys or heads % keys:
        raise Unsupported(f"{heads} query heads over {keys} key heads")
    group = heads // keys
    tensors = [lo.real(lo.reshape(lo.real(q), (*q.shape[:-3], keys, group, *q.shape[-2:])))]
    for x in shared:
        lead, rest = x.shape[:-2], x.shape[-2:]
        one = lo.reshape(lo.real(x), (*lead, 1, *rest))
        tensors.append(lo.real(lo.expand(one, (*lead, group, *rest))))
    return tensors


def _ungrouped(lo: Lowering, gradient: Real, like: Lowered) -> Any:
    """The gradient of keys or values: what query heads of a group give is added."""
    if len(gradient.shape) == len(like.shape):
        return gradient
    return lo.sum(gradient, (len(gradient.shape) - 3,))


def _scores(
    lo: Lowering, q: Real, k: Real, later: Mask | None, mask: Lowered | None, factor: Fraction
) -> Real:
    """The probabilities [..., s, t]."""
    turned = lo.real(lo.transpose(k, len(k.shape) - 2, len(k.shape) - 1))
    scores = lo.real(lo.scale(lo.emit("matmul", q, turned), factor))
    if later is not None:
        if isinstance(mask, Additive):
            scores = _shifted(lo, scores, _by_group(lo, mask, scores))
        scores = hide(lo, scores, later)
    elif mask is not None:
        hidden = masked(lo, mask)
        given = _by_group(lo, lo.real(mask) if hidden is None else hidden, scores)
        if isinstance(given, Hidden):
            return lo.real(softmax(lo, added(lo, scores, given), len(scores.shape) - 1, safe=True))
        scores = lo.real(lo.add(scores, given))
    return lo.emit("softmax", scores, dim=len(scores.shape) - 1)


def _shifted(lo: Lowering, scores: Real, mask: Additive) -> Real:
    """Scores and the numbers that a mask adds beside minus infinity."""
    return scores if mask.numbers is None else lo.real(lo.add(scores, offset(lo, mask)))


def _by_group(lo: Lowering, mask: Any, scores: Real) -> Any:
    """A mask of query heads, with a dimension of key heads where the scores have one."""
    if len(scores.shape) > 4 and len(mask.shape) == 4:
        heads = scores.shape[1:3] if mask.shape[1] != 1 else (1, 1)
        return lo.reshape(mask, (mask.shape[0], *heads, *mask.shape[2:]))
    return mask


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _attention(
    lo: Lowering,
    q: Lowered,
    k: Lowered,
    v: Lowered,
    dropout: float = 0.0,
    is_causal: bool = False,
    attn_mask: Lowered | None = None,
    scale: float | None = None,
) -> Any:
    later = _later(lo, q, k, dropout, is_causal, attn_mask)
    reals = _grouped(lo, q, k, v)
    p = _scores(lo, reals[0], reals[1], later, attn_mask, _scale(q, scale))
    shape, dtype = lo.expected[1]
    why = "the logarithm of attention's sums, which only its derivative reads"
    result = lo.reshape(lo.emit("matmul", p, reals[2]), (*q.shape[:-1], v.shape[-1]))
    return result, Undefined(shape, dtype, why)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(
    lo: Lowering,
    gradient: Lowered,
    q: Lowered,
    k: Lowered,
    v: Lowered,
    out: Lowered,
    sums: Lowered,
    dropout: float,
    is_causal: bool,
    attn_mask: Lowered | None = None,
    scale: float | None = None,
) -> Any:
    later = _later(lo, q, k, dropout, is_causal, attn_mask)
    factor = _scale(q, scale)
    queries, keys, values = _grouped(lo, q, k, v)
    p = _scores(lo, queries, keys, later, attn_mask, factor)
    g = lo.real(lo.reshape(lo.real(gradient), (*p.shape[:-1], v.shape[-1])))
    rows, columns = len(p.shape) - 2, len(p.shape) - 1
    dv = lo.emit("matmul", lo.real(lo.transpose(p, rows, columns)), g)
    dp = lo.emit("matmul", g, lo.real(lo.transpose(values, rows, columns)))
    weighted = lo.mul(dp, p)
    ds = lo.scale(lo.sub(weighted, lo.mul(p, lo.sum(weighted, (columns,), True))), factor)
    dq = lo.reshape(lo.emit("matmul", lo.real(ds), keys), q.shape)
    dk = lo.emit("matmul", lo.real(lo.transpose(ds, rows, columns)), queries)
    return dq, _ungrouped(lo, dk, k), _ungrouped(lo, dv, v)
