"""Where positions of one of many go: what a product or a sum makes of them.

One head of eight: a product of two tensors that are of this head keeps it, the output projection
sums over it, a fused gate has two halves of which each is one.  Which it is cannot be told from the
tensors, whose dimensions do not say (`engine.lineage.floating`).  The first guess follows the
dimensions. Where it gives a value that the single-device program does not have, the other ways are
tried, and the one that gives a value that it has is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from math import gcd
from typing import NamedTuple, TypeAlias

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.floating import floating, settled, sunk, within
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Dim,
    StridedInterval,
    View,
)
from shardproof.partition.inference.digits import AsRead, Cut

#: Ways that are tried for one operator, and exposures that are combined.
MOST_WAYS, MOST_EXPOSED = 96, 4
#: Ways of rarer kinds that are tried for one operator.
MOST_RARER = 160
#: Ways to take positions together that are alike.
MOST_MATCHINGS = 12
#: After so many searches in a row that find nothing, for views of the same sizes, such a search is
#: short, and tries so many readings.
MOST_FRUITLESS, SHORT = 6, 24
#: Readings that are tried of what is made of values that ranks alone have.
SHORTER = 8
#: The largest number of blocks that are fused in a position.
MOST_DIGITS = 4


#: Choices of the digits in which views are read, where these are others than their own.
MOST_CUT = 4
#: Choices that one definition of the single-device program reads together.
MOST_TOGETHER = 4


class Way(NamedTuple):
    """Views to be read together in one way. ``addends``: views with dimensions behind their own, of
    size 1, named by ``labels`` addend by addend; ``kept``: those labels that the result keeps.

    Example: ``Way((n4[a1[3], a0[<tp> +1 of 8]], ...), ("x", "x"), "x")``: which of eight heads it
    is stays in the product of two tensors of one head.
    """

    addends: tuple[Addend, ...]
    labels: tuple[str, ...]
    kept: str


def ways(
    addends: Sequence[Addend],
    mesh: Mapping[str, int],
    letters: str,
    *,
    sums: bool,
    reads: AsRead,
) -> Iterator[Way]:
    """Other ways to read views together; ``sums``: positions may be summed over.  ``letters``: for
    new labels; ``reads``: what a view is for the single-device program.

    Example: of ``n4[a1[3]] at a0[<tp> +1 of 8]`` twice, the head is kept, is summed over, or is a
    fixed position of both.
    """
    seen: set[Way] = set()
    for way in _every_way(addends, mesh, letters, sums=sums, reads=reads):
        if way not in seen:
            seen.add(way)
            yield way


def _every_way(
    addends: Sequence[Addend],
    mesh: Mapping[str, int],
    letters: str,
    *,
    sums: bool,
    reads: AsRead,
) -> Iterator[Way]:
    roles = ("kept", "summed", "fixed") if sums else ("kept", "fixed")
    ones = [_ones(t.view) for t in addends]
    if any(own for dims in ones for own in dims):
        yield from (_with_ones(way, ones) for way in _ways(addends, mesh, letters, roles))
    yield from _as_read(addends, mesh, letters, roles, reads)
    yield from _ways(addends, mesh, letters, roles)
    apart = [_in_blocks(t) for t in addends]
    if apart != list(addends):
        yield from _ways(apart, mesh, letters, roles)
    parts = [reads.part(t) or t for t in addends] if sums else list(addends)
    if parts != list(addends):
        yield Way(tuple(parts), ("",) * len(parts), "")
        yield from _ways(parts, mesh, letters, roles)
    inside = [reads.inside(t) for t in addends]
    if inside != list(addends):
        yield from _ways(inside, mesh, letters, roles)
    # Of two positions, one may be a digit of what a dimension runs along, and the other a row.
    whole = [t._replace(view=sunk(t.view)) for t in addends]
    if whole != list(addends):
        yield from _ways(whole, mesh, letters, roles)
    yield from islice(_rarer(addends, mesh, letters, roles), MOST_RARER)


def _as_read(
    addends: Sequence[Addend],
    mesh: Mapping[str, int],
    letters: str,
    roles: Sequence[str],
    reads: AsRead,
) -> Iterator[Way]:
    """Ways in which the single-device program reads these nodes: what it reads at a fixed position
    is fixed, the other positions are labels."""
    own = [Cut(t, ()) for t in addends]
    each = [(*reads.cuts(t), plain) for t, plain in zip(addends, own, strict=True)]
    together = islice(reads.together(addends), MOST_TOGETHER)
    for chosen in chain(together, islice(product(*each), MOST_CUT)):
        if list(chosen) == own:
            continue
        views = [cut.addend for cut in chosen]
        labels = [role for role in roles if role != "fixed"]
        alone = Way(tuple(views), ("",) * len(views), "")
        for usual in (True, False):
            for way in chain([alone], _ways(views, mesh, letters, labels, usual=usual)):
                moved = tuple(
                    t._replace(view=t.view._replace(fixed=(*t.view.fixed, *cut.fixed)))
                    for t, cut in zip(way.addends, chosen, strict=True)
                )
                yield way._replace(addends=moved)


def sizes_of(addends: Sequence[Addend]) -> Hashable:
    """Sizes of views, whatever their nodes and wherever they start: the ways to read them follow
    from it, but for where positions lie.

    Example: ``n4[a1[0 +2 of 4]]`` and ``n9[a0[2 +2 of 4]]`` have one: two of four.
    """

    def of(dim: Dim) -> tuple[tuple[int, int], ...]:
        return tuple((a.extent, a.size) for a in dim)

    return tuple((tuple(map(of, t.view.dims)), of(t.view.fixed)) for t in addends)


def _ones(view: View) -> list[Dim]:
    """The axes of one position of a view, dimension by dimension.

    Example: of ``[a0[4] x a1[1], a2[8]]`` ``a1[1]`` and none: the one expert that a token goes to.
    """
    return [
        tuple(a for a in dim if a.size == 1 and a.full and a.axis != BROADCAST) for dim in view.dims
    ]


def _with_ones(way: Way, ones: Sequence[Sequence[Dim]]) -> Way:
    """A way whose views have these axes in their dimensions: what the single-device program makes
    of them has them too."""
    addends = []
    for addend, own in zip(way.addends, ones, strict=True):
        dims = [(*dim, *more) for dim, more in zip(addend.view.dims, own, strict=False)]
        view = View((*dims, *addend.view.dims[len(dims) :]), addend.view.fixed)
        addends.append(addend._replace(view=view))
    return way._replace(addends=tuple(addends))


def _rarer(
    addends: Sequence[Addend], mesh: Mapping[str, int], letters: str, roles: Sequence[str]
) -> Iterator[Way]:
    """Ways that read a block of an axis as one of many, a position as two digits, or positions that
    are alike by chance apart."""
    opened = [t._replace(view=settled(t.view)) for t in addends]
    cut = [[_cut(t, inner) for t in opened] for inner in _digits(opened)]
    views = [*([opened] if opened != list(addends) else []), *cut]
    for usual in (True, False):
        for view in views:
            yield from _ways(view, mesh, letters, roles, usual=usual)
    yield from _ways(addends, mesh, letters, roles, usual=False)


def _digits(addends: Sequence[Addend]) -> list[int]:
    """Numbers that divide the extent of a position of one of many: which head, then which half."""
    extents = {a.extent for t in addends for a in floating(t.view)[1]}
    return [n for n in range(2, MOST_DIGITS + 1) if any(e > n and e % n == 0 for e in extents)]


def _cut(addend: Addend, inner: int) -> Addend:
    """A view whose positions of one of many are two digits, where the inner one is of ``inner``."""
    dims, single = floating(addend.view)
    fixed: list[StridedInterval] = []
    for interval in single:
        rest = affine(interval.start.const % inner)
        if (
            interval.extent > inner
            and interval.extent % inner == 0
            and ((interval.start - rest).divisible(inner))
        ):
            outer = (interval.start - rest) // inner
            fixed.append(
                StridedInterval(
                    interval.axis, interval.stride * inner, interval.extent // inner, outer, 1
                )
            )
            fixed.append(StridedInterval(interval.axis, interval.stride, inner, rest, 1))
        else:
            fixed.append(interval)
    return addend._replace(view=View(dims, tuple(fixed)))


def _in_blocks(addend: Addend) -> Addend:
    """The same view, of which every interval that lies in one of many equal blocks is that of a
    position, of the block, and an interval within: features of one head are a head and features."""
    dims: list[tuple[StridedInterval, ...]] = []
    fixed = list(addend.view.fixed)
    for dim in addend.view.dims:
        own = []
        for interval in dim:
            block = (
                gcd(*(n for _, n in interval.start.terms))
                if interval.start.terms
                else interval.size
            )
            inside = Affine(interval.start.const % block) if block else interval.start
            fits = block < interval.extent and inside.const + interval.size <= block
            if (
                interval.axis == BROADCAST
                or interval.size == 1
                or not fits
                or interval.extent % block
            ):
                own.append(interval)
                continue
            own.append(interval._replace(extent=block, start=inside))
            place = (interval.start - inside) // block
            fixed.append(
                StridedInterval(
                    interval.axis, interval.stride * block, interval.extent // block, place, 1
                )
            )
        dims.append(tuple(own))
    if len(fixed) == len(addend.view.fixed):
        return addend
    return addend._replace(view=View(tuple(dims), tuple(fixed)))


def _ways(
    addends: Sequence[Addend],
    mesh: Mapping[str, int],
    letters: str,
    roles: Sequence[str],
    *,
    usual: bool = True,
) -> Iterator[Way]:
    parted = [floating(t.view) for t in addends]
    if not any(single for _, single in parted):
        return
    dims = [list(d) for d, _ in parted]
    single = [list(s) for _, s in parted]
    count = 0
    for chosen in _exposures(dims, single, mesh):
        inner, outer = _exposed(dims, single, chosen)
        for groups in [_groups(outer)] if usual else _others(outer):
            if len(groups) > len(letters):
                continue
            for picked in product(roles, repeat=len(groups)):
                count += 1
                if count > MOST_WAYS:
                    return
                yield _way(addends, inner, groups, picked, letters)


#: (addend, dimension, or -1 for a position, place in it, the positions that it is held against).
Exposure = tuple[int, int, int, tuple[StridedInterval, ...]]


def _exposures(
    dims: Sequence[Sequence[Sequence[StridedInterval]]],
    single: Sequence[Sequence[StridedInterval]],
    mesh: Mapping[str, int],
) -> Iterator[tuple[Exposure, ...]]:
    """Atoms that lie in blocks that are other views' positions: all of them, some, and none."""
    exposures: list[Exposure] = []
    for k, own in enumerate(dims):
        others = [a for i, s in enumerate(single) if i != k for a in s]
        places = [(d, j, a) for d, dim in enumerate(own) for j, a in enumerate(dim)]
        places += [(-1, j, a) for j, a in enumerate(single[k])]
        for d, j, interval in places:
            blocks = _chain(interval, others, mesh)
            if blocks:
                exposures.append((k, d, j, blocks))
    if len(exposures) > MOST_EXPOSED:
        yield from (tuple(exposures), ())
        return
    sizes = range(len(exposures), -1, -1)
    yield from chain.from_iterable(combinations(exposures, n) for n in sizes)


