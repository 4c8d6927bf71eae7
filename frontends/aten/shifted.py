"""Labels that are a batch tensor moved along a dimension, and the ignored class where it ends.

Language models compare each position with the next token: ``labels[:, 1:]``, and a constant behind
it.  Kept part by part, everything that is computed of the last position is a value of its own.  So
the moved labels are an input instead, of which a proof holds whatever it is; at the ignored
positions a mask of constants makes it count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten.constants import constant
from shardproof.frontends.aten.filled import Filled
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.ids import ids as ids_of
from shardproof.frontends.aten.joined import Joined
from shardproof.frontends.aten.lowering import Const, Derived, Lowered, Lowering, Real
from shardproof.frontends.aten.roots import maker, value
from shardproof.frontends.aten.tables import Array
from shardproof.frontends.builder import piecewise


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of which some are ignored: ``ids`` [n], of the input ``origin``, count where ``live``
    [n] is 1, which are ``count`` (None: as a mask of the batch says).

    Example: labels [2, 4], shifted by one and padded, are 8 ids of which 6 count.
    """

    ids: Real | Ids
    live: Lowered
    count: int | None
    origin: Real

    def number(self, lo: Lowering, valid: Lowered) -> Lowered:
        """How many count, of those that are ``valid`` [n]."""
        if isinstance(valid, Const) and valid.value == 1 and self.count is not None:
            return Const(Fraction(self.count), (), valid.dtype)
        return lo.sum(lo.mul(valid, self.live), (0,))  # type: ignore[no-any-return]


def parted(lo: Lowering, target: Lowered, ignored: int) -> Labels | None:
    """Labels of which some are the ignored class, as ids and a mask; None: they are other ones.

    Example: ``labels.masked_fill(~mask, -100)`` is the labels and the mask, ``F.pad(labels, (0, 1),
    value=-100)[:, 1:]`` an input that is moved, and where it counts.
    """
    if isinstance(target, Filled) and target.number == ignored:
        return Labels(target.kept, target.live, None, target.kept.origin)
    return shifted(lo, target, ignored) if isinstance(target, Joined) else None


def shifted(lo: Lowering, target: Joined, ignored: int) -> Labels | None:
    """Labels as one input and a mask; None: they are something else.

    Example: ``F.pad(labels, (0, 1), value=-100)[:, 1:]`` of a batch tensor [2, 4] is the input
    "labels moved by 1 along dimension 1" and a mask [1, 1, 1, 0] of each row.
    """
    dim, sizes = target.dim, [p.shape[target.dim] for p in target.parts]
    own = [
        n for n, p in enumerate(target.parts) if not (isinstance(p, Const) and p.value == ignored)
    ]
    if len(own) != 1:
        return None
    part, covered = _uncovered(target.parts[own[0]], ignored)
    before = sum(sizes[: own[0]])
    moved = part.moved_input(lo) if isinstance(part, Ids) else part
    if not isinstance(moved, Real):
        return None
    moved, dim = _with_ones(lo, moved, dim)
    box = boxed(lo, moved)
    if box is None or box.kind != "batch" or sum(sizes) != box.full_shape[dim]:
        return None
    first = box.offset[dim]
    base = (*moved.shape[:dim], sum(sizes), *moved.shape[dim + 1 :])
    if first.terms or len(box.shape) != len(base) or prod(base) != prod(target.base):
        return None
    by = first.const - before
    real = _shifted_input(lo, box, dim, by, base)
    flat = (prod(target.base),)
    row = lo.real(lo.reshape(real, flat))
    live = _live(lo, target, own[0]) if covered is None else _at(lo, target, own[0], covered)
    own_ids = replace(part, origin=row, moves=(), shape=flat) if isinstance(part, Ids) else row
    count = prod(part.shape) if covered is None else None
    return Labels(own_ids, lo.reshape(live, flat), count, real)


def cut(lo: Lowering, x: Joined, dim: int, start: int, size: int) -> Any:
    """Positions of labels that are moved and padded by a class that is ignored, as those of the
    input that is moved, where the single side has it: a rank's part of the sequence; None: other
    positions, or another tensor.

    Example: of ``F.pad(ids[:, 1:], (0, 1), value=-100)`` of ids [2, 6] the positions from 3 on are
    those of "ids moved by 1 along dimension 1", of which the last one is -100.
    """
    padding = {p.value for p in x.parts if isinstance(p, Const)}
    if x.shape != x.base or dim != x.dim or size == x.shape[dim] or len(padding) != 1:
        return None
    (number,) = padding
    names = set(lo.derived)
    whole = shifted(lo, x, int(number)) if number < 0 and number.denominator == 1 else None
    if whole is None or not (set(lo.derived) - names) | names <= lo.moved or whole.count is None:
        return None
    kept = ids_of(lo.reshape(whole.ids, x.base))
    if kept is None:
        return None
    live = lo.slice(lo.reshape(whole.live, x.base), dim, start, size)
    live = _noted(lo, live, _stretches(x).take(range(start, start + size), dim))
    return Filled(kept.slice(dim, start, size), live, int(number), lo)


