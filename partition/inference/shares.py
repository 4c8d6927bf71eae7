"""Local tensors of a rank as parts of those that the single-device program takes as they are.

What is no view of one node is a node of its own (`engine.lineage.expressions.Opaque`). Where the
single-device program has it with more rows, a rank's is a part of that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Opaque
from shardproof.engine.lineage.floating import floating, sunk
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Dim, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned, constant_interval, narrow

#: Where a part begins that is constant along a dimension, and one that is no part.
ANYWHERE, NOWHERE = None, Affine(-1)


class Share(NamedTuple):
    """A part of a local tensor of the single-device program: its node, the tensor's shape, and
    where the part begins along each dimension (None: anywhere, it is constant there).

    Example: of ``n35 = piece(n33[a2[4], a3[2] x a1[2]])`` of shape [4, 4] the rows from ``<2*dp>``
    on.
    """

    node: int
    shape: tuple[int, ...]
    starts: tuple[Affine | None, ...]

    def beside(self, others: Sequence[Share]) -> Share:
        """Where the part may be anywhere, there where the first of some others is that has as many
        positions; from the first one on, where none has.

        Example: four equal rows beside the rows from ``<2*dp>`` on of four: from ``<2*dp>`` on.
        """
        starts = list(self.starts)
        for dim, start in enumerate(self.starts):
            if start is None:
                alike = (o.starts[dim] for o in others if o.shape[dim] == self.shape[dim])
                starts[dim] = next((way for way in alike if way is not None), ZERO)
        return self._replace(starts=tuple(starts))

    def view(self, shape: tuple[int, ...]) -> Addend:
        """The part as a view of the node; ``shape``: its own.

        Example: ``n35[a0[<2*dp> +2 of 4], a1[4]]``.
        """
        dims: list[Dim] = []
        axis = 0
        for whole, size, start in zip(self.shape, shape, self.starts, strict=True):
            if whole > 1:
                dims.append((StridedInterval(axis, 1, whole, start or ZERO, size),))
            else:  # Nothing varies along it.
                dims.append((constant_interval(size),) if size > 1 else ())
            axis += whole > 1
        return Addend(Fraction(1), self.node, View(tuple(dims)))


class Shares:
    """The local tensors of a program whose nodes are the first ``size`` of a table.

    Example: of ``piece(n33[a2[<2*dp> +2 of 4], a3[2] x a1[2]])`` the rows from ``<2*dp>`` on of
    ``n35``, which is ``piece(n33[a2[4], a3[2] x a1[2]])``.
    """

    def __init__(self, table: NodeTable, size: int) -> None:
        self._known: dict[tuple[int, ...], list[tuple[int, tuple[Addend, ...]]]] = {}
        for number in range(size):
            definition = table[number].definition
            if isinstance(definition, Opaque):
                whole = definition.addends
                self._known.setdefault(_nodes(whole), []).append((number, whole))

    def of(self, addend: Addend, shape: tuple[int, ...], mesh: Mapping[str, int]) -> Share | None:
        """The local tensor of which an addend is a part, but for its factor; None where it is none,
        or all of it."""
        return self.of_sum([addend._replace(factor=Fraction(1))], shape, mesh)

    def of_sum(
        self, addends: Sequence[Addend], shape: tuple[int, ...], mesh: Mapping[str, int]
    ) -> Share | None:
        """The local tensor of which a sum is a part: each of its addends of another one there, all
        from the same position on; None where it is none, or all of it.

        Example: of ``piece(n3[a0[4]] + 2*n5[a1[2], a0[4]] part #7[0 +1 of 2])`` the part
        ``n3[a0[1 +1 of 4]] + 2*n5[a1[2], a0[1 +1 of 4]] part #7[0 +1 of 2]``.
        """
        return next(self.each_of_sum(addends, shape, mesh), None)

    def each_of_sum(
        self, addends: Sequence[Addend], shape: tuple[int, ...], mesh: Mapping[str, int]
    ) -> Iterator[Share]:
        """As `of_sum`, of every local tensor of which the sum is a part.

        Example: the second half of the columns of some rows of a tensor that the single device
        takes as it is, and of which it takes that half of the columns, too.
        """
        known = self._known.get(_nodes(addends), ())
        if any(set(whole) == set(addends) for _, whole in known):
            return  # the single device has it, whatever it is a part of besides
        for number, whole in known:
            sizes = _sizes(whole[0], shape)
            if sizes == shape:
                continue
            starts = _common(whole, addends, shape, mesh)
            if starts is not None:
                yield Share(number, sizes, starts)


def _nodes(addends: Sequence[Addend]) -> tuple[int, ...]:
    return tuple(sorted(addend.node for addend in addends))


def _common(
    whole: Sequence[Addend],
    parts: Sequence[Addend],
    shape: tuple[int, ...],
    mesh: Mapping[str, int],
) -> tuple[Affine | None, ...] | None:
    """Where all parts begin, each of another addend of the whole; None where they do not begin
    alike."""
    left: list[Addend] = list(whole)
    begins: list[Affine | None] = [ANYWHERE] * len(shape)
    pairs: list[tuple[Addend, Addend]] = []
    for part in parts:
        for of in left:
            starts = _starts(of, part, shape, mesh)
            both = None if starts is None else _agreed(begins, starts)
            if both is not None:
                break
        else:
            return None
        left.remove(of)
        pairs.append((of, part))
        begins = both
    alike = (_begin_there(of, part, begins) for of, part in pairs)
    return tuple(begins) if all(alike) else None


def _begin_there(whole: Addend, part: Addend, starts: Sequence[Affine | None]) -> bool:
    """Whether a part that may begin anywhere, but for the inner positions of its dimensions, is
    what the whole has from some positions on."""
    own = _placed_as(whole.view, part).view.dims
    try:
        return all(
            not _repeats(of, dim) or narrow(of, start or ZERO, _size(dim)) == dim
            for of, dim, start in zip(whole.view.dims, own, starts, strict=True)
        )
    except Misaligned:
        return False


def _repeats(whole: Dim, part: Dim) -> bool:
    """Whether two dimensions are the same inner positions, again and again.

    Example: of one vector for each of 4 rows, ``_[4] x a0[8]``, and of 2, ``_[2] x a0[8]``.
    """
    heads = whole[:1] + part[:1]
    return (
        len(heads) == 2
        and all(a.axis == BROADCAST for a in heads)
        and len(whole) > 1
        and whole[1:] == part[1:]
    )


def _agreed(
    one: Sequence[Affine | None], other: Sequence[Affine | None]
) -> list[Affine | None] | None:
    """Two beginnings as one, where they say the same of each dimension that both speak of."""
    if any(ANYWHERE not in (a, b) and a != b for a, b in zip(one, other, strict=True)):
        return None
    return [b if a is ANYWHERE else a for a, b in zip(one, other, strict=True)]


def _size(dim: Dim) -> int:
    return prod(interval.size for interval in dim)


def _sizes(addend: Addend, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the local tensor that an addend is all of, of which a tensor of ``shape`` may be
    a part. Along a dimension in which the addend has a place its view is less than the tensor; a
    part is as long as the whole there, since it has the same view at the same place (`_starts`).

    Example: of ``n9[a0[8], a1[2]] in 1[0 +2 of 4]`` beside a tensor of shape [2, 4] it is [8, 4].
    """
    placed = {place.dim for place in addend.places}
    pairs = zip(addend.view.dims, shape, strict=False)
    return tuple(n if d in placed else _size(dim) for d, (dim, n) in enumerate(pairs))


def _starts(
    whole: Addend, part: Addend, shape: tuple[int, ...], mesh: Mapping[str, int]
) -> tuple[Affine | None, ...] | None:
    """Where a part begins along each dimension; None where it is no part of the whole. Half of the
    positions of an axis may be a digit of it beside one position of the next one."""
    joined = part._replace(view=sunk(part.view))
    starts = _starts_of(whole, part, shape, mesh)
    if starts is None and joined != part:
        return _starts_of(whole, joined, shape, mesh)
    return starts


def _starts_of(
    whole: Addend, part: Addend, shape: tuple[int, ...], mesh: Mapping[str, int]
) -> tuple[Affine | None, ...] | None:
    """As `_starts`, of a part as it is written."""
    whole, part = _trimmed(whole), _trimmed(part)
    dims = whole.view.dims
    part = _placed_as(whole.view, part)
    if len(dims) != len(shape) or whole != part._replace(view=part.view._replace(dims=dims)):
        return None
    starts: list[Affine | None] = []
    for dim, (of, own) in enumerate(zip(dims, part.view.dims, strict=True)):
        if of == own:
            starts.append(ZERO)
        elif any(place.dim == dim for place in whole.places):
            return None
        else:
            starts.append(_begins(of, own, mesh))
    return None if NOWHERE in starts else tuple(starts)


def _trimmed(addend: Addend) -> Addend:
    """An addend without the one position of dimensions along which it is constant."""
    dims = (tuple(a for a in dim if a.axis != BROADCAST or a.size > 1) for dim in addend.view.dims)
    return addend._replace(view=addend.view._replace(dims=tuple(dims)))


def _placed_as(whole: View, part: Addend) -> Addend:
    """A part with its positions of one of many in the dimensions where the whole runs along them.

    Example: of ``[a1[2], a0[32]]`` the part ``[1, a1[<dp> +1 of 2] x a0[32]]`` is
    ``[a1[<dp> +1 of 2], a0[32]]``.
    """
    own, single = floating(part.view)
    if not single or len(own) != len(whole.dims):
        return part
    left = list(single)
    dims: list[Dim] = []
    for of, dim in zip(whole.dims, own, strict=True):
        runs = {a[:3]: a for a in dim}
        for interval in (a for a in of if a[:3] not in runs):
            at = next((a for a in left if a[:3] == interval[:3]), None)
            if at is not None:
                left.remove(at)
                runs[at[:3]] = at
        order = [a[:3] for a in of]
        known = all(a in order for a in runs)
        placed = sorted(runs.values(), key=lambda a: order.index(a[:3])) if known else dim
        dims.append(tuple(placed))
    return part._replace(view=View(tuple(dims), tuple(left)))


def _begins(whole: Dim, part: Dim, mesh: Mapping[str, int]) -> Affine | None:
    """Where a part begins along one dimension: `ANYWHERE` where both are constant, or repeat the
    same, `NOWHERE` where it is no part. A position of one of many, which both have outside of
    theirs, moves nothing."""
    while whole[:1] == part[:1] and whole and whole[0].size == 1:
        whole, part = whole[1:], part[1:]
    if all(a.axis == BROADCAST for a in (*whole, *part)) or _repeats(whole, part):
        return ANYWHERE
    if not whole or not part or part[0][:3] != whole[0][:3]:
        return NOWHERE
    away = part[0].start - whole[0].start
    if not mesh.keys() >= set(away.axes):
        return NOWHERE
    low, high = away.span(mesh)
    if low < 0 or high + part[0].size > whole[0].size:
        return NOWHERE
    start = away * prod(a.size for a in whole[1:])
    try:
        return start if narrow(whole, start, _size(part)) == part else NOWHERE
    except Misaligned:
        return NOWHERE