def _chain(
    interval: StridedInterval, others: Sequence[StridedInterval], mesh: Mapping[str, int]
) -> tuple[StridedInterval, ...]:
    """Positions of other views that an interval lies in, one inside the other."""
    left = sorted(others, key=lambda o: o.extent)
    chain: list[StridedInterval] = []
    while True:
        outer = next((o for o in left if _lies_in(interval, o, mesh)), None)
        if outer is None:
            return tuple(chain)
        parts = within(interval, outer)
        assert parts is not None
        left.remove(outer)
        chain.append(outer)
        interval = parts[1]


def _lies_in(interval: StridedInterval, outer: StridedInterval, mesh: Mapping[str, int]) -> bool:
    if interval.axis == BROADCAST or (interval.size == 1 and interval.extent == outer.extent):
        return False
    parts = within(interval, outer)
    if parts is None:
        return False
    try:
        low, high = parts[2].span(mesh)
    except KeyError:
        return False
    return low >= 0 and high + interval.size <= parts[1].extent


def _exposed(
    dims: Sequence[Sequence[Sequence[StridedInterval]]],
    single: Sequence[Sequence[StridedInterval]],
    chosen: Sequence[Exposure],
) -> tuple[list[list[tuple[StridedInterval, ...]]], list[list[StridedInterval]]]:
    inner = [[list(d) for d in own] for own in dims]
    outer = [list(s) for s in single]
    gone: list[tuple[int, StridedInterval]] = []
    for k, d, j, blocks in chosen:
        interval = whole = dims[k][d][j] if d >= 0 else single[k][j]
        for inside in blocks:
            parts = within(interval, inside)
            assert parts is not None
            outer[k].append(parts[0])
            interval = parts[1]
        if d >= 0:
            inner[k][d][j] = interval
        else:
            gone.append((k, whole))
            if interval.extent > 1:
                outer[k].append(interval)
    for k, interval in gone:
        outer[k].remove(interval)
    for k, own in enumerate(inner):
        for dim in own:
            outer[k] += [a for a in dim if a.size == 1 and a.extent > 1]
    return [[tuple(a for a in d if a.size != 1) for d in own] for own in inner], outer


