"""Which mesh the ranks of a graph lie on: what depends on the rank is affine in coordinates.

Given are tables (a number for each rank), groups of collectives and permutations of ranks.  Of all
ways to write the number of ranks as a product of extents, the mesh is the one that needs the fewest
programs: along an axis that is not affine, or along which ranks send, every coordinate has a
program of its own.  For example, on 8 ranks, groups ``{0,1,2,3},{4,5,6,7}`` and starts ``0, 4, 8,
12, 0, 4, 8, 12`` lie on axes of 2 and 4, with start ``4 * axis1``; one program is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
import numpy.typing as npt

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Group
from shardproof.frontends.graphs.graph import Groups

Table = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
MOST_AXES = 6
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mesh:
    """How ranks lie: ``names``, ``extents`` of axes, slowest first; a rank is its coordinates as a
    number. ``explicit``: axes along which every coordinate is a program of its own.

    Example: ``Mesh(("dp", "tp"), (2, 4))``: rank 6 is at dp 1 and tp 2, and one program runs on
    all.
    """

    names: tuple[str, ...]
    extents: tuple[int, ...]
    explicit: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks the mesh has."""
        return prod(self.extents)

    def strides(self) -> tuple[int, ...]:
        """By how much a rank's number grows with each coordinate; the last axis is the fastest."""
        return tuple(prod(self.extents[i + 1 :]) for i in range(len(self.extents)))

    @property
    def free(self) -> tuple[int, ...]:
        """The axes along which one program runs on all ranks."""
        return tuple(i for i in range(len(self.extents)) if i not in self.explicit)

    def axes(self) -> tuple[tuple[str, int, int], ...]:
        """The free axes, as a program has them."""
        steps = self.strides()
        return tuple((self.names[i], self.extents[i], steps[i]) for i in self.free)

    def bases(self) -> list[int]:
        """The first rank of every program."""
        grid = self.grid()
        return [int(n) for n in grid[tuple(self._cut())].ravel()]

    def _cut(self) -> list[slice]:
        return [slice(0, 1) if i in self.free else slice(None) for i in range(len(self.extents))]

    def grid(self) -> Numbers:
        """The ranks' numbers as an array over the mesh."""
        return np.arange(self.ranks).reshape(self.extents)

    def function(self, table: Table, base: int) -> Affine | None:
        """The table on the ranks of the program at ``base``; None: it is not affine there."""
        values = np.array(table, dtype=np.int64).reshape(self.extents)
        at = np.unravel_index(base, self.extents)
        part = values[tuple(slice(None) if i in self.free else at[i] for i in range(values.ndim))]
        const = int(part.flat[0]) if part.size else 0
        terms: dict[str, int] = {}
        expected: Numbers = np.full(part.shape, const, dtype=np.int64)
        for d, axis in enumerate(self.free):
            if part.shape[d] < 2:
                continue
            step = int(np.moveaxis(part, d, 0)[1].flat[0]) - const
            terms[self.names[axis]] = step
            line = step * np.arange(part.shape[d])
            expected = expected + line.reshape([-1 if e == d else 1 for e in range(part.ndim)])
        return affine(const, terms) if np.array_equal(expected, part) else None

    def group(self, groups: Groups, base: int) -> Group | None:
        """The group of the program at ``base``, as explicit programs and whole axes."""
        along = self.along(groups)
        if along is None:
            return None
        free = tuple(self.names[i] for i in along if i in self.free and self.extents[i] > 1)
        fixed = [i for i in along if i in self.explicit]
        if not fixed:
            return Group((), free)
        at = np.unravel_index(base, self.extents)
        place = tuple(slice(None) if i in fixed else at[i] for i in range(len(self.extents)))
        return Group(tuple(int(n) for n in self.grid()[place].ravel()), free)

    def along(self, groups: Groups) -> tuple[int, ...] | None:
        """The axes that the groups lie along, members in the order of ranks; None: they do not."""
        own = next(g for g in groups if 0 in g)
        coordinates = np.array(np.unravel_index(own, self.extents))
        axes = [i for i in range(len(self.extents)) if np.any(coordinates[i] != 0)]
        if prod(self.extents[i] for i in axes) != len(own):
            return None
        rest = [i for i in range(len(self.extents)) if i not in axes]
        expected = self.grid().transpose([*rest, *axes]).reshape(-1, len(own))
        groups_of_ranks = {tuple(sorted(g)) for g in groups}
        return tuple(axes) if groups_of_ranks == {tuple(r) for r in expected.tolist()} else None

    def mixes(self, groups: Groups) -> bool:
        """Whether the groups are of explicit programs and of whole axes together.

        Example: of four ranks together on axes of 2 and 2, of which the first one is explicit.
        """
        along = [i for i in self.along(groups) or () if self.extents[i] > 1]
        return 0 < sum(i in self.explicit for i in along) < len(along)

    def peers(self, pairs: Pairs) -> dict[int, int] | None:
        """Base of the sending program -> base of the receiving one; None: other coordinates do
        not stay as they are."""
        receivers: dict[int, set[int]] = {}
        count: dict[int, int] = {}
        for source, target in pairs:
            a, b = (list(np.unravel_index(n, self.extents)) for n in (source, target))
            if any(a[i] != b[i] for i in self.free):
                return None
            for c in (a, b):
                for i in self.free:
                    c[i] = np.intp(0)
            one, two = (int(np.ravel_multi_index(c, self.extents)) for c in (a, b))
            receivers.setdefault(one, set()).add(two)
            count[one] = count.get(one, 0) + 1
        members = prod(self.extents[i] for i in self.free)
        if any(len(to) > 1 for to in receivers.values()) or any(
            n != members for n in count.values()
        ):
            return None
        return {one: to.pop() for one, to in receivers.items()}