def how_many(lo: Lowering, x: Lowered, every: bool) -> int | None:
    """The sum of ``every`` entry of a mask of which it is known where it is 1; None: it is not.

    Example: of ``labels != -100``, where a rank's last position alone is padded.
    """
    if isinstance(x, Joined) and every:
        flags = [(_flag(p), prod(p.shape)) for p in x.parts]
        known = [flag * count for flag, count in flags if flag is not None]
        return sum(known) if len(known) == len(flags) else None
    if not every or not isinstance(x, Real):
        return None
    number = x.number
    while number not in lo.whole_tables:
        op = maker(lo, number)
        if op is None or op.name != "view":
            return None
        number = op.inputs[0]
    return int(lo.whole_tables[number].sum())


def _flag(x: Lowered) -> int | None:
    """What a predicate says of every entry; None: not the same."""
    if isinstance(x, Ids):
        return piecewise.value(x.function)
    return int(x.value) if isinstance(x, Const) else None


def _with_ones(lo: Lowering, x: Real, dim: int) -> tuple[Real, int]:
    """What a value is a view of that has other dimensions of one position, and where a dimension of
    more is there: one row alone loses its first dimension in a view, where many keep it.

    Example: of ``labels[:1, 1:].reshape(3)`` and dimension 0, ``labels[:1, 1:]`` and dimension 1.
    """
    op = maker(lo, x.number)
    while op is not None and op.name == "view" and not op.backward and x.shape[dim] > 1:
        before = value(lo, op.inputs[0])
        wide = [d for d, n in enumerate(before.shape) if n != 1]
        own = [d for d, n in enumerate(x.shape) if n != 1]
        if [before.shape[d] for d in wide] != [x.shape[d] for d in own]:
            break
        x, dim = before, wide[own.index(dim)]
        op = maker(lo, x.number)
    return x, dim


def _uncovered(part: Lowered, ignored: int) -> tuple[Lowered, Lowered | None]:
    """Labels, and where a mask does not replace them by the ignored class (None: nowhere)."""
    if isinstance(part, Filled) and part.number == ignored:
        return part.kept, part.live
    return part, None


def _live(lo: Lowering, target: Joined, own: int) -> Lowered:
    """1 at the positions of one part, 0 at others, in the shape of the whole: constants."""
    dim = target.dim
    sizes = [p.shape[dim] for p in target.parts]
    mask = np.zeros(sum(sizes), dtype=np.float32)
    before = sum(sizes[:own])
    mask[before : before + sizes[own]] = 1
    wide = tuple(n if d == dim else 1 for d, n in enumerate(target.base))
    live = lo.expand(constant(lo, mask.tobytes(), wide, "float32"), target.base)
    return _noted(lo, live, _stretches(target))


def _stretches(target: Joined) -> Array:
    """1 where there are ids, 0 at constants."""
    flags = [np.full(p.shape, int(not isinstance(p, Const))) for p in target.parts]
    return np.concatenate(flags, target.dim)


def _noted(lo: Lowering, live: Lowered, entries: Array) -> Real:
    """A mask whose entries are known from here on."""
    real = lo.real(live)
    lo.whole_tables[real.number] = entries
    return real


def _at(lo: Lowering, target: Joined, own: int, live: Lowered) -> Lowered:
    """The mask of one part, and nothing of the others, in the shape of the whole."""
    nothing = [Const(Fraction(0), p.shape, "float32") for p in target.parts]
    whole = [live if n == own else x for n, x in enumerate(nothing)]
    return lo.concat(whole, target.dim)  # type: ignore[no-any-return]


def _shifted_input(lo: Lowering, box: Shard, dim: int, by: int, shape: tuple[int, ...]) -> Real:
    """The input whose entry i is entry i + ``by`` of a batch tensor; there is one for each box."""
    name = f"{box.name} moved by {by} along dimension {dim}"
    known = next(
        (v for v, s in lo.bound if lo.shards[s].name == name and lo.shards[s].shape == shape),
        None,
    )
    offset = tuple(ZERO if d == dim else o for d, o in enumerate(box.offset))
    if known is not None and lo.shards[dict(lo.bound)[known]].offset == offset:
        return Real(known, shape, box.dtype, box.domain)
    lo.derived[name] = Derived(box.name, dim, by)
    return lo.hold(replace(box, name=name, shape=shape, offset=offset))


def boxed(lo: Lowering, x: Real) -> Shard | None:
    """The box of a named input that a value is, by slices alone; None: it is none.

    Example: ``ids[:, 1:]`` of a batch tensor [2, 4] is its box of offset (0, 1) and shape [2, 3];
    ``ids + 1`` is None.
    """
    made = {op.outputs[0]: op for op in lo.ops if op.name == "slice" and op.outputs}
    cuts: list[tuple[int, int]] = []
    number = x.number
    while number in made:
        op = made[number]
        dim, start = op.attrs["dim"], op.attrs["start"]
        if not isinstance(dim, int) or not isinstance(start, int):
            return None
        cuts.append((dim, start))
        number = op.inputs[0]
    shard = dict(lo.bound).get(number)
    if shard is None:
        return None
    box = lo.shards[shard]
    offset = list(box.offset)
    for dim, start in cuts:
        offset[dim] = offset[dim] + start
    return replace(box, offset=tuple(offset), shape=x.shape)
