"""Which positions of a reduced range a partial sum runs over, as parts.

A part repeats with its ``extent``: it holds for positions i with i mod extent in [start, start +
size).  Several parts of one reduction hold together: each takes whole periods of the ones inside
it, so that they are intervals of digits of i, the innermost first.  A sum over ranks or
microbatches along one digit makes its interval longer; what is summed along all digits is no part
any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.lineage import PartialRange
from shardproof.engine.lineage.views import Misaligned


def normal(partials: Sequence[PartialRange]) -> tuple[PartialRange, ...]:
    """Parts in order: by reduction, the innermost first; whole ranges are dropped, and an interval
    inside one single period of the next is an interval of that one.

    Example: ``#3[0 +16 of 16]`` is everything and is dropped.
    """
    result: list[PartialRange] = []
    for partial in sorted(partials, key=lambda p: (p.reduction, p.extent)):
        if partial.size == partial.extent and partial.start == ZERO:
            continue
        inner = result[-1] if result and result[-1].reduction == partial.reduction else None
        if inner is not None and partial.size == inner.extent:
            result[-1] = partial._replace(start=partial.start + inner.start, size=inner.size)
        else:
            result.append(partial)
    return tuple(result)


def along(
    partial: PartialRange, axis: str, extent: int, mesh: Mapping[str, int]
) -> list[PartialRange]:
    """The union of a part's intervals along a coordinate that it moves with; raises `Misaligned` if
    they overlap, or are no intervals of digits.  A coordinate may count them from the last one on
    (shards that are dealt in reverse).  ``mesh``: extents of the coordinates.

    Example: ``#3[<8*tp> +8 of 16]`` over two ranks ``tp`` is ``#3[0 +16 of 16]``, the whole sum.
    """
    step = partial.start.coefficient(axis)
    first = 0 if step > 0 else extent - 1
    origin = partial._replace(start=partial.start.fix(axis, first))
    return [origin] if extent == 1 else repeated(origin, abs(step), extent, mesh)


def repeated(
    partial: PartialRange, step: int, count: int, mesh: Mapping[str, int]
) -> list[PartialRange]:
    """The union of ``count`` > 1 intervals, ``step`` apart, of which ``partial`` is the first and
    the last is inside its period too; raises `Misaligned` as `along` does.

    Example: two intervals 16 apart, of which ``#3[0 +8 of 32]`` is the first, are ``#3[0 +8 of
    16]``.
    """
    if step == partial.size:
        return [partial._replace(size=partial.size * count)]
    if step < partial.size or partial.extent % step:
        raise Misaligned
    inner, outer = digits(partial.start, step)
    least, most = span(inner, mesh)
    if not 0 <= least <= most <= step - partial.size:
        raise Misaligned
    return [
        partial._replace(start=inner, extent=step),
        partial._replace(start=outer, size=step * count),
    ]


def union(partials: Sequence[PartialRange], mesh: Mapping[str, int]) -> list[PartialRange] | None:
    """The positions of several parts of one reduction and extent, if they are disjoint, and adjoin
    or lie equally far apart.

    Example: ``#3[0 +8 of 32]`` and ``#3[8 +8 of 32]`` are ``#3[0 +16 of 32]``; twice the same
    interval is no union.
    """
    origin = partials[0].start
    offsets = [partial.start - origin for partial in partials]
    if any(offset.terms for offset in offsets):
        return None
    ranked = sorted(
        (offset.const, partial.size) for offset, partial in zip(offsets, partials, strict=True)
    )
    runs: list[tuple[int, int]] = []
    for start, size in ranked:
        end = sum(runs[-1]) if runs else start
        if start < end:
            return None
        if runs and start == end:
            start, size = runs[-1][0], runs[-1][1] + size
            runs.pop()
        runs.append((start, size))
    (first, size), step = runs[0], runs[1][0] - runs[0][0] if len(runs) > 1 else 0
    if any(run != (first + i * step, size) for i, run in enumerate(runs)):
        return None
    joined = partials[0]._replace(start=origin + first, size=size)
    if len(runs) == 1:
        return [joined]
    try:
        return repeated(joined, step, len(runs), mesh)
    except Misaligned:
        return None


def digits(start: Affine, step: int) -> tuple[Affine, Affine]:
    """A position as (what is inside a block of ``step``, a multiple of ``step``).

    Example: ``<tp> + 6`` in blocks of 4 is ``(<tp> + 2, 4)``.
    """
    inner = {axis: c for axis, c in start.terms if c % step}
    outer = {axis: c for axis, c in start.terms if not c % step}
    rest = start.const % step
    return affine(rest, inner), affine(start.const - rest, outer)


def span(value: Affine, mesh: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest value; raises `Misaligned` if they are not known.

    Example: of ``2*<tp> + 1`` over four ranks ``tp``, (1, 7).
    """
    try:
        return value.span(mesh)
    except KeyError:
        raise Misaligned from None
