"""Whether two values can be parts of one tensor, from their records and what they are views of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.cutting import cut_up
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Dim, Lineage
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.plan.recorded import RecordedSlice


def agree(a: RecordedSlice, x: Lineage, b: RecordedSlice, y: Lineage) -> bool:
    """Whether two values can be the boxes that they claim to be of one full tensor.

    Example: ``n1[a0[4 +4 of 8], a1[4]]`` can be box ``[4:8, 0:4]`` of the tensor of which
    ``n1[a0[0 +4 of 8], a1[4]]`` is ``[0:4, 0:4]``, and not that box too.

    Inside the other's box a value must be the very elements; beyond it, what lies as far on.
    """
    if len(x.shape) != len(y.shape):
        return False
    if has_places(x, y):
        return _agree_inside(a, x, b, y)
    if len(x.addends) != len(y.addends):
        return False
    if not x.addends or (a.low == b.low and x == y):
        return True
    if len(x.addends) > 1:
        # Partial sums of several addends: in the same box the same ones.
        return a.low != b.low or a.high != b.high or set(x.addends) == set(y.addends)
    one, other = _plain(x.addends[0]), _plain(y.addends[0])
    if one.factor != other.factor or one.node != other.node:
        return False
    if set(one.partials) != set(other.partials):
        return False
    shift = tuple(q - p for p, q in zip(a.low, b.low, strict=True))
    if _translates(one, other, shift):
        return True
    back = tuple(-n for n in shift)
    return any(
        _follows(one, x.shape, other, y.shape, shift, lead)
        or _follows(other, y.shape, one, x.shape, back, lead)
        for lead in (_outermost, _widest)
    )


def _plain(addend: Addend) -> Addend:
    """An addend without constant digits of one position, before which it would go on."""
    dims = tuple(
        tuple(a for a in dim if a.axis != BROADCAST or a.size != 1) for dim in addend.view.dims
    )
    return addend._replace(view=addend.view._replace(dims=dims))


def overlap(a: RecordedSlice, b: RecordedSlice) -> bool:
    """Whether two boxes of one tensor have a position in common.

    Example: ``[0:4, 0:8]`` and ``[2:6, 0:8]`` do, ``[0:4, 0:8]`` and ``[4:8, 0:8]`` do not.
    """
    return all(
        max(p, q) < min(r, s) for p, q, r, s in zip(a.low, b.low, a.high, b.high, strict=True)
    )


def lie_apart(x: Lineage) -> bool:
    """Whether the addends of a value lie side by side, so that it is no sum of them.

    Example: ``n1[a0[8]] in 0[0 +8 of 16] + n2[a0[8]] in 0[8 +8 of 16]`` do, ``n1[a0[16]] +
    n2[a0[16]]`` do not, and one addend by itself does.
    """
    return all(_are_apart(one, other) for one, other in combinations(x.addends, 2))


def _are_apart(one: Addend, other: Addend) -> bool:
    return any(
        p.dim == q.dim
        and p.extent == q.extent
        and (p.start + p.size <= q.start or q.start + q.size <= p.start)
        for p in one.places
        for q in other.places
    )


def _agree_inside(a: RecordedSlice, x: Lineage, b: RecordedSlice, y: Lineage) -> bool:
    """`agree`, of values that lie side by side in their tensors: what both boxes have they have
    alike. What lies beyond a place says nothing, and neither does what is no view there."""
    if not overlap(a, b):
        return True
    low = tuple(map(max, a.low, b.low))
    high = tuple(map(min, a.high, b.high))
    try:
        return _inside(a, x, low, high) == _inside(b, y, low, high)
    except Misaligned:
        return True


def _inside(
    claim: RecordedSlice, x: Lineage, low: tuple[int, ...], high: tuple[int, ...]
) -> set[Addend]:
    """The addends of a value in a box of the full tensor, with single positions in no dimension."""
    addends, shape = list(x.addends), list(x.shape)
    for dim, (start, stop, first) in enumerate(zip(low, high, claim.low, strict=True)):
        at, size = affine(start - first), stop - start
        addends = [p for t in addends for p in cut_up(t, tuple(shape), dim, at, size)]
        shape[dim] = size
    return {t._replace(view=settled(t.view)) for t in joined(addends)}


def difference(x: Lineage, y: Lineage) -> str:
    """What keeps one value from being part of what another one is part of, in words.

    Example: "another part" for rows 4 to 7 beside rows 0 to 3 of one node, "a multiple" for twice
    these.
    """
    if {t.node for t in x.addends} != {t.node for t in y.addends}:
        return "no part"
    if {t.factor for t in x.addends} != {t.factor for t in y.addends}:
        return "a multiple"
    if {p for t in x.addends for p in t.partials} != {p for t in y.addends for p in t.partials}:
        return "another addend"
    return "another part"


def _translates(x: Addend, y: Addend, shift: tuple[int, ...]) -> bool:
    """Whether two views differ by nothing but where the outermost digits of their dimensions begin,
    and that is as far as the boxes are apart (the usual case, seen without looking at positions).
    """
    if x.view.fixed != y.view.fixed:
        return False
    for mine, other, distance in zip(x.view.dims, y.view.dims, shift, strict=True):
        if mine == other:
            if distance:
                return False
            continue
        if not mine or not other or mine[1:] != other[1:] or mine[0][:3] != other[0][:3]:
            return False
        inner = 1
        for interval in mine[1:]:
            inner *= interval.size
        if mine[0].start * inner + distance != other[0].start * inner:
            return False
    return True


def _follows(
    x: Addend,
    size: tuple[int, ...],
    y: Addend,
    length: tuple[int, ...],
    shift: tuple[int, ...],
    lead: Callable[[Dim], int],
) -> bool:
    """Whether ``y`` reads at every point what ``x`` reads ``shift`` further on."""
    for point in _points(x, y, length):
        there = tuple(i + d for i, d in zip(point, shift, strict=True))
        expected = _position(x, there, size, lead)
        # A view that does not say how it goes on contradicts nothing.
        if expected is not None and expected != _position(y, point, length, lead):
            return False
    return True


def _points(x: Addend, y: Addend, length: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Local positions where two views could begin to differ: the origin, and along each dimension
    one step of every digit, and its end."""
    origin = (0,) * len(length)
    yield origin
    for d, n in enumerate(length):
        steps = {n - 1}
        for dim in (x.view.dims[d], y.view.dims[d]):
            step = 1
            for interval in reversed(dim):
                steps.add(step)
                step *= interval.size
        for i in sorted(steps):
            if 0 < i < n:
                yield (*origin[:d], i, *origin[d + 1 :])


