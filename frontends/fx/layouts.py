"""How ranks may share the parts of a tensor where there are more ranks than parts.

On a mesh a tensor is divided along some axes and the same along the others.  Which axes there are
the groups of the graphs' collectives tell: a rank's part is the one at its place in its group, or
the one at its group's place among the groups.  For example, with groups of ranks 0, 1 and 2, 3 two
parts are on ranks (0, 2) and (1, 3), as tensor parallelism has them, or on (0, 1) and (2, 3), as
data parallelism across these groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Final, Literal, NamedTuple

from shardproof.frontends.fx.place import NUMBERED, Box, Shape

#: The part that every rank has.
Layout = tuple[int, ...]
#: What is chosen of several: pieces of a fused tensor, or the layout of an extent.
Kind = tuple[object, ...]
Choice = Mapping[Kind, int]
#: What a tensor is to the step: what has the same size and role is divided in the same way.
Role = Literal["batch", "parameter", "output"]
#: Sets of groups of one size in which every rank is once, beyond which no more are looked for.
MOST_COVERS: Final = 8
#: Parts that an assumption names.
MOST_NAMED: Final = 8


def layouts(groups: Iterable[tuple[int, ...]], ranks: int) -> list[Layout]:
    """The ways in which ranks may share parts, of groups that collectives name; all of them in
    their order first, then places in groups of neighbours, then those across.

    Example: of the groups (0, 1) and (2, 3) of four ranks: (0, 1, 2, 3), (0, 1, 0, 1) and
    (0, 0, 1, 1).
    """
    members = sorted({tuple(g) for g in groups if 1 < len(g) < ranks})
    made: dict[Layout, None] = {tuple(range(ranks)): None}
    for size in sorted({len(group) for group in members}):
        own = [group for group in members if len(group) == size]
        alike = _by_distances(own)
        covers = [cover for group in alike for cover in islice(_covers(group, 0, ranks), 1)]
        for cover in covers or islice(_covers(own, 0, ranks), MOST_COVERS):
            place = {r: (i, n) for n, group in enumerate(cover) for i, r in enumerate(group)}
            made.setdefault(tuple(place[r][0] for r in range(ranks)))
            made.setdefault(tuple(place[r][1] for r in range(ranks)))
    return list(made)


def _by_distances(groups: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Groups of the same distances between their ranks, as those of one axis of a mesh are, those
    of neighbours first."""
    made: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for group in groups:
        made.setdefault(tuple(rank - group[0] for rank in group), []).append(group)
    return [made[distances] for distances in sorted(made)]


def _covers(
    groups: Sequence[tuple[int, ...]], placed: int, ranks: int
) -> Iterator[list[tuple[int, ...]]]:
    """Sets of groups in which every rank is once; ``placed``: ranks that have a group, as bits."""
    first = next((r for r in range(ranks) if not placed >> r & 1), None)
    if first is None:
        yield []
        return
    for group in groups:
        bits = sum(1 << r for r in group)
        if first in group and not placed & bits:
            for rest in _covers(groups, placed | bits, ranks):
                yield [group, *rest]


def words(layout: Layout) -> str:
    """Which ranks have which part.

    Example: "part 0 on ranks [0, 2], part 1 on ranks [1, 3]".
    """
    parts = range(max(layout) + 1)
    named = [
        f"part {part} on ranks {[r for r, own in enumerate(layout) if own == part]}"
        for part in parts[:MOST_NAMED]
    ]
    return ", ".join([*named, *(["and so on"] if len(parts) > MOST_NAMED else [])])


def picked(choice: Choice, kind: Kind, name: str) -> int:
    """Which of several placements an input or output of this name has: as the choice says of it, or
    of all of its kind; the first one if it says nothing.

    Example: of {("layout", 4, 2, "batch"): 1}, 1 for every input of that kind.
    """
    return choice.get((*kind, layer(name)), choice.get(kind, 0))


