"""Scores that are minus infinity where a mask hides them: padding, windows, documents, prefixes.

Minus infinity is no number, so such scores are numbers and what is kept of them, until a softmax
reads both: ``kept * exp(x - c) / sum(kept * exp(x - c))`` is the softmax of the masked scores for
every c. (Causal masks have operators of their own: `attention.causal`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from typing import Any, Final, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.alike import alike
from shardproof.frontends.aten.bands import Window, as_table, window
from shardproof.frontends.aten.bits import (
    Additive,
    Bits,
    Run,
    entries,
    everywhere,
    mask_along_one,
    plane,
    runs,
    shown_columns,
    stretches,
)
from shardproof.frontends.aten.constants import as_flags, constant
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    broadcast,
    dimensions,
    fraction,
    reduced,
)
from shardproof.frontends.aten.masks import ONE, flags, inverse, numbers, step
from shardproof.frontends.aten.positions import Compared, Positions
from shardproof.frontends.aten.positive import is_positive
from shardproof.frontends.aten.roots import maker, value
from shardproof.frontends.aten.scores import Hidden, nothing
from shardproof.frontends.aten.shown import has_all, known_line, line_of, stretch

Mask: TypeAlias = Compared | Bits

#: Stretches of ones and zeros that a mask along one dimension is joined of.
MOST_STRETCHES = 16


def hidden_after(mask: Mask, shape: tuple[int, ...]) -> int | None:
    """The position of the first query, where a mask of scores [..., queries, keys] is true exactly
    where the key comes after the query; None: it is another mask, or hides all keys of a query.

    Example: of the mask ``torch.ones(4, 4).triu(1)`` of 4 queries and 4 keys it is 0; of a mask [4,
    6] that is true where ``key - query >= 3``, as a cache of two keys has it, it is 2.
    """
    if isinstance(mask, Bits):
        return None
    first = _first(mask, shape)
    return first if first is not None and first >= 0 else None


def _first(mask: Compared, shape: tuple[int, ...]) -> int | None:
    """As `hidden_after`, negative where keys of the first queries are all hidden."""
    if len(shape) < 2:
        return None
    of = mask.expand(shape).of
    return -1 - of.const if of.steps == (*(0 for _ in shape[:-2]), -1, 1) else None


def position_flags(lo: Lowering, mask: Mask) -> Real:
    """A mask of positions as 0 and 1: in pieces (`in_pieces`), or a table.

    Example: ``torch.ones(4, 4).tril().bool()`` is the triangle of ones [1, 4, 4], viewed as [4, 4].
    """
    joined = in_pieces(lo, mask)
    return as_flags(lo, mask) if joined is None else joined


def in_pieces(lo: Lowering, mask: Mask) -> Real | None:
    """A mask of positions as 0 and 1: stretches of one dimension, or parts of triangles; None: it
    is another one.

    Example: ``torch.arange(8) < 3`` is three ones and five zeros, joined.
    """
    joined = _stretches(lo, mask)
    if joined is not None:
        return joined
    if isinstance(mask, Bits):
        for hidden, inverted in ((mask, False), (mask.inverse(), True)):
            try:
                flat = entries(plane(hidden, mask.shape))
                start, stop = shown_columns(flat)
                alike = runs(flat[:, start:stop])
            except Unsupported:
                continue
            if any(run.last is not None and run.last == run.least for run in alike):
                break  # A diagonal: of triangles, its first row would be another one than the rest.
            own = window(flat)
            table = None if own is None else as_table(lo, own)
            if table is None:
                shown = lo.concat([_hidden(lo, run, stop - start) for run in alike], 0)
            else:
                shown = inverse(lo, table)
            rows, columns = flat.shape
            left, right = (Const(ONE, (rows, n), "float32") for n in (start, columns - stop))
            holds = lo.concat([left, shown, right], 1)
            holds = inverse(lo, holds) if inverted else holds
            return flags(lo.real(lo.expand(holds, mask.shape)))
        return None
    kept: Any
    for later, inverted in ((mask, True), (mask.inverse(), False)):
        first = _first(later, mask.shape)
        if first is not None:
            *_, queries, keys = mask.shape
            table = as_table(lo, Window(first, -queries, queries, keys))
            if table is not None:
                kept = lo.expand(table, mask.shape)
                return flags(lo.real(inverse(lo, kept) if inverted else kept))
            row, column = max(first, 0), max(-first, 0)
            length = max(row + queries, column + keys)
            ones = lo.real(Const(Fraction(1), (1, length, length), "float32"))
            kept = lo.emit("tril", ones)
            kept = lo.slice(lo.slice(kept, 1, row, queries), 2, column, keys)
            kept = lo.expand(lo.reshape(kept, (queries, keys)), mask.shape)
            return flags(lo.real(inverse(lo, kept) if inverted else kept))
    return None


def _stretches(lo: Lowering, mask: Mask) -> Real | None:
    """A mask that varies along one dimension, in few stretches, as ones and zeros that are joined;
    None: it is another one.

    Example: ``torch.arange(8) < 3`` is three ones and five zeros.
    """
    line = mask_along_one(mask)
    ends = [] if line is None else stretches(line.entries)
    if line is None or len(ends) > MOST_STRETCHES:
        return None
    dim, bits = line
    parts = [
        Const(Fraction(int(bits[start])), _wide(mask.shape, dim, stop - start), "float32")
        for start, stop in ends
    ]
    return flags(lo.real(lo.expand(lo.concat(parts, dim), mask.shape)))


def _wide(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return tuple(size if d == dim else 1 for d in range(len(shape)))


def _hidden(lo: Lowering, run: Run, keys: int) -> Lowered:
    """1 where a run of rows hides a key, else 0."""
    shape = (run.rows, keys)
    total: Any = Const(Fraction(0), shape, "float32")
    if run.last is not None:
        later = Compared(Positions(-1 - run.last, (-1, 1), shape, "int64"))
        total = lo.add(total, numbers(lo, position_flags(lo, later), "float32"))
    if run.least is not None:
        earlier = Compared(Positions(run.least - 1, (1, -1), shape, "int64"))
        total = lo.add(total, numbers(lo, position_flags(lo, earlier), "float32"))
    return total  # type: ignore[no-any-return]


def as_numbers(lo: Lowering, mask: Operand, dtype: str = "float32") -> Any:
    """Any mask as 0 and 1: of positions, of ids, of comparisons.

    Example: ``ids != 0`` is 1 where the id is not 0, an operator over the ids.
    """
    if isinstance(mask, (Compared, Bits)):
        mask = position_flags(lo, mask)
    if isinstance(mask, Ids):
        mask = lo.real(mask)
    return numbers(lo, mask, dtype)


def operand(lo: Lowering, x: Operand) -> Any:
    """A mask as numbers of the result's type, any other operand as it is.

    Example: in ``scores * (ids != 0)`` the mask is 0 and 1 in float32.
    """
    if isinstance(x, (Real, Compared, Bits)) and x.dtype == "bool":
        return as_numbers(lo, x, lo.expected[0][1])
    return x


def keep(lo: Lowering, x: Operand, kept: Lowered) -> Hidden:
    """``x`` where ``kept`` is 1, minus infinity elsewhere.

    Example: ``scores.masked_fill(mask, -inf)`` is ``keep(lo, scores, 1 - mask)``.
    """
    if isinstance(x, (int, float)):
        x = Const(Fraction(x), (), "float32")
    given = masked(lo, x)
    shape = broadcast(x.shape, kept.shape)
    scores: Any = x
    if given is not None:
        scores, kept = given.scores, lo.mul(given.kept, kept)
    return Hidden(lo, lo.expand(scores, shape), lo.expand(kept, shape), x.dtype)


def shown_at(
    lo: Lowering, x: Hidden, mask: Lowered, number: float | Fraction, dims: Sequence[int]
) -> Hidden:
    """Masked scores, ``number`` where a mask is 1: there it is kept, whatever was hidden.  Along
    ``dims`` every line has such a place.  Raises `Unsupported` for what is no number.

    Example: ``torch.full((4, 6), -inf).scatter(-1, scores.topk(2).indices, 0)`` is 0 at two places
    of each row, which are all that it keeps.
    """
    if not isfinite(number):
        raise Unsupported(f"masked scores of which some become {number}")
    lines = frozenset(dims)
    if x.keeps_nothing:
        return Hidden(lo, Const(fraction(number), x.shape, x.dtype), mask, x.dtype, lines)
    others = inverse(lo, mask)
    kept = inverse(lo, lo.mul(inverse(lo, x.kept), others))
    # What is hidden may be any number: a low one leaves the largest to what is kept, of which a
    # row may have nothing but that (its first word is padding, and causal masks hide the others).
    own = lo.mul(x.kept, others) if number < 0 else others
    scores = lo.add(lo.mul(x.scores, own), lo.scale(inverse(lo, own), fraction(number)))
    return Hidden(lo, scores, kept, x.dtype, lines)


def cleared(
    lo: Lowering, x: Hidden, kept: Lowered, other: Operand, mask: Operand | None = None
) -> Any:
    """Scores where ``kept`` is 1, ``other`` where it is 0: numbers only, where the scores keep the
    same values, computed alike, or a ``mask`` of constants has all that hides them; else they are
    hidden where ``kept`` is 1 and they were before.

    Example: ``log_softmax(scores.masked_fill(mask, -inf)).masked_fill(mask, 0)`` has numbers only,
    ``scores.masked_fill(later, -inf).masked_fill(padding, -1e9)`` is -1e9 at all padding.
    """
    kept = lo.expand(kept, x.shape)
    if isinstance(other, float) and not isfinite(other):
        raise Unsupported(f"masked scores of which some become {other}")
    if not has_all(mask, x.where) and not alike(lo, x.kept, kept):
        number = other.value if isinstance(other, Const) else other
        if not isinstance(number, (int, float, Fraction)):
            raise Unsupported("masked scores, with minus infinity, where a mask writes a tensor")
        return shown_at(lo, x, inverse(lo, kept), number, tuple(x.shown))
    shown = lo.mul(x.scores, kept)
    if isinstance(other, (int, float)) and not other:
        return shown
    if isinstance(other, (int, float)):
        other = Const(fraction(other), (), x.dtype)
    return lo.add(shown, lo.mul(other, inverse(lo, kept)))


def is_zero_there(lo: Lowering, x: Operand, mask: Operand) -> bool:
    """Whether a value is zero already wherever a mask of positions is true.

    Example: the gradient of scores that the same mask hides from a softmax is.
    """
    if not isinstance(x, Real) or x.number not in lo.zeros:
        return False
    if not isinstance(mask, (Compared, Bits)) or broadcast(x.shape, mask.shape) != x.shape:
        return False
    own, other = lo.zeros[x.number], mask.expand(x.shape)
    if isinstance(own, Bits) and isinstance(other, Bits):
        return bool((own.array == other.array).all())
    return isinstance(own, Compared) and own == other


def is_nothing(x: Operand) -> bool:
    """Whether an operand is minus infinity everywhere.

    Example: ``torch.tensor(-inf)`` is, ``torch.full((4, 4), -inf).triu(1)`` is not.
    """
    if isinstance(x, Hidden):
        return x.keeps_nothing
    if isinstance(x, Additive):
        return bool(everywhere(x.where))
    return isinstance(x, float) and x == -float("inf")


def opened(lo: Lowering, x: Operand) -> Any:
    """Scores of which an operator hides some by a mask of positions, as masked scores, for what
    does not read a mask but entries: these, a view of them, a positive number times them, a number
    added to them, or they beside others; others as they are.  Every row of keys shows one.

    Example: ``scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -inf)``, of which the largest two
    of each row are asked for.
    """
    if not isinstance(x, Real):
        return x
    if x.number in lo.hides:
        scores, where = lo.hides[x.number]
        kept = keep(lo, scores, inverse(lo, as_numbers(lo, where)))
        bits = where if isinstance(where, Bits) else known_line(where)
        return replace(kept, shown=frozenset({len(x.shape) - 1}), where=bits)
    op = maker(lo, x.number) if lo.hides else None
    if op is None or op.backward:
        return x
    if op.name == "concat":
        parts = [opened(lo, value(lo, n)) for n in op.inputs]
        hidden = any(isinstance(part, Hidden) for part in parts)
        return concatenated(lo, parts, dimensions(x.shape, op.attrs["dim"])[0]) if hidden else x
    if op.name in ("add", "sub") and len(op.inputs) == 2 and not op.attrs:
        first, second = (opened(lo, value(lo, n)) for n in op.inputs)
        if not isinstance(first, Hidden) or isinstance(second, Hidden):
            return x
        rule = lo.sub if op.name == "sub" else lo.add
        return replace(first, scores=lo.real(rule(first.scores, second)))
    if op.name not in _MOVED or len(op.inputs) != 1:
        return x
    inside = opened(lo, value(lo, op.inputs[0]))
    moved = _MOVED[op.name](lo, inside, op.attrs) if isinstance(inside, Hidden) else None
    return x if moved is None else moved


def _scaled(lo: Lowering, x: Hidden, attrs: Mapping[str, Any]) -> Hidden | None:
    other = attrs.get("other")
    scale = other if isinstance(other, Fraction | int) and other > 0 else None
    return None if scale is None else replace(x, scores=lo.scale(x.scores, Fraction(scale)))


def _shifted(lo: Lowering, x: Hidden, attrs: Mapping[str, Any]) -> Hidden | None:
    other = attrs.get("other")
    if not isinstance(other, Fraction | int) or "alpha" in attrs:
        return None
    return replace(x, scores=lo.shift(x.scores, Fraction(other)))


#: How masked scores are moved, scaled or shifted, as an operator does it; None: they are not.
_MOVED: Final[Mapping[str, Callable[[Lowering, Hidden, Any], Any]]] = {
    "view": lambda lo, x, attrs: lo.reshape(x, attrs["size"]),
    "expand": lambda lo, x, attrs: lo.expand(x, attrs["size"]),
    "permute": lambda lo, x, attrs: lo.permute(x, attrs["dims"]),
    "slice": lambda lo, x, attrs: x.slice(attrs["dim"], attrs["start"], attrs["size"]),
    "mul": _scaled,
    "add": _shifted,
}


def masked(lo: Lowering, x: Operand) -> Hidden | None:
    """An operand as masked scores; None where nothing of it is minus infinity.

    Example: ``torch.full((4, 4), -inf).triu(1)`` keeps 0 up to the diagonal.
    """
    if isinstance(x, Hidden):
        return x
    if isinstance(x, Additive):
        kept = as_numbers(lo, x.where.inverse())
        return Hidden(lo, lo.expand(offset(lo, x), x.shape), kept, x.dtype)
    return None


def offset(lo: Lowering, x: Additive) -> Any:
    """The numbers that are added to scores beside minus infinity.

    Example: of the slopes of ALiBi under a causal mask a table of them; of a causal mask alone 0.
    """
    if x.numbers is None:
        return Const(Fraction(0), x.shape, x.dtype)
    own = x.numbers.dtype.name
    made = constant(lo, x.numbers.tobytes(), x.shape, own)
    if own == x.dtype:
        return made
    return lo.emits("to", [lo.real(made)], {"dtype": x.dtype}, x.dtype)[0]


def stretched(lo: Lowering, x: Operand, y: Operand, over: bool = False) -> Hidden | None:
    """Masked scores times a positive number, or divided by one (``over``): minus infinity stays so;
    None of other products.

    Example: ``scores.masked_fill(mask, -inf) / 0.07``, and times ``logit_scale.exp()``.
    """
    scores, factor = (x, y) if isinstance(x, Hidden) or over else (y, x)
    if not isinstance(scores, Hidden) or isinstance(factor, (Hidden, Additive)):
        return None
    number = factor.value if isinstance(factor, Const) else factor
    known = isinstance(number, (int, float, Fraction)) and isfinite(number) and number > 0
    if not known and not (isinstance(factor, Real) and is_positive(lo, factor)):
        return None
    made = lo.div(scores.scores, factor) if over else lo.mul(scores.scores, factor)
    return replace(scores, scores=made, kept=lo.expand(scores.kept, made.shape))


def concatenated(lo: Lowering, xs: Sequence[Lowered], dim: int) -> Any:
    """Tensors one after the other, of which some may be masked scores: all are kept of the others.

    Example: the score of a pair [4, 1] before those with all others [4, 8], of which a mask hides
    the rows' own (a contrastive loss).
    """
    parts = [masked(lo, x) for x in xs]
    if not any(parts):
        return lo.concat(xs, dim)
    parts = [masked(lo, opened(lo, x)) for x in xs]
    scores = [x if part is None else part.scores for x, part in zip(xs, parts, strict=True)]
    kept = [
        Const(ONE, x.shape, x.dtype) if part is None else part.kept
        for x, part in zip(xs, parts, strict=True)
    ]
    kept_of_all = lo.concat(kept, dim)
    if not all(part is None or part.keeps_nothing for part in parts):
        return Hidden(lo, lo.concat(scores, dim), kept_of_all, xs[0].dtype)
    shape = kept_of_all.shape
    where = line_of(shape, dim, xs, parts)
    of = _written_over(lo, xs, parts, dim, shape)
    return Hidden(lo, of or lo.concat(scores, dim), kept_of_all, xs[0].dtype, where=where)


def _written_over(
    lo: Lowering, xs: Sequence[Lowered], hidden: Sequence[Hidden | None], dim: int, shape: Any
) -> Real | None:
    """The scores of which all but one stretch of positions became minus infinity: what is hidden
    may be any number, so also what was there; None: it is not known what was there.

    Example: ``z[:, 12:] = -inf`` is read as ``z`` whose columns from 12 on are hidden.
    """
    shown = [n for n, part in enumerate(hidden) if part is None]
    x = xs[shown[0]] if len(shown) == 1 else None
    op = maker(lo, x.number) if isinstance(x, Real) else None
    if op is None or op.backward or op.name != "slice" or op.attrs.get("dim") != dim:
        return None
    of = value(lo, op.inputs[0])
    before = sum(x.shape[dim] for x in xs[: shown[0]])
    return of if of.shape == shape and op.attrs.get("start") == before else None


def softmax(lo: Lowering, x: Hidden, dim: int, safe: bool) -> Any:
    """The softmax of masked scores; of a row of which nothing is kept it is 0 where it is ``safe``,
    and undefined elsewhere; raises `Unsupported` where that is known of all.

    Example: scores [0, 5, 0] that keep the first two entries give [1 / (1 + e^5), e^5 / (1 + e^5),
    0].
    """
    if x.keeps_nothing and safe:
        return Const(Fraction(0), x.shape, x.dtype)
    _, e, total, _ = _exponentials(lo, x, (dim,))
    if safe:
        total = lo.add(total, inverse(lo, step(lo, total)))
    return lo.div(e, total)


def log_softmax(lo: Lowering, x: Hidden, dim: int, given: Real | None = None) -> Hidden:
    """The logarithm of the softmax of masked scores, minus infinity where nothing is kept;
    ``given``: the same scores as an operator has hidden them.

    Example: scores [0, 5, 0] that keep the first two entries give [-log(1 + e^5), 5 - log(1 + e^5)]
    and minus infinity.
    """
    shifted, e, total, most = _exponentials(lo, x, (dim,), given)
    y = lo.real(lo.sub(shifted, lo.unary("log", total)))
    if dim == len(x.shape) - 1:
        flat = [lo.real(lo.reshape(v, x.shape[:-1])) for v in (total, most)]
        lo.exponentials[y.number] = (shifted, e, flat[0], lo.real(x.scores), flat[1])
    return Hidden(lo, y, x.kept, x.dtype, where=x.where)


def logsumexp(lo: Lowering, x: Hidden, dims: Sequence[int], keepdim: bool) -> Any:
    """The logarithm of the sum of the exponentials of what is kept, minus infinity where that is
    nothing.

    Example: of scores [0, 5, 0] that keep the first two entries it is log(1 + e^5).
    """
    if x.keeps_nothing:
        return nothing(lo, reduced(x.shape, dims, keepdim), x.dtype)
    _, _, total, most = _exponentials(lo, x, dims)
    result = lo.add(lo.unary("log", total), most)
    return lo.reshape(result, reduced(x.shape, dims, keepdim))


def _exponentials(
    lo: Lowering, x: Hidden, dims: Sequence[int], given: Real | None = None
) -> tuple[Real, Real, Real, Real]:
    """Scores less their maximum, the exponentials of what is kept, their sum, and the maximum: of
    what an operator has hidden, as it is ``given``, that of what is kept."""
    if x.keeps_nothing:
        raise Unsupported("a softmax of nothing but minus infinity, which is no number")
    scores = lo.real(x.scores)
    part = stretch(x)
    part = part if part is not None and part.dim in dims else None
    seen = given or scores if part is None else part.of(lo, scores)
    most = lo.emit("amax", seen, dim=tuple(dims), keepdim=True)
    lo.shifts.add(most.number)
    shifted = lo.real(lo.sub(scores, most))
    if part is not None:
        e = lo.real(part.among(lo, lo.unary("exp", part.of(lo, shifted)), 0, shifted.shape))
    elif given is not None:
        e = lo.real(lo.unary("exp", lo.real(lo.sub(given, most))))
    else:
        e = lo.real(lo.mul(lo.unary("exp", shifted), x.kept))
    return shifted, e, lo.real(lo.sum(e, dims, True)), most
