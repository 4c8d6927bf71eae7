"""Both sides of a recorded job as a plan, with its table of expectations.

Rows come from the single side alone: its loss, every one of its parameters, its outputs.  What has
no counterpart on the parallel side is a row that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Addend, Expectation, Plan
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch.functional import functional
from shardproof.frontends.torch.lower import Result, Side, lower
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.trace import Box, Trace

LOSS, GRADIENT, OUTPUT = "loss", "gradient", "output"
#: The kind of rows that ask how losses combine, before it is known.
CANDIDATE = "loss combination"


class Combination(NamedTuple):
    """How the losses of ranks are the single side's: those of every group of ranks together by
    ``how``, all terms of a rank, and of the single side, by ``own`` ("sum" or "mean")."""

    how: str
    groups: tuple[tuple[int, ...], ...]
    own: str = "sum"

    @property
    def said(self) -> str:
        """What a user demands of it: of ranks, or of a rank's terms where ranks are alone."""
        return self.own if all(len(g) == 1 for g in self.groups) else self.how

    def text(self) -> str:
        """In words, for the verdict."""
        if all(len(g) == 1 for g in self.groups):
            own = "mean of every rank's losses" if self.own == "mean" else "loss of every rank"
            return f"the {own} is the single-device loss"
        shown = ", ".join(str(list(g)) for g in self.groups[:4])
        more = f" and {len(self.groups) - 4} more groups" if len(self.groups) > 4 else ""
        terms = " (of a rank's: their mean)" if self.own == "mean" else ""
        over = f"the {self.how} of the losses{terms} over ranks {shown}{more}"
        return f"{over} is the single-device loss"


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, lowered: what `plan` makes a plan of."""

    single: Side
    single_step: Functional
    ranks: tuple[Side, ...]
    steps: tuple[Functional, ...]


def sides(single: Trace, parallel: Sequence[Trace]) -> Sides:
    """Lower the traces of both sides, every rank in isolation; raises `InvalidInput`."""
    inference = Inference()
    steps = []
    if single.world_size != 1:
        raise InvalidInput(f"the single side has a world size of {single.world_size}, expected 1")
    numbers = [t.rank for t in parallel]
    worlds = {t.world_size for t in parallel}
    if len(worlds) != 1 or sorted(numbers) != list(range(max(worlds))):
        raise InvalidInput(f"traces of ranks {numbers} of worlds of {sorted(worlds)} ranks")
    for trace in (single, *sorted(parallel, key=lambda t: t.rank)):
        try:
            steps.append(functional(trace))
        except InvalidInput as error:
            where = "single side" if trace is single else f"rank {trace.rank}"
            raise error.within(where) from error
    alone = lower(steps[0], inference)
    ranks = tuple(lower(step, inference, alone.contents) for step in steps[1:])
    return Sides(alone, steps[0], ranks, tuple(steps[1:]))


def plan(found: Sides, name: str = "torch", combination: Combination | None = None) -> Plan:
    """The plan, with losses combined in one way; with None, there is a row for every way there is
    (to find out which holds: such a plan is no question for a verdict)."""
    builder = _Rows(found)
    losses = (
        list(builder.losses(combination))
        if combination is not None
        else [
            row
            for number, way in enumerate(combinations(found))
            for row in builder.losses(way, f"{CANDIDATE} {number}")
        ]
    )
    rows = (*losses, *builder.tensors())
    if not rows:
        raise InvalidInput("the single side has no loss, no gradient and no output to compare")
    return Plan(
        name,
        found.single.program,
        tuple(side.program for side in found.ranks),
        microbatches=1,
        notes=(*notes(found), *(() if combination is None else (combination.text(),))),
        expectations=rows,
        assumed=assumed(found),
    )


def assumed(found: Sides) -> tuple[Assumption, ...]:
    """Inputs that are others, moved, where these are read too: a proof holds whatever they are, a
    difference may need that they have nothing to do with each other."""
    return tuple(
        Assumption("stand-in", name, "", f"{name} is taken for any numbers, whatever {d.base} is")
        for name, (d, otherwise) in found.single.derived.items()
        if otherwise or any(side.derived.get(name, (d, True))[1] for side in found.ranks)
    )


class _Rows:
    """The rows of the table."""

    def __init__(self, found: Sides) -> None:
        self.found = found
        self.single = found.single.results

    def of(self, kind: str) -> list[Result]:
        return [r for r in self.single if r.compared.kind == kind]

    def held(self, row: tuple[str, str]) -> Iterator[tuple[int, Result]]:
        """What ranks have for a tensor of the single side."""
        for rank, side in enumerate(self.found.ranks):
            for result in side.results:
                if result.compared.row == row:
                    yield rank, result

    # -- losses -----------------------------------------------------------------------------

    def losses(self, way: Combination, kind: str = LOSS) -> Iterator[Expectation]:
        own = self.of(LOSS)
        if not own:
            return
        part = Fraction(1, len(own)) if way.own == "mean" else Fraction(1)
        single = tuple(Addend(0, 0, r.value, part) for r in own)
        terms = [(rank, r) for rank, r in self.held((LOSS, LOSS))]
        if not terms or any(r.value < 0 for _, r in terms):
            yield Expectation(LOSS, LOSS, single, ())
            return
        for group in way.groups:
            held = [(n, r) for n, r in terms if n in group]
            count = Counter(n for n, _ in held)
            over = len(count) if way.how == "mean" else 1
            addends = tuple(
                self.addend(n, r, Fraction(1, over * (count[n] if way.own == "mean" else 1)))
                for n, r in held
            )
            yield Expectation(kind, LOSS, single, addends)

    @staticmethod
    def addend(rank: int, result: Result, weight: Fraction = Fraction(1)) -> Addend:
        return Addend(rank, 0, result.value, weight)

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Iterator[Expectation]:
        """Gradients, outputs, new parameters and states."""
        for result in self.single:
            if result.compared.kind == LOSS:
                continue
            row = result.compared.row
            if result.value >= 0:
                yield from self.rows(row, result)
                continue
            for rank, other in self.held(row):
                if other.value >= 0:
                    raise InvalidInput(
                        f"rank {rank} has a {row[0]} of {row[1]}, the single side has none "
                        "(.grad is None)"
                    )

    def rows(self, row: tuple[str, str], result: Result) -> Iterator[Expectation]:
        """One row for every rank that has a part; ranks whose parts add up have one together."""
        single = (Addend(0, 0, result.value),)
        kind, name = row
        found = list(self.held(row))
        if not found:
            yield Expectation(kind, name, single, ())
        done: set[int] = set()
        for rank, other in found:
            if rank in done:
                continue
            if other.value < 0:
                yield Expectation(kind, name, single, ())
                continue
            box = other.compared.box
            group = partial(box)
            together = [(n, r) for n, r in found if n in group] if group else [(rank, other)]
            done.update(n for n, _ in together)
            held = tuple(self.addend(n, r, factor(box)) for n, r in together if r.value >= 0)
            offset = () if box is None else tuple(affine(n) for n in box.offset)
            yield Expectation(kind, name, single, held, offset)


def partial(box: Box | None) -> tuple[int, ...]:
    """Ranks whose local tensors have to be added up, by the framework's own metadata."""
    if box is None or not box.partial:
        return ()
    if len(box.partial) > 1:
        raise InvalidInput(f"{box.name} is partial along {len(box.partial)} mesh dimensions")
    ((_, ranks),) = box.partial
    return ranks