def layer(name: str) -> str:
    """What a layer's weight and bias have in common, and those of the same layer once more: they
    are divided alike.  Names that are only numbers have nothing in common.

    Example: of "p_3_up_weight" and "p_4_up_bias" it is "p_#_up", of "ids" and "primals_4" that.
    """
    if NUMBERED.match(name):
        return name
    named = re.sub(r"\d+", "#", name)
    return named.removesuffix("weight").removesuffix("bias").rstrip("_.") or named


class Over(NamedTuple):
    """The layouts over which an extent of an input or output may be divided, of which a choice
    takes one (`picked`).

    Example: rows 16 of which ranks have 8, on a mesh of two axes of two ranks: either axis.
    """

    name: str
    kind: Kind
    fit: tuple[Layout, ...]

    def layout(self, choice: Choice) -> Layout:
        """The layout that a choice takes.

        Example: without a choice the first one.
        """
        return self.fit[picked(choice, self.kind, self.name) % len(self.fit)]

    def options(self) -> list[tuple[str, ...]]:
        """The layouts in words; none where there is one alone.

        Example: [("part 0 on ranks [0, 2], ...", "part 0 on ranks [0, 1], ...")].
        """
        return [tuple(map(words, self.fit))] if len(self.fit) > 1 else []


def over(name: str, full: int, part: int, size: int, every: Sequence[Layout], role: Role) -> Over:
    """The layouts of ``size`` parts over which ``full`` positions may be divided, of which ranks
    have ``part``; of a batch those across groups come first.  Where no groups have them, ranks
    that are neighbours share a part, or those that are ``size`` apart.

    Example: 16 positions in two parts of 8, with the layouts (0, 1, 0, 1) and (0, 0, 1, 1); the two
    heads of keys of which each of four ranks has one, without such groups: (0, 0, 1, 1) and
    (0, 1, 0, 1).
    """
    fit = [layout for layout in every if max(layout) + 1 == size] or _shared(size, every)
    return Over(name, ("layout", full, part, role), tuple(fit[::-1] if role == "batch" else fit))


def _shared(size: int, every: Sequence[Layout]) -> list[Layout]:
    """The layouts of ``size`` parts of which as many ranks have each, by the order of ranks."""
    ranks = len(every[0]) if every else 0
    if not 1 < size < ranks or ranks % size:
        return []
    return [
        tuple(rank * size // ranks for rank in range(ranks)),
        tuple(rank % size for rank in range(ranks)),
    ]


class Divided(NamedTuple):
    """A tensor that is divided: its box, how in words, and the extents of which several layouts
    fit.

    Example: rows of [16, 8] of which four ranks have [8, 8]: along dimension 0, part 0 on ranks
    [0, 2], part 1 on ranks [1, 3].
    """

    box: Box
    words: str
    over: tuple[Over, ...]


def divided(
    name: str,
    full: Shape,
    part: Shape,
    every: Sequence[Layout],
    role: Callable[[int, int], Role],
    choice: Choice,
) -> Divided | None:
    """Where the parts of a tensor lie that is smaller along some dimensions, by the layouts that
    there are; None: none fits.  ``role``: what the tensor is, by a size and that of a part.

    Example: parts [8, 8] of [16, 8] on four ranks with groups (0, 1) and (2, 3) are rows by the
    place in the group, unless ``choice`` says otherwise.
    """
    dims = [d for d in range(len(full)) if len(part) == len(full) and part[d] != full[d]]
    if not dims or any(not part[d] or full[d] % part[d] for d in dims):
        return None
    starts = [[0] * len(full) for _ in every[0]]
    left, texts, extents = list(every), [], []
    for d in dims:
        own = role(full[d], part[d])
        extent = over(name, full[d], part[d], full[d] // part[d], left, own)
        if not extent.fit:
            return None
        layout = extent.layout(choice)
        left = [other for other in left if other != layout]
        for start, place in zip(starts, layout, strict=True):
            start[d] = place * part[d]
        texts.append(f"along dimension {d}, {words(layout)}")
        extents.append(extent)
    box = Box(name, full, tuple(map(tuple, starts)))
    if len(set(box.starts)) != prod(full[d] // part[d] for d in dims):
        return None
    return Divided(box, "is divided " + " and ".join(texts), tuple(extents))