def fits(
    mesh: Mesh,
    tables: Iterable[Table],
    groups: Iterable[Groups],
    pairs: Iterable[Pairs],
    apart: Iterable[Groups] = (),
) -> bool:
    """Whether tables, groups and permutations of ranks can all be written on the mesh; ``apart``:
    groups that are of programs or along axes, and not both.

    Example: the permutation {{0,1},{2,3}} fits on axes of 2 and 2, not on one axis of 4.
    """
    return (
        all(mesh.along(g) is not None for g in groups)
        and not any(mesh.mixes(g) for g in apart)
        and all(mesh.peers(p) is not None for p in pairs)
        and all(mesh.function(t, base) is not None for t in tables for base in mesh.bases())
    )


def find(
    ranks: int,
    tables: Sequence[Table],
    groups: Sequence[Groups],
    pairs: Sequence[Pairs],
    named: Sequence[tuple[str, int]] = (),
    apart: Sequence[Groups] = (),
) -> Mesh | None:
    """The mesh with the fewest programs, then the fewest axes; None: there is none.  ``apart``: as
    `fits` has them.

    Example: eight ranks with groups {{0,1,2,3},{4,5,6,7}} lie on axes of 2 and 4; a chain of sends
    0 to 1, 1 to 2, 2 to 3 makes one explicit axis of 4; groups of unequal sizes lie on no mesh.
    """
    candidates = [tuple(extent for _, extent in named)] if named else []
    candidates += [x for x in sorted(factored(ranks), key=len) if x not in candidates]
    best: Mesh | None = None
    for extents in candidates:
        if prod(extents) != ranks:
            continue
        given = named and extents == candidates[0]
        names = tuple(n for n, _ in named) if given else _names(len(extents))
        if any(Mesh(names, extents).along(g) is None for g in groups):
            continue
        for explicit in _subsets(len(extents)):
            programs = prod(extents[i] for i in explicit)
            if best is not None and programs >= prod(best.extents[i] for i in best.explicit):
                continue
            mesh = Mesh(names, extents, explicit)
            if fits(mesh, tables, groups, pairs, apart):
                best = mesh
        if best is not None and not best.explicit:
            break
    return best


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"axis{i}" for i in range(count))


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    for size in range(count + 1):
        yield from combinations(range(count), size)


def factored(number: int, most: int = MOST_AXES) -> list[tuple[int, ...]]:
    """All ways to write a number as an ordered product of factors above 1.

    Example: 8 is ``(8,)``, ``(2, 4)``, ``(2, 2, 2)`` and ``(4, 2)``.
    """
    if number == 1:
        return [(1,)]
    products: list[tuple[int, ...]] = [(number,)]
    if most > 1:
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                rest = factored(number // first, most - 1)
                products += [(first, *r) for r in rest]
    return products
