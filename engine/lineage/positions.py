"""Which positions of a reduced range a partial sum runs over, as parts.

A part repeats with its ``extent``: it holds for positions i with i mod extent in [start, start +
size).  Several parts of one token hold together: each takes whole periods of the ones inside it, so
that they are intervals of digits of i, the innermost first.  A sum over ranks or microbatches along
one digit makes its interval longer; what is summed along all digits is no part any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.layout import Misaligned
from shardproof.engine.lineage.lineage import Part


def normal(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts in order: by token, the innermost first; whole ranges are dropped, and an interval
    inside one single period of the next is an interval of that one."""
    result: list[Part] = []
    for part in sorted(parts, key=lambda p: (p.token, p.extent)):
        if part.size == part.extent and part.start == ZERO:
            continue
        inner = result[-1] if result and result[-1].token == part.token else None
        if inner is not None and part.size == inner.extent:
            result[-1] = part._replace(start=part.start + inner.start, size=inner.size)
        else:
            result.append(part)
    return tuple(result)


def along(part: Part, axis: str, extent: int, mesh: Mapping[str, int]) -> list[Part]:
    """The union of a part's intervals along a coordinate that it moves with; raises `Misaligned` if
    they overlap, or are no intervals of digits.  A coordinate may count them from the last one on
    (shards that are dealt in reverse).  ``mesh``: extents of the coordinates."""
    step = part.start.coefficient(axis)
    first = 0 if step > 0 else extent - 1
    origin = part._replace(start=part.start.fix(axis, first))
    return [origin] if extent == 1 else repeated(origin, abs(step), extent, mesh)


def repeated(part: Part, step: int, count: int, mesh: Mapping[str, int]) -> list[Part]:
    """The union of ``count`` > 1 intervals, ``step`` apart, of which ``part`` is the first and the
    last is inside its period too; raises `Misaligned` as `along` does."""
    if step == part.size:
        return [part._replace(size=part.size * count)]
    if step < part.size or part.extent % step:
        raise Misaligned
    inner, outer = _digits(part.start, step)
    least, most = _span(inner, mesh)
    if not 0 <= least <= most <= step - part.size:
        raise Misaligned
    return [
        part._replace(start=inner, extent=step),
        part._replace(start=outer, size=step * count),
    ]


def union(parts: Sequence[Part], mesh: Mapping[str, int]) -> list[Part] | None:
    """The positions of several parts of one token and extent, if they are disjoint, and adjoin or
    lie equally far apart."""
    origin = parts[0].start
    offsets = [part.start - origin for part in parts]
    if any(offset.terms for offset in offsets):
        return None
    ranked = sorted((offset.const, part.size) for offset, part in zip(offsets, parts, strict=True))
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
    joined = parts[0]._replace(start=origin + first, size=size)
    if len(runs) == 1:
        return [joined]
    try:
        return repeated(joined, step, len(runs), mesh)
    except Misaligned:
        return None


def _digits(start: Affine, step: int) -> tuple[Affine, Affine]:
    """A position as (what is inside a block of ``step``, a multiple of ``step``)."""
    inner = {axis: c for axis, c in start.terms if c % step}
    outer = {axis: c for axis, c in start.terms if not c % step}
    rest = start.const % step
    return affine(rest, inner), affine(start.const - rest, outer)


def _span(value: Affine, mesh: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest value; raises `Misaligned` if they are not known."""
    try:
        return value.span(mesh)
    except KeyError:
        raise Misaligned from None
