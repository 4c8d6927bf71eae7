"""Where entries of nodes are numbers behind a causal mask: which rows of a block have a key.

A block of masked scores has rows without a key, whose sum of exponentials is zero.  Whoever takes
the logarithm of such sums, block by block, is defined at rows that have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shardproof.engine.lineage.blocks import is_shift
from shardproof.engine.lineage.expressions import Operand, Restrict
from shardproof.engine.lineage.lineage import ABSOLUTE
from shardproof.engine.specification.boxes import Box


class Support(NamedTuple):
    """Positions of a node, or of labels: those of which each axis of ``least`` and of ``shown`` is
    at least that far, and for each ``(query, key, offset)`` of ``order`` the key's is at most
    ``offset`` behind the query's.

    Example: of masked scores of axes (query, key), ``Support(order=((0, 1, 0),))``; of their sums
    over keys 4 to 7, queries from 4 on: ``Support(shown=((0, 4),))``.

    Positions outside by ``shown`` or ``order`` are hidden: minus infinity before an exponential,
    zero behind it.  Of those outside by ``least`` nothing is known.
    """

    least: tuple[tuple[int, int], ...] = ()
    shown: tuple[tuple[int, int], ...] = ()
    order: tuple[tuple[int, int, int], ...] = ()

    def has(self, box: Box) -> bool:
        """Whether all positions of a box are among these."""
        rows = all(box[axis][0] >= least for axis, least in (*self.least, *self.shown))
        return rows and all(box[k][1] <= box[q][0] + off for q, k, off in self.order)

    def without_hidden(self) -> Support | None:
        """The support of what is no number, nor zero, of a hidden entry; None where that cannot be
        said.

        Example: one over a sum that is zero in rows before the fourth has a value from there on.
        """
        return None if self.order else Support((*self.least, *self.shown))

    def renamed(self, axes: Mapping[int, int]) -> Support:
        """The support with other names of its axes.

        Example: of labels, as one of the axes that they are.
        """
        return Support(
            tuple((axes[a], least) for a, least in self.least),
            tuple((axes[a], least) for a, least in self.shown),
            tuple((axes[q], axes[k], off) for q, k, off in self.order),
        )


EVERYWHERE: Final = Support()

#: Where an axis of an operand is read: along a label (None: none), from a position on.
_Place = tuple[int | None, int]


def both(supports: Iterable[Support]) -> Support:
    """What several supports have in common.

    Example: of rows from 4 on and rows from 2 on, those from 4 on.
    """
    every = list(supports)
    return Support(
        tuple(dict.fromkeys(x for s in every for x in s.least)),
        tuple(dict.fromkeys(x for s in every for x in s.shown)),
        tuple(dict.fromkeys(x for s in every for x in s.order)),
    )


def of_block(support: Support, block: Restrict, extents: Sequence[int]) -> Support | None:
    """The support of a block of a node with these extents; None where an axis that it is about is
    left in more than one interval.

    Example: rows from 4 on are rows from 1 on of the block [3, 8).
    """
    starts = {b.axis: b.start for b in block.blocks}
    about = _axes(support)
    if not all(is_shift(block.blocks, a, extents[a]) for a in about):
        return None
    if len([b for b in block.blocks if b.axis in about]) > len(about & starts.keys()):
        return None
    return Support(
        tuple((a, n - starts.get(a, 0)) for a, n in support.least),
        tuple((a, n - starts.get(a, 0)) for a, n in support.shown),
        tuple((q, k, off + starts.get(q, 0) - starts.get(k, 0)) for q, k, off in support.order),
    )


def along_labels(support: Support, operand: Operand) -> Support | None:
    """The support of an operand, as one of the labels that it is read along; None where it cannot
    be said of them, or no position is in it.

    Example: keys 4 to 7 of masked scores, by a label that runs over 4, come at most 4 before the
    query: ``Support(order=((0, 1, -4),))``.
    """
    places = {axis: _place(operand, axis) for axis in _axes(support)}
    if any(place is None for place in places.values()):
        return None
    return _at(support, {axis: place for axis, place in places.items() if place is not None})


def of_rows(support: Support, outputs: Sequence[int], extents: Mapping[int, int]) -> Support | None:
    """The rows (positions of the labels ``outputs``) in which some position of the other labels is
    in a support of labels, and none is outside by ``least``; None where that cannot be said.

    Example: queries from 4 on have one of keys 4 to 7.
    """
    keys = {k for _, k, _ in support.order}
    bounded = {q for q, _, _ in support.order} | {label for label, _ in support.shown}
    if any(label not in outputs and least > 0 for label, least in support.least):
        return None
    chosen: dict[int, _Place] = {}
    for label in _axes(support) | set(outputs):
        if label in outputs:
            chosen[label] = (label, 0)
        elif label not in bounded:
            chosen[label] = (None, 0)  # the first key, which most queries come after
        elif label not in keys and extents[label] != ABSOLUTE:
            chosen[label] = (None, extents[label] - 1)
        else:
            return None
    rows = _at(support, chosen)
    if rows is None:
        return None
    return rows.renamed({label: axis for axis, label in enumerate(outputs)})


def _axes(support: Support) -> set[int]:
    rows = {a for a, _ in (*support.least, *support.shown)}
    return rows | {a for q, k, _ in support.order for a in (q, k)}


def _place(operand: Operand, axis: int) -> _Place | None:
    """Where an axis is read, if along one label, every position, or at one position."""
    labels = [(stride, label) for a, stride, _, label in operand.intervals if a == axis]
    fixed = [(stride, start) for a, stride, _, start in operand.fixed if a == axis]
    if len(labels) > 1 or any(stride != 1 for stride, _ in labels):
        return None
    if any(start.terms for _, start in fixed):
        return None
    start = sum(stride * start.const for stride, start in fixed)
    return (labels[0][1] if labels else None), start


def _at(support: Support, places: Mapping[int, _Place]) -> Support | None:
    """A support with its axes put where they are read; None: what is left is none, or a bound from
    above, which none has."""
    bounds: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    order: list[tuple[int, int, int]] = []
    for given, put in zip((support.least, support.shown), bounds, strict=True):
        for axis, bound in given:
            label, start = places[axis]
            if label is not None:
                put.append((label, bound - start))
            elif start < bound:
                return None
    for query, key, offset in support.order:
        (q, q_start), (k, k_start) = places[query], places[key]
        most = offset + q_start - k_start
        if q is not None and k is not None and q != k:
            order.append((q, k, most))
        elif q is not None and k is None:
            bounds[1].append((q, -most))
        elif (q is None and k is not None) or most < 0:
            return None
    return Support(tuple(bounds[0]), tuple(bounds[1]), tuple(order))
