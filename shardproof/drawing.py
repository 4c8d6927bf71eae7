"""Which part of what the single device draws each rank draws: by the operands that draws meet.

With constants in place of all that is drawn, both sides are read once.  A draw of a rank is part of
the single device's draw whose partner is the same value; where in it, the lineages of the partners
say.  So neither names nor the order of operators matter, and a rank of a pipeline, or a microbatch,
is as good as any.  What meets none so, and is drawn as the single device draws it, is all of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import BROADCAST, Lineage
from shardproof.engine.lineage.members import concrete
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.plan.ir import Program
from shardproof.engine.specification.box import box_of
from shardproof.frontends.torch.draws import ALONE_DRAWN, Drawn, Part, Partner
from shardproof.frontends.torch.plan import plan as make_plan
from shardproof.frontends.torch.randomness import (
    Meeting,
    Placed,
    alone,
    drawn_alike,
    entangled,
    relowered,
    unlike,
)
from shardproof.frontends.torch.sides import ALONE, Sides
from shardproof.partition.stages.partition import Side, partition

#: Places of a part that are tried.
MOST_PLACES = 4096


def placed(sides: Sides) -> Placed:
    """The sides, with every draw of a rank as the part of the single device's that it is; one that
    is no part of any has no meaning.

    Example: of two replicas, the second draws the lower half of the mask of a dropout.

    What a draw meets may depend on other draws, of which constants say too little: as long as there
    are draws that are no part of any, and others of which more is known than before, both sides are
    read again with these as what they are.
    """
    best = _read(sides, {})
    while not best.complete:
        more = _read(sides, _met(best))
        if more.known <= best.known:
            break
        best = more
    findings = tuple(unlike(best.read, best.meetings))
    standing = relowered(sides, {}, standing=True)
    return Placed(relowered(sides, best.parts), standing, best.meetings, findings, best.complete)


class _Reading(NamedTuple):
    """``read``: the sides of which meetings were sought; ``parts``: what draws are, by rank."""

    read: Sides
    parts: dict[int, dict[str, Part]]
    meetings: list[Meeting]
    complete: bool

    @property
    def known(self) -> int:
        """Of how many draws of ranks it is known what they are."""
        return sum(len(own) for rank, own in self.parts.items() if rank != ALONE)


def _met(reading: _Reading) -> dict[int, dict[str, Part]]:
    """The parts of a reading, and of the single device's draws those that some rank has a part
    of."""
    names = {m.part.name for m in reading.meetings}
    single = {state: p for state, p in reading.parts[ALONE].items() if p.name in names}
    return {**reading.parts, ALONE: single}


def _read(sides: Sides, known: Mapping[int, Mapping[str, Part]]) -> _Reading:
    """Which part of the single device's every draw of a rank is, where some are ``known``."""
    read = relowered(sides, known, standing=True, partners=True)
    finder = _finder(read)
    meetings: list[Meeting] = []
    parts: dict[int, dict[str, Part]] = {ALONE: alone(read)}
    complete = True
    for step, side in zip(read.steps, read.ranks, strict=True):
        rank = step.trace.rank
        parts[rank] = {}
        drawn: dict[str, list[Meeting]] = {}
        alike = drawn_alike(step, read.single_step)
        for own, at in finder.rank(rank, side.draws):
            met = at or _whole(own, read.single.draws, alike)
            if met is None:
                complete = complete and _only_compared(own, side.draws)
                continue
            single, offset = met
            part = Part(parts[ALONE][single.state].name, single.shape, offset)
            meeting = Meeting(rank, own, single, part)
            before = drawn.setdefault(part.name, [])
            if any(m.meets(meeting) for m in before):
                # Once more than the single device: other numbers, of which it has none.
                name = f"{ALONE_DRAWN} {rank}: {len(parts[rank])}"
                parts[rank][own.state] = Part(name, own.shape, (0,) * len(own.shape))
                continue
            parts[rank][own.state] = part
            before.append(meeting)
            meetings.append(meeting)
    for rank, state in entangled(meetings):
        del parts[rank][state]
        complete = False
    return _Reading(read, parts, meetings, complete)


Met = tuple[Drawn, tuple[int, ...]]


def _whole(own: Drawn, singles: Sequence[Drawn], alike: frozenset[str]) -> Met | None:
    """The single device's draw of which a rank draws all, since both draw ``alike`` up to it: what
    a rank cuts its rows of meets nothing as a whole."""
    if own.state.split(" ")[0] not in alike:
        return None
    same = [s for s in singles if s.state == own.state and s.shape == own.shape]
    return next(((s, (0,) * len(s.shape)) for s in same if not _unlike(own, s)), None)


