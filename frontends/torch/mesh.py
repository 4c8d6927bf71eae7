"""The mesh that process groups span, and where ranks and groups lie on it.

Nothing tells a recorder the axes along which a program is parallel; its process groups do.  A group
of ranks 0, 8, 16, ..., 56 of 64 lies along an axis of extent 8 and stride 8, and what is left is an
axis of extent 8 and stride 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

#: Most axes of a mesh: more are no mesh that anybody meant.
MOST_AXES = 8

Ranks = tuple[int, ...]


class Axis(NamedTuple):
    """An axis of the mesh: its name, its extent, and by how much rank numbers step along it.

    Example: ``Axis("tp", 8, 1)``: eight neighbours.
    """

    name: str
    extent: int
    stride: int


@dataclass(frozen=True)
class Mesh:
    """Axes, slowest first, that together reach every rank of the world once.

    Example: ``dp`` of extent 4 and stride 2, then ``tp`` of extent 2 and stride 1: rank 5 is at (2,
    1).
    """

    axes: tuple[Axis, ...]

    @cached_property
    def world(self) -> int:
        """How many ranks the mesh has."""
        return prod(axis.extent for axis in self.axes)

    def place(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a rank."""
        return tuple(rank // axis.stride % axis.extent for axis in self.axes)

    def rank(self, place: Sequence[int]) -> int:
        """The rank at coordinates."""
        return sum(axis.stride * n for axis, n in zip(self.axes, place, strict=True))

    def base(self, rank: int, along: frozenset[str]) -> int:
        """The rank at the same place, but at 0 along some axes."""
        place = self.place(rank)
        return rank - sum(
            a.stride * n for a, n in zip(self.axes, place, strict=True) if a.name in along
        )


def digits(ranks: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
    """Ranks as (stride, extent) of every axis that they span, fastest first; None if they are no
    box on any mesh.

    Example: ranks 0, 2, 4, 6 are ``((2, 4),)``.
    """
    rest = sorted(ranks)
    result = []
    while len(rest) > 1:
        stride = rest[1] - rest[0]
        run = next((n for n in range(1, len(rest)) if rest[n] - rest[0] != n * stride), len(rest))
        if stride <= 0 or len(rest) % run:
            return None
        heads = rest[::run]
        expected = [head + stride * i for head in heads for i in range(run)]
        if expected != rest:
            return None
        result.append((stride, run))
        rest = heads
    return tuple(result)


def mesh_of(groups: Iterable[Ranks], world: int, names: Mapping[Ranks, str]) -> Mesh | None:
    """The mesh along whose axes all groups lie; None if there is none.  ``names``: how the program
    calls groups, if it does.

    Example: the groups (0, 1), called "tp", and (0, 8, 16, ..., 56) of 64 ranks give ``every8`` of
    extent 8, ``every2`` of extent 4 and ``tp`` of extent 2; the group (0, 1, 3) gives None.
    """
    cuts = {1, world}
    called: dict[tuple[int, int], str] = {}
    for group in set(groups):
        spans = digits(group)
        if spans is None:
            return None
        for stride, extent in spans:
            cuts |= {stride, stride * extent}
        if len(spans) == 1 and group in names:
            called.setdefault(spans[0], names[group])
    ordered = sorted(cuts)
    steps = list(pairwise(ordered))
    if any(high % low for low, high in steps) or len(steps) > MOST_AXES:
        return None
    axes = [
        Axis(called.get((low, high // low), ""), high // low, low) for low, high in reversed(steps)
    ]
    names_of_axes = [axis.name for axis in axes]
    return Mesh(
        tuple(
            axis
            if axis.name and names_of_axes.count(axis.name) == 1
            else axis._replace(name=f"every{axis.stride}")
            for axis in axes
        )
    )


class Spread(NamedTuple):
    """A group as a program with axes names it: ranks at 0 along these axes, and whole axes.

    Example: ``Spread((0,), ("tp",))`` is the group of ranks 0 and 1.
    """

    ranks: Ranks
    axes: tuple[str, ...]


def spread(mesh: Mesh, group: Ranks, rank: int, along: frozenset[str]) -> Spread | None:
    """The group of ``rank``, where ``along`` are the axes of its program; None if it has some but
    not all of such an axis, or others at other places along it.

    Example: on that mesh, along {"tp"}, the group (0, 1) of rank 0 is ``Spread((0,), ("tp",))``,
    and (0, 8, 16, ..., 56) is itself, along no axis.
    """
    own = mesh.place(rank)
    places = [mesh.place(member) for member in group]
    whole = []
    for i, axis in enumerate(mesh.axes):
        if axis.name not in along:
            continue
        coordinates = {place[i] for place in places}
        if len(coordinates) == axis.extent > 1:
            whole.append(axis)
        elif coordinates != {own[i]}:
            return None
    bases = sorted({mesh.base(member, along) for member in group})
    if len(bases) * prod(axis.extent for axis in whole) != len(set(group)) or rank not in group:
        return None
    return Spread(tuple(bases), tuple(axis.name for axis in whole))


# -- which ranks stand for all ---------------------------------------------------------------------


def positions(extent: int) -> tuple[int, ...]:
    """Positions of an axis that stand for all: 0, 1, one in the middle, the last.

    Example: of 8 they are 0, 1, 4, 7; of 2, both.
    """
    return tuple(sorted({0, min(1, extent - 1), extent // 2, extent - 1}))


def samples(mesh: Mesh, within: Mapping[str, Sequence[int]] | None = None) -> Iterator[int]:
    """Ranks that stand for all of a mesh: positions along every axis from each rank of
    ``within`` (positions along some axes; none: rank 0), all corners, and one in the middle.

    Example: of 8 x 8 ranks nine: (0,0), (0,1), (0,4), (0,7), (1,0), (4,0), (7,0), (7,7), (4,4).
    """
    given = within or {}
    fixed = [given.get(axis.name) for axis in mesh.axes]
    for at in product(*(f if f is not None else (0,) for f in fixed)):
        place = list(at)
        free = [i for i, f in enumerate(fixed) if f is None]
        for i in free:
            for position in positions(mesh.axes[i].extent):
                yield mesh.rank([*place[:i], position, *place[i + 1 :]])
        for corner in product((0, 1), repeat=len(free)):
            for i, high in zip(free, corner, strict=True):
                place[i] = (mesh.axes[i].extent - 1) * high
            yield mesh.rank(place)
        for i in free:
            place[i] = mesh.axes[i].extent // 2
        yield mesh.rank(place)
