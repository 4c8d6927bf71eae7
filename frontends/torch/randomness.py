"""What ranks draw, beside what the single device draws: the parts, and what is assumed of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import some
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch.draws import Drawn, Part, Parts
from shardproof.frontends.torch.families import families
from shardproof.frontends.torch.lower import Side, lower
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.sides import ALONE, Sides
from shardproof.frontends.torch.trace import DRAW, START, Trace, tensors_of


class Meeting(NamedTuple):
    """A draw of rank ``rank`` that is part of what the single device draws.

    Example: rank 1's mask [4, 8] of a dropout, which is the part at (4, 0) of the one of [8, 8].
    """

    rank: int
    own: Drawn
    single: Drawn
    part: Part

    def meets(self, other: Meeting) -> bool:
        """Whether two draws are of some of the same numbers."""
        bounds = zip(
            self.part.offset, self.own.shape, other.part.offset, other.own.shape, strict=False
        )
        return self.part.name == other.part.name and all(
            a < b + m and b < a + n for a, n, b, m in bounds
        )

    def same(self, other: Meeting) -> bool:
        """Whether two draws that meet are one: of the same part, from equal states."""
        return (self.part, self.own.shape, self.own.state) == (
            other.part,
            other.own.shape,
            other.own.state,
        )


class Placed(NamedTuple):
    """Both sides with what they draw: ``meetings``, every draw of a rank that is part of one of the
    single device's, and ``findings``, those that cannot be.  ``complete``: there is no other draw;
    ``standing``: the sides with constants in place of all that is drawn.

    Example: of a dropout under data parallelism, two meetings and no findings, ``complete``.
    """

    sides: Sides
    standing: Sides
    meetings: list[Meeting]
    findings: tuple[Finding, ...]
    complete: bool


def draws(sides: Sides) -> bool:
    """Whether any step draws random numbers.

    Example: one with a dropout in training does.
    """
    return any(side.draws for side in (sides.single, *sides.ranks))


def compared_too(draws: Sequence[Drawn]) -> bool:
    """Whether a uniform number is used as it is and is compared, too.

    Example: ``u = torch.rand(8); y = u * (u < 0.5)``.
    """
    return any(
        own.partners and any(other.state.startswith(f"{own.state} ") for other in draws)
        for own in draws
    )


def relowered(
    sides: Sides,
    parts: Mapping[int, Parts],
    *,
    standing: bool = False,
    partners: bool = False,
) -> Sides:
    """Both sides with what they draw: ``parts`` by rank (`ALONE`: of the single side); with
    ``standing``, constants stand for all of it; with ``partners``, what draws meet are results.

    Example: with the parts of a dropout's mask its operator is a product with a random input.
    """
    inference = Inference()

    def again(number: int, step: Functional, side: Side) -> Side:
        tables = None if number == ALONE else single.contents
        return lower(
            step,
            inference,
            tables,
            side.reading,
            parts=parts.get(number),
            standing=standing,
            partners=partners,
            cuts=side.cuts,
            reads_memory=side.reads_memory,
            alike=side.alike,
            sliced=side.windows.sliced,
        )

    single = sides.single
    single = again(ALONE, sides.single_step, sides.single)
    ranks = {
        step.trace.rank: again(step.trace.rank, step, side)
        for step, side in zip(sides.steps, sides.ranks, strict=True)
    }
    names = {group: name for step in sides.steps for name, group in step.trace.groups}
    world = sides.steps[0].trace.world_size
    together = sides.families.mesh is not None
    known = families(ranks, world, names, together=together)
    return Sides(single, sides.single_step, tuple(ranks.values()), sides.steps, known)


def alone(sides: Sides) -> dict[str, Part]:
    """What the single side draws: each draw is all of an input of its own.

    Example: the mask [8, 16] of the first dropout is "random 0" from (0, 0) on.
    """
    return {
        drawn.state: Part(f"random {n}", drawn.shape, (0,) * len(drawn.shape))
        for n, drawn in enumerate(sides.single.draws)
    }


def drawn_alike(step: Functional, single: Functional) -> frozenset[str]:
    """The states from which a rank and the single device draw the same numbers: all that they draw
    from ``job.start`` up to there is drawn from equal states by the same operators, for tensors of
    equal shapes and types.

    Example: where all ranks draw the noise [4, 8] of the whole batch after one seed, and cut their
    rows of it, its state; after a dropout of their own rows, none.
    """
    alike = set()
    for own, other in zip(_sequence(step.trace), _sequence(single.trace), strict=False):
        if own != other:
            break
        alike.add(own[0])
    return frozenset(alike)


def _sequence(trace: Trace) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """The draws since ``job.start``: the state, the operator, its numbers and what it fills."""
    started = False
    for event in trace.events:
        started = started or event.name == START
        if started and DRAW in event.kwargs:
            numbers = [a for a in event.args if isinstance(a, (int, float))]
            filled = [trace.tensors[n] for n in event.writes or tensors_of(*event.outputs)]
            shapes = [(t.shape, t.dtype) for t in filled]
            yield str(event.kwargs[DRAW]), event.name, (*numbers, *shapes)


# -- what contradicts -----------------------------------------------------------------------------


def unlike(sides: Sides, meetings: Sequence[Meeting]) -> Iterator[Finding]:
    """Draws that cannot be parts of what the single device draws: with another chance, or from
    another state (or of another part) where another rank draws some of the same numbers.

    Example: after ``torch.manual_seed(job.rank)``, two ranks that hold the same activations drop
    other elements of them.
    """
    known: dict[str, list[Meeting]] = {}
    for meeting in meetings:
        if (meeting.own.kind, meeting.own.given) != (meeting.single.kind, meeting.single.given):
            what = f"draws with {_text(meeting.own)}, the single device with "
            yield _finding(sides, meeting, what + _text(meeting.single))
        before = known.setdefault(meeting.part.name, [])
        other = next((m for m in before if m.meets(meeting) and not m.same(meeting)), None)
        if other is not None:
            yield _finding(
                sides,
                meeting,
                f"draws other numbers than rank {other.rank} for the same elements: the states of "
                "their generators differ (another seed, or another number of draws before), or "
                "what they draw them for does",
            )
        if not any(m.same(meeting) for m in before):
            before.append(meeting)


def entangled(meetings: Sequence[Meeting]) -> frozenset[tuple[int, str]]:
    """By rank and state, draws of 0 or 1 that compare one uniform number on one side, and several
    on the other: what they have to do with each other is not the same.

    Example: ``u = rand(8); a, b = u < 0.5, u < 0.9`` beside ``rand(8) < 0.5`` and ``rand(8) <
    0.9``.
    """
    ways: dict[tuple[int, bool, str, tuple[int, ...]], set[str]] = {}
    for m in meetings:
        own, single = m.own.state.split(" ")[0], m.single.state.split(" ")[0]
        ways.setdefault((m.rank, True, own, m.part.offset), set()).add(single)
        ways.setdefault((m.rank, False, single, m.part.offset), set()).add(own)
    return frozenset(
        (m.rank, m.own.state)
        for m in meetings
        if len(ways[m.rank, True, m.own.state.split(" ")[0], m.part.offset]) > 1
        or len(ways[m.rank, False, m.single.state.split(" ")[0], m.part.offset]) > 1
    )


def _text(drawn: Drawn) -> str:
    given = ", ".join(str(float(x)) for x in drawn.given)
    return f"{drawn.kind.removeprefix('random.')}({given})"


def _finding(sides: Sides, meeting: Meeting, what: str) -> Finding:
    step = next(s for s in sides.steps if s.trace.rank == meeting.rank)
    event = step.trace.events[meeting.own.event]
    source = step.trace.sources[event.source]
    return Finding(
        "unlike draws",
        f"rank {meeting.rank}'s {event.name} at {source} {what}",
        operator=event.name,
        layer=step.trace.modules[event.module],
        source=source,
        ranks=(meeting.rank,),
    )


# -- what is assumed -------------------------------------------------------------------------------


def assumed(placed: Placed, standing: bool) -> Iterator[Assumption]:
    """What is taken for granted of numbers that are drawn; ``standing``: of sides that have
    constants in their place.

    Example: "ranks draw the numbers that the single device draws, for the elements that they have
    (2 draws, at train.py:12 (forward)), and whatever these are".
    """
    if standing:
        yield _assumption("constants stand for what is drawn: nothing is dropped")
        return
    draws, step = placed.sides.single.draws, placed.sides.single_step.trace
    places = sorted({step.sources[step.events[d.event].source] for d in draws})
    yield _assumption(
        "ranks draw the numbers that the single device draws, for the elements that they have "
        f"({len(draws)} draws, at {some(places)}), and whatever these are"
    )
    parts = [m.part for m in placed.meetings]
    if len(set(parts)) < len(parts):
        yield _assumption(
            "ranks that have the same elements draw the same numbers: their generators have the "
            "same seed, as far as the program gives one, and draw alike after job.start"
        )


def _assumption(text: str) -> Assumption:
    return Assumption("inferred", "random operators", "capture", text)