def _outermost(dim: Dim) -> int:
    return 0


def _widest(dim: Dim) -> int:
    """The outermost interval that is longer than 1."""
    return next((i for i, interval in enumerate(dim) if interval.size != 1), 0)


def _position(
    addend: Addend, point: tuple[int, ...], size: tuple[int, ...], lead: Callable[[Dim], int]
) -> dict[int, Affine] | None:
    """Where in its node a view reads at a local position: per axis that is not at 0.  Beyond the
    view the digit ``lead`` goes on counting; None where there is none to count."""
    positions: dict[int, Affine] = {}
    for interval in addend.view.fixed:
        if interval.axis != BROADCAST:
            positions[interval.axis] = (
                positions.get(interval.axis, ZERO) + interval.start * interval.stride
            )
    for dim, i, n in zip(addend.view.dims, point, size, strict=True):
        if not dim and i:
            return None
        head = lead(dim) if not 0 <= i < n else -1
        rest = i
        digits = []
        for k in range(len(dim) - 1, -1, -1):
            if k == head:
                digits.append(rest)
                rest = 0
            else:
                rest, digit = divmod(rest, dim[k].size)
                digits.append(digit)
        for interval, digit in zip(reversed(dim), digits, strict=True):
            if interval.axis != BROADCAST:
                at = (interval.start + digit) * interval.stride
                positions[interval.axis] = positions.get(interval.axis, ZERO) + at
    return {axis: at for axis, at in positions.items() if at != ZERO}