def factor(box: Box | None) -> Fraction:
    if box is None or not box.partial:
        return Fraction(1)
    ((op, ranks),) = box.partial
    if op not in ("sum", "avg"):
        raise InvalidInput(f"{box.name} is partial by {op}")
    return Fraction(1, len(ranks)) if op == "avg" else Fraction(1)


def check_names(found: Sides) -> None:
    """Parameters of the parallel side are boxes of parameters of the single side; raises
    `InvalidInput` for one that is not, by name."""
    full = {i.name: found.single_step.values[i.value].shape for i in found.single_step.inputs}
    for step in found.steps:
        for local, box in step.boxes.items():
            where = f"rank {step.trace.rank}"
            if box.name not in full:
                raise InvalidInput(f"nothing says what parameter {local} is a part of", where)
            if box.full_shape != full[box.name]:
                raise InvalidInput(
                    f"parameter {local} has full shape {list(box.full_shape)} by {box.said}, the "
                    f"single side has {list(full[box.name])}",
                    where,
                )


_SAID = {
    "DTensor": "as its DTensor spec says",
    "stated": "as stated in job.start",
    "same name": "all of the parameter of the same name",
    "computed": "computed from the full one",
}


def notes(found: Sides) -> tuple[str, ...]:
    """What is assumed of inputs, by source, with counts; what the recorder had to assume."""
    counts = Counter(box.said for step in found.steps for box in step.boxes.values())
    lines = [
        f"parameters of ranks are {_SAID.get(said, said)} ({count} of {counts.total()})"
        for said, count in sorted(counts.items())
    ]
    if not any(r.value >= 0 and r.compared.kind == GRADIENT for r in found.single.results):
        lines.append("no gradients compared: the single side has none")
    lines += [note for step in (found.single_step, *found.steps) for note in step.trace.notes]
    return tuple(dict.fromkeys(lines))


def combinations(found: Sides) -> list[Combination]:
    """Every way in which losses may combine, simple ones first: every rank by itself, then ranks
    at equal distances, as the axes of a mesh lie."""
    ranks = [
        n
        for n, side in enumerate(found.ranks)
        if any(r.compared.kind == LOSS for r in side.results)
    ]
    terms = max(
        sum(r.compared.kind == LOSS for r in side.results) for side in (found.single, *found.ranks)
    )
    count = len(ranks)
    result = []
    for size in (n for n in range(1, count + 1) if count % n == 0):
        for stride in (s for s in range(1, count + 1) if count % (s * size) == 0):
            if size == 1 and stride > 1:
                continue
            groups = tuple(
                tuple(ranks[block + at + i * stride] for i in range(size))
                for block in range(0, count, size * stride)
                for at in range(stride)
            )
            hows = ("sum",) if size == 1 else ("mean", "sum")
            owns = ("sum",) if terms == 1 else ("mean", "sum")
            result += [Combination(how, groups, own) for own in owns for how in hows]
    return result