#: Positions of views that go together: (view, position).
Groups: TypeAlias = list[list[tuple[int, StridedInterval]]]


def _others(single: Sequence[Sequence[StridedInterval]]) -> Iterator[Groups]:
    """Other ways to take positions together that are alike, perhaps by chance."""
    usual = sorted(map(_key, _groups(single)))
    for groups in islice(_matchings(list(enumerate(single)), []), MOST_MATCHINGS):
        if sorted(map(_key, groups)) != usual:
            yield groups


def _key(group: Sequence[tuple[int, StridedInterval]]) -> str:
    return str(sorted((k, str(a)) for k, a in group))


def _alike(one: StridedInterval, other: StridedInterval) -> bool:
    """Whether two positions may be one: both are the same, of as many or of an axis without an end
    (a row of a table is the class of that number)."""
    extents = {one.extent, other.extent} - {ABSOLUTE}
    return one.start == other.start and len(extents) <= 1


def _matchings(
    left: Sequence[tuple[int, Sequence[StridedInterval]]], groups: Groups
) -> Iterator[Groups]:
    """Every way to put positions into groups of alike ones, at most one of every view."""
    if not left:
        yield groups
        return
    (k, intervals), *rest = left
    if not intervals:
        yield from _matchings(rest, groups)
        return
    first, *others = intervals
    for i, group in enumerate(groups):
        if _alike(group[0][1], first) and all(own != k for own, _ in group):
            grown = [*groups[:i], [*group, (k, first)], *groups[i + 1 :]]
            yield from _matchings([(k, others), *rest], grown)
    yield from _matchings([(k, others), *rest], [*groups, [(k, first)]])


