"""Views of nodes: made, joined and put side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Comparison, Constant
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
    box_view,
)
from shardproof.engine.lineage.members import axes_of
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.positions import digits, span
from shardproof.engine.lineage.views import Misaligned, adjoin, constant_interval, interleave, merge
from shardproof.engine.ops.primitives import CONSTANTS


def lineage_axes(lineage: Lineage, table: NodeTable) -> frozenset[str]:
    """The mesh coordinates on which the values of a lineage may depend.

    Example: ``{"tp"}`` of ``n1[a0[4], a1[<4*tp> +4 of 8]]``.
    """
    return frozenset(axes_of(lineage)).union(
        *(table[addend.node].coordinates for addend in lineage.addends)
    )


def view_of_constant(shape: tuple[int, ...]) -> View:
    """The view of a scalar as a tensor of ``shape``.

    Example: ``[_[2], _[3]]``.
    """
    return View(tuple(() if n == 1 else (constant_interval(n),) for n in shape))


def narrowed(x: Lineage, dims: Sequence[int]) -> Lineage:
    """One position of each of ``dims``, along which nothing varies.

    Example: ``n6[_[4], a0[8]]`` with its first dimension narrowed is ``n6[1, a0[8]]``.
    """

    def narrow(addend: Addend) -> Addend:
        kept = tuple(() if n in dims else dim for n, dim in enumerate(addend.view.dims))
        return addend._replace(view=View(kept, addend.view.fixed))

    shape = tuple(1 if n in dims else size for n, size in enumerate(x.shape))
    return Lineage(shape, tuple(narrow(t) for t in x.addends))


def widened(x: Lineage, shape: Sequence[int]) -> Lineage:
    """The inverse of `narrowed`: dimensions of size 1 repeated.

    Example: ``n6[1, a0[8]]`` of the shape [4, 8] is ``n6[_[4], a0[8]]``.
    """

    def widen(addend: Addend) -> Addend:
        dims = tuple(
            (constant_interval(size),) if own < size else dim
            for dim, own, size in zip(addend.view.dims, x.shape, shape, strict=True)
        )
        return addend._replace(view=View(dims, addend.view.fixed))

    return Lineage(tuple(shape), tuple(widen(t) for t in x.addends))


def along_axes(view: View, axes: Sequence[int]) -> View:
    """A view with axis i as axis ``axes[i]``.

    Example: ``[a0[4], a1[8]]`` along (1, 0) is ``[a1[4], a0[8]]``.
    """

    def renamed(a: StridedInterval) -> StridedInterval:
        return a if a.axis == BROADCAST else a._replace(axis=axes[a.axis])

    dims = tuple(tuple(renamed(a) for a in dim) for dim in view.dims)
    return View(dims, tuple(renamed(a) for a in view.fixed))


def at_one_position(view: View, dim: int) -> View:
    """The same view, where one position of an axis without an end is no part of a dimension.

    Example: of ``[a0[4], a1[3 +1 of *]]`` along dimension 1, ``[a0[4], 1] at a1[3 +1 of *]``: the
    largest over that dimension is what is there.
    """
    single = [a for a in view.dims[dim] if a.extent == ABSOLUTE and a.size == 1]
    if not single:
        return view
    rest = tuple(a for a in view.dims[dim] if a not in single)
    return View((*view.dims[:dim], rest, *view.dims[dim + 1 :]), (*view.fixed, *single))


def local_view(node: int, shape: tuple[int, ...]) -> Lineage:
    """All of a node whose axes are the dimensions of ``shape`` that exceed 1.

    Example: of a node of shape [2, 1, 3], ``[a0[2], 1, a1[3]]``.
    """
    return box_view(node, shape, shape, (ZERO,) * len(shape))


def causal_view(table: NodeTable, queries: int, keys: int, mask: Comparison) -> Lineage:
    """The first positions of the mask, which is as large as it has to be.

    Example: of four queries and four keys ``n20[a0[0 +4 of *], a1[0 +4 of *]]``.
    """
    node = table.define(mask, (ABSOLUTE, ABSOLUTE))
    dims = tuple(
        (StridedInterval(axis, 1, ABSOLUTE, ZERO, size),)
        for axis, size in enumerate((queries, keys))
    )
    return Lineage((queries, keys), (Addend(Fraction(1), node, View(dims)),))


def constant_view(table: NodeTable, name: str) -> Lineage:
    """All of a table of constants.

    Example: ``complex_product``, by which rotary embeddings multiply pairs, is of shape [2, 2, 2].
    """
    array = CONSTANTS[name]
    shape = (len(array), len(array[0]), len(array[0][0]))
    return local_view(table.define(Constant(name), shape), shape)


def join(position: Sequence[StridedInterval | None]) -> StridedInterval:
    """The common interval of aligned intervals: all that vary must agree on it.

    Example: ``a0[8]`` and ``_[8]``, a broadcast, have ``a0[8]`` in common.
    """
    common: StridedInterval | None = None
    broadcast: StridedInterval | None = None
    for interval in position:
        if interval is None or interval.axis == BROADCAST:
            broadcast = broadcast or interval
        elif common is None:
            common = interval
        else:
            if interval.start != common.start or interval.size != common.size:
                raise Misaligned
            if common.extent == ABSOLUTE:
                common = interval
            elif interval.extent not in (common.extent, ABSOLUTE):
                raise Misaligned
    if common is not None:
        return common
    return broadcast if broadcast is not None else constant_interval(1)


def adjoin_addends(xs: Sequence[Lineage], dim: int, mesh: Mapping[str, int]) -> list[Addend]:
    """The terms of a concatenation whose parts are together one view: consecutive in it, blocks
    of it in another order, or as far apart as each other.

    Example: ``n1[a0[4], a1[0 +4 of 8]]`` and ``n1[a0[4], a1[4 +4 of 8]]`` along dimension 1 are
    ``n1[a0[4], a1[8]]``; views of two nodes raise `Misaligned`.
    """
    first = xs[0]
    if any(len(x.addends) != len(first.addends) for x in xs):
        raise Misaligned
    result = []
    for column in (_along(c, dim) for c in zip(*(x.addends for x in xs), strict=True)):
        head = column[0]
        for term in column[1:]:
            same = (
                term.factor == head.factor
                and term.node == head.node
                and term.partials == head.partials
                and not term.places
                and not head.places
                and term.view.fixed == head.view.fixed
            )
            others = [
                a == b
                for i, (a, b) in enumerate(zip(term.view.dims, head.view.dims, strict=True))
                if i != dim
            ]
            if not same or not all(others):
                raise Misaligned
        dims = list(head.view.dims)
        dims[dim] = _together([t.view.dims[dim] for t in column], mesh)
        result.append(head._replace(view=head.view._replace(dims=tuple(dims))))
    return result


def exchanged(xs: Sequence[Lineage], dim: int) -> bool:
    """Whether parts of a concatenation are blocks of absolute positions (of a mask) whose numbers
    have digits exchanged: no view, since positions have no end.

    Example: the columns [0, 2), [4, 6), [2, 4) and [6, 8) of a causal mask.
    """
    columns = [x.addends[0].view.dims[dim] for x in xs if len(x.addends) == 1]
    if len(columns) != len(xs) or len({x.addends[0].node for x in xs}) > 1:
        return False
    if any(len(column) != 1 or column[0].extent != ABSOLUTE for column in columns):
        return False
    end = sum(column[0].size for column in columns)
    try:
        interleave([(column[0]._replace(extent=end),) for column in columns])
    except Misaligned:
        return False
    return True


def _along(column: Sequence[Addend], dim: int) -> Sequence[Addend]:
    """Views of single rows, in no dimension so far, with the row that each is of along ``dim``."""
    if any(t.view.dims[dim] for t in column):
        return column
    common = set(column[0].view.fixed).intersection(*(t.view.fixed for t in column))
    own = [[a for a in t.view.fixed if a not in common] for t in column]
    if any(len(rows) != 1 for rows in own):
        return column

    def along(term: Addend, row: StridedInterval) -> Addend:
        dims = (*term.view.dims[:dim], (row,), *term.view.dims[dim + 1 :])
        return term._replace(view=View(dims, tuple(a for a in term.view.fixed if a != row)))

    return [along(term, row) for term, (row,) in zip(column, own, strict=True)]


def _together(dims: Sequence[Dim], mesh: Mapping[str, int]) -> Dim:
    for way in (adjoin, interleave):
        try:
            return way(dims)
        except Misaligned:
            continue
    return _spaced(dims, mesh)


def _spaced(dims: Sequence[Dim], mesh: Mapping[str, int]) -> Dim:
    """Equal runs of one axis at equal distances, in every block of that length the same ones.

    Example: rows ``a0[1 +1 of 8]`` and ``a0[3 +1 of 8]`` are ``a0/2[0 +2 of 4] x a0[1 +1 of 2]``.
    """
    if len(dims) < 2 or any(len(dim) != 1 for dim in dims):
        raise Misaligned
    runs = [dim[0] for dim in dims]
    first, distance = runs[0], runs[1].start - runs[0].start
    step = distance.const
    equal = all(
        run == first._replace(start=first.start + distance * i) for i, run in enumerate(runs)
    )
    if distance.terms or not equal or step <= first.size or first.extent <= 0:
        raise Misaligned
    if first.extent % step or first.axis == BROADCAST:
        raise Misaligned
    inner, outer = digits(first.start, step)
    least, most = span(inner, mesh)
    if least < 0 or most + first.size > step:
        raise Misaligned
    blocks = StridedInterval(
        first.axis, first.stride * step, first.extent // step, outer // step, len(runs)
    )
    return (blocks, first._replace(extent=step, start=inner))


def result_view(
    dims: Sequence[Sequence[int | StridedInterval]],
    labels: Mapping[int, tuple[int, int, int]],
    outputs: Sequence[int],
    intervals: Mapping[int, StridedInterval],
) -> View:
    """The view of a node as a tensor: ``dims`` are labels of its definition or broadcasts,
    ``labels`` and ``outputs`` as in `partition.inference.canonical.Canonical`, ``intervals`` where
    each label runs.

    Example: of ``x[b, i] w[o, i]`` with dimensions ``b`` and ``o``, the view ``[a0[4], a1[6]]``.
    """
    result: list[Dim] = []
    for dim in dims:
        atoms: list[StridedInterval] = []
        for item in dim:
            if isinstance(item, StridedInterval):
                atoms.append(item)
            else:
                number, stride, extent = labels[item]
                interval = intervals[item]
                atoms.append(
                    StridedInterval(
                        outputs.index(number), stride, extent, interval.start, interval.size
                    )
                )
        result.append(merge(atoms))
    return View(tuple(result))


def lies_in(view: Addend, box: Addend, mesh: Mapping[str, int]) -> bool:
    """Whether all that a view reads of a node is what another view of it reads too, at every
    coordinate.

    Example: columns 1 and 2 of ``n1`` lie in columns 0 to 3 of it; columns ``<4*tp> +4`` do not.
    """
    own = [*(a for dim in view.view.dims for a in dim), *view.view.fixed]
    for interval in (*(a for dim in box.view.dims for a in dim), *box.view.fixed):
        if interval.axis == BROADCAST or interval.full:
            continue
        low, size = interval.start * interval.stride, interval.size * interval.stride
        period = interval.stride * interval.extent
        if not any(
            a.axis == interval.axis
            and a.stride * a.extent == period
            and _within(a.start * a.stride - low, size - a.size * a.stride, mesh)
            for a in own
        ):
            return False
    return True


def _within(value: Affine, most: int, mesh: Mapping[str, int]) -> bool:
    try:
        low, high = value.span(mesh)
    except KeyError:
        return False
    return low >= 0 and high <= most


def inherited(table: NodeTable, node: int, addends: Sequence[Addend]) -> list[PartialRange]:
    """Parts of the operands of a product, which make it partial, each on its own.

    Example: ``n4 part #1[0 +4 of 8]`` times ``n5`` is a product that is partial "via" its first
    operand.
    """
    return [
        partial._replace(
            reduction=table.reduction(Reduction("via", node, position, partial.reduction))
        )
        for position, addend in enumerate(addends)
        for partial in addend.partials
    ]


def partial_sums(
    table: NodeTable,
    node: int,
    labels: Mapping[int, tuple[int, int, int]],
    outputs: frozenset[int],
    intervals: Mapping[int, StridedInterval],
) -> list[PartialRange]:
    """How much of the sums of ``node`` has been added up, where its labels run along these
    intervals. Raises `Misaligned` where one does along part of an axis without an end.

    Example: of a product over eight inputs, of which four are there: ``[0 +4 of 8]``.
    """
    summed: dict[int, list[StridedInterval]] = {}
    for old, (number, stride, extent) in labels.items():
        if old not in outputs:
            interval = intervals[old]
            summed.setdefault(number, []).append(
                StridedInterval(0, stride, extent, interval.start, interval.size)
            )
    partials = []
    for number, atoms in summed.items():
        for digit in merge(sorted(atoms, key=lambda a: -a.stride)):
            if digit.extent == ABSOLUTE:
                raise Misaligned
            if not digit.full:
                token, n = table.reduction(Reduction("sum", node, number)), digit.stride
                part = PartialRange(token, digit.start * n, digit.size * n, digit.extent * n)
                partials.append(part)
    return partials