@dataclass(slots=True)
class _Finder:
    """Finds the draws of the single device that ranks draw parts of.

    ``singles``: its draws with the lineages of their partners, by the nodes in these.
    """

    sides: Sides
    programs: Sequence[Program]
    lineages: Mapping[tuple[int, int], Lineage]
    singles: Mapping[tuple[int, ...], list[tuple[Drawn, Partner, Lineage]]]
    #: Where a part of the same shapes lay last.
    last: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def rank(self, rank: int, draws: Sequence[Drawn]) -> Iterator[tuple[Drawn, Met | None]]:
        """Every draw of a rank, with the single device's and where its part begins; one that is
        drawn once more has the same part again."""
        number = next(n for n, f in enumerate(self.sides.families.families) if rank in f.ranks)
        program = self.programs[number]
        here = {
            name: (rank - program.base) // stride % extent for name, extent, stride in program.axes
        }
        used: set[tuple[str, tuple[int, ...]]] = set()  # by state, and where it begins
        for own in draws:
            met = None
            for partner in own.partners:
                have = self.lineages.get((number, partner.value))
                if have is not None and met is None:
                    met = self.met(own, partner, _plain(concrete(have, here)), used)
            if met is not None:
                used.add((met[0].state, met[1]))
            yield own, met

    def met(
        self, own: Drawn, partner: Partner, have: Lineage, used: set[tuple[str, tuple[int, ...]]]
    ) -> Met | None:
        """The single device's draw that meets the same value, and where the part begins: the first
        of which this part is not drawn yet, of the same numbers before others.  Where both meet it
        first, it is that draw even if all such parts are drawn (the last one is, once more), and
        if it draws other numbers."""
        again: Met | None = None
        there = self.singles.get(_nodes(have), ())
        for single, other, want in sorted(there, key=lambda one: _unlike(own, one[0])):
            first = partner == own.partners[0] and other == single.partners[0]
            if _unlike(own, single) and not first:
                continue
            for offset in self.places(partner, other):
                try:
                    box = box_of(want, [affine(n) for n in offset], have.shape, {})
                except Misaligned:
                    continue
                if _plain(box) == have:
                    start = _start(own, single, (partner, other), want, offset)
                    if start is not None and (single.state, start) not in used:
                        self.last[partner.shape] = offset
                        return single, start
                    if start is not None and first:
                        again = single, start
        return again

    def places(self, own: Partner, single: Partner) -> Iterator[tuple[int, ...]]:
        """Where the partner of a rank's draw may begin in that of the single device's."""
        sizes, full = own.shape, single.shape
        if len(sizes) != len(full) or any(n > m for n, m in zip(sizes, full, strict=True)):
            return
        along = [
            sorted({*range(0, m - n + 1, n), m - n}) if n else [0]
            for n, m in zip(sizes, full, strict=True)
        ]
        known = self.last.get(sizes)
        if known is not None and all(k in a for k, a in zip(known, along, strict=True)):
            yield known
        for count, offset in enumerate(product(*along)):
            if count < MOST_PLACES:
                yield offset


def _finder(standing: Sides) -> _Finder:
    """What is needed to find parts: both sides, read with constants in place of draws."""
    made = make_plan(standing)
    read = partition(made)
    own = _results(read.single)
    singles: dict[tuple[int, ...], list[tuple[Drawn, Partner, Lineage]]] = {}
    for drawn in standing.single.draws:
        for partner in drawn.partners:
            lineage = own.get((0, partner.value))
            if lineage is not None:
                singles.setdefault(_nodes(lineage), []).append((drawn, partner, lineage))
    return _Finder(standing, made.programs, _results(read.parallel), singles)


def _results(side: Side) -> dict[tuple[int, int], Lineage]:
    """The lineages of what bodies give out, by program and value."""
    return {
        (r.program, r.value): lineage
        for r in side.unrolled.results
        if (lineage := side.lineages[r.tensor]) is not None
    }


def _nodes(lineage: Lineage) -> tuple[int, ...]:
    return tuple(addend.node for addend in lineage.addends)


def _plain(lineage: Lineage) -> Lineage:
    """A lineage but for a constant factor, for how much of a sum has been added up (a draw may meet
    a part of a sum, if all parts meet the same), and for where single positions were put: of one
    row of a batch there is no dimension."""
    if not lineage.addends:
        return lineage
    factor = lineage.addends[0].factor or Fraction(1)
    addends = tuple(
        a._replace(factor=a.factor / factor, partials=(), view=settled(a.view))
        for a in lineage.addends
    )
    return Lineage(lineage.shape, addends)


def _only_compared(own: Drawn, draws: Sequence[Drawn]) -> bool:
    """Whether a uniform number meets nothing but constants, which another draw stands for."""
    return not own.partners and any(d.state.startswith(f"{own.state} ") for d in draws)


def _start(
    own: Drawn,
    single: Drawn,
    partners: tuple[Partner, Partner],
    want: Lineage,
    offset: Sequence[int],
) -> tuple[int, ...] | None:
    """Where a draw begins in the single device's, if its partner begins at ``offset`` in the other
    partner, whose lineage is ``want``; None if one is no part of the other, or the partner is alike
    along a dimension of which the rank has a part."""
    if len(own.shape) != len(single.shape):
        return None
    start = []
    for size, full, dim in zip(own.shape, single.shape, partners[1].dims, strict=True):
        if size == full:
            start.append(0)
        elif (size, full) == tuple(p.shape[dim] for p in partners) and _varies(want, dim):
            start.append(offset[dim])
        else:
            return None
    return tuple(start)


def _unlike(own: Drawn, single: Drawn) -> bool:
    """Whether two draws are of other numbers: normal ones and whole ones, or of other chances."""
    return (own.kind, own.given) != (single.kind, single.given)


def _varies(lineage: Lineage, dim: int) -> bool:
    """Whether the positions of a dimension are positions of values."""
    return any(i.axis != BROADCAST for t in lineage.addends for i in t.view.dims[dim])