def _groups(single: Sequence[Sequence[StridedInterval]]) -> Groups:
    """Positions that are the same of as many, at most one of every view."""
    ends: dict[Affine, set[int]] = {}
    for intervals in single:
        for a in intervals:
            ends.setdefault(a.start, set()).update({a.extent} - {ABSOLUTE})
    groups: dict[tuple[object, ...], list[tuple[int, StridedInterval]]] = {}
    for k, intervals in enumerate(single):
        seen: dict[tuple[object, ...], int] = {}
        for interval in sorted(intervals, key=lambda a: (a.axis, -a.stride)):
            known = ends[interval.start] if interval.extent == ABSOLUTE else ()
            extent = next(iter(known)) if len(known) == 1 else interval.extent
            key = (extent, interval.start)
            again = seen[key] = seen.get(key, -1) + 1
            groups.setdefault((*key, again), []).append((k, interval))
    return list(groups.values())


def _way(
    addends: Sequence[Addend],
    dims: Sequence[Sequence[tuple[StridedInterval, ...]]],
    groups: Sequence[Sequence[tuple[int, StridedInterval]]],
    roles: Sequence[str],
    letters: str,
) -> Way:
    behind: list[list[tuple[StridedInterval, ...]]] = [[] for _ in addends]
    fixed: list[list[StridedInterval]] = [[] for _ in addends]
    labels = [""] * len(addends)
    kept = ""
    for group, role, letter in zip(groups, roles, letters, strict=False):
        for k, interval in group:
            if role == "fixed":
                fixed[k].append(interval)
            else:
                behind[k].append((interval,))
                labels[k] += letter
        kept += letter if role == "kept" else ""
    moved = tuple(
        t._replace(view=View((*own, *more), tuple(intervals)))
        for t, own, more, intervals in zip(addends, dims, behind, fixed, strict=True)
    )
    return Way(moved, tuple(labels), kept)


def kept(
    addends: Sequence[Addend],
    dims: Sequence[Sequence[Dim]],
    single: Sequence[Sequence[StridedInterval]],
    letters: str,
    keeps: Callable[[Sequence[tuple[int, StridedInterval]]], bool],
) -> Way | None:
    """The way that keeps positions (of which views, and which) and fixes the others; None where it
    keeps none.

    Example: of ``a0/4[2 +1 of 4]`` in both of two views, one label that the result has.
    """
    groups = _groups(single)
    roles = ["kept" if keeps(group) else "fixed" for group in groups]
    if "kept" not in roles or len(groups) > len(letters):
        return None
    return _way(addends, dims, groups, roles, letters)


def dropped(addend: Addend, rank: int) -> Addend:
    """A view without its dimensions from ``rank`` on, which are of size 1.

    Example: ``n4[a1[3], a0[<tp> +1 of 8]]`` without its second dimension is
    ``n4[a1[3]] at a0[<tp> +1 of 8]``.
    """
    view = addend.view
    behind = tuple(a for dim in view.dims[rank:] for a in dim if a.axis != BROADCAST)
    return addend._replace(view=View(view.dims[:rank], (*view.fixed, *behind)))


def spread_behind(addend: Addend, rank: int, own: str, names: str) -> Addend:
    """A view with a dimension of size 1 behind its first ``rank`` for each of ``names``, of which
    it has its ``own``; `dropped` takes such dimensions away.

    Example: ``n4[a1[3], a0[<tp> +1 of 8]]``, whose second is ``x``, with ``yx`` is
    ``n4[a1[3], 1, a0[<tp> +1 of 8]]``.
    """
    dims = addend.view.dims
    intervals = dict(zip(own, dims[rank:], strict=True))
    behind = tuple(intervals.get(name, ()) for name in names)
    return addend._replace(view=addend.view._replace(dims=(*dims[:rank], *behind)))
