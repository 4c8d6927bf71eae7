"""One of the equal blocks of each group as a position of what there is for all of them.

Queries, keys and values of a fused projection are blocks of one axis, group by group.  What the
single-device program makes of the queries, of which there are several, is a node over all blocks;
what it makes of the keys in the same way is that node at the block of the keys, and no node of its
own: a rank that has one group, one head of keys, finds what it has as either.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain, combinations

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.floating import floating
from shardproof.engine.lineage.lineage import Addend, Dim, StridedInterval
from shardproof.engine.lineage.views import is_block, split
from shardproof.partition.inference.floats import Way, kept


def at_slots(addends: Sequence[Addend], letters: str, shared: Set[int] = frozenset()) -> Way | None:
    """Views of blocks as views of all blocks, at a position that the result keeps; None where none
    is of a block.  ``shared``: which views have to have it, in a sum.

    Example: of ``n4[a0/16[2], a0[8 +4 of 16]]`` the second dimension is ``a0[4]``, at the position
    ``a0/4[2 +1 of 4]``.  A gate times what it is of the same projection, two blocks of one node,
    stays as it is.
    """
    dims: list[list[Dim]] = []
    single: list[list[StridedInterval]] = []
    for addend in addends:
        own, positions = floating(addend.view)
        inside: list[Dim] = []
        at = list(positions)
        for dim in own:
            intervals = []
            for interval in dim:
                if not interval.start.terms and is_block(interval):
                    outer, interval = split(interval, interval.size)
                    at.append(outer)
                intervals.append(interval)
            inside.append(tuple(intervals))
        dims.append(inside)
        single.append(at)
    if any(
        a.node == b.node and set(single[i]) != set(single[j])
        for (i, a), (j, b) in combinations(enumerate(addends), 2)
    ):
        return None
    runs = [[a for dim in own for a in dim] for own in dims]

    def keeps(group: Sequence[tuple[int, StridedInterval]]) -> bool:
        """Whether it is a block of each of several groups."""
        return shared <= {k for k, _ in group} and any(
            a.axis == outer.axis and a.stride < outer.stride for k, a in group for outer in runs[k]
        )

    return kept(addends, dims, _in_common(single), letters, keeps)


def _in_common(single: Sequence[Sequence[StridedInterval]]) -> list[list[StridedInterval]]:
    """Positions of as many that differ in their inner digits alone, as two digits.

    Example: of 4 of 8 and 5 of 8, the two halves of the third of four heads, both are 2 of 4, and 0
    and 1 of 2.
    """
    starts: dict[int, set[int]] = {}
    for a in chain.from_iterable(single):
        if not a.start.terms:
            starts.setdefault(a.extent, set()).add(a.start.const)
    inner = {
        extent: next(
            (n for n in range(2, extent) if extent % n == 0 and len({x // n for x in own}) == 1), 0
        )
        for extent, own in starts.items()
        if len(own) > 1
    }
    return [[digit for a in own for digit in _digits(a, inner.get(a.extent, 0))] for own in single]


def _digits(a: StridedInterval, inner: int) -> list[StridedInterval]:
    if not inner or a.start.terms:
        return [a]
    outer, rest = divmod(a.start.const, inner)
    return [
        StridedInterval(a.axis, a.stride * inner, a.extent // inner, Affine(outer), 1),
        StridedInterval(a.axis, a.stride, inner, Affine(rest), 1),
    ]
