"""Both sides of a recorded job as a plan, with its table of expectations.

Rows come from the single side alone: its loss, every one of its parameters, its outputs.  What has
no counterpart on the parallel side is a row that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import SOME_ROWS, Assumption, Kind
from shardproof.engine.plan.assumptions import some
from shardproof.engine.plan.ir import Addend, Expectation, Plan
from shardproof.frontends.aten.positive import OF_NUMBERS, assumed_of
from shardproof.frontends.torch import labels
from shardproof.frontends.torch.counterparts import none_alone
from shardproof.frontends.torch.derivative import only
from shardproof.frontends.torch.families import Compared, shown
from shardproof.frontends.torch.lower import Result, with_tables
from shardproof.frontends.torch.mesh import Spread
from shardproof.frontends.torch.sides import Sides
from shardproof.frontends.torch.trace import BY_NAME, CHOSEN, Box

LOSS, GRADIENT, OUTPUT = "loss", "gradient", "output"
#: The kind of rows that ask how losses combine, before it is known.
CANDIDATE = "loss combination"


class Combination(NamedTuple):
    """How the losses of ranks are the single side's: those of every group of ranks together by
    ``how``, all terms of a rank, and of the single side, by ``own`` ("sum" or "mean"); for example
    the mean over ((0, 1),)."""

    how: str
    groups: tuple[tuple[int, ...], ...]
    own: str = "sum"

    @property
    def demand(self) -> str:
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


def plan(sides: Sides, name: str = "torch", combination: Combination | None = None) -> Plan:
    """The plan, with losses combined in one way; with None, there is a row for every way there is
    (to find out which holds: such a plan is no question for a verdict).

    Example: an MLP with ``up`` has the rows (``loss``, "loss"), (``gradient``, "up.weight"),
    (``gradient``, "up.bias").
    """
    builder = _Rows(sides)
    if combination is None:
        ways = enumerate(combinations(sides))
        losses = [row for n, way in ways for row in builder.losses(way, f"{CANDIDATE} {n}")]
        rows: tuple[Expectation, ...] = (*losses, *builder.tensors())
    else:
        rows = (*builder.losses(combination), *builder.tensors())
    if not rows:
        raise InvalidInput("the single side has no loss, no gradient and no output to compare")
    return Plan(
        name,
        with_tables(sides.single, sides.ranks),
        tuple(family.program for family in sides.families.families),
        microbatches=1,
        assumed=(*assumed(sides), *derived_stand_ins(sides)),
        notes=(*notes(sides), *(() if combination is None else (combination.text(),))),
        expectations=rows,
    )


def derived_stand_ins(sides: Sides) -> tuple[Assumption, ...]:
    """Inputs that are others, moved, such as shifted labels, where these are read too: a proof
    holds whatever they are, a difference may need that they have nothing to do with each other."""
    return tuple(
        Assumption("stand-in", name, "", f"{name} is taken for any numbers, whatever {d.base} is")
        for name, (d, otherwise) in sides.single.derived.items()
        if otherwise or any(side.derived.get(name, (d, True))[1] for side in sides.ranks)
    )


def probe(sides: Sides) -> Plan:
    """The plan in which every way to combine losses is a row.  Where all ranks run one program,
    nothing else is in it: what no loss depends on, nobody waits for.

    Example: with two ranks, the rows "loss combination 0" (every rank by itself), 1 (the mean) and
    2 (the sum).
    """
    whole = plan(sides)
    if len(whole.programs) > 1:
        return whole
    rows = tuple(r for r in whole.expectations if r.kind.startswith(CANDIDATE))
    if not rows:
        return whole
    single = {a.value for row in rows for a in row.single}
    values = {a.value for row in rows for a in row.parallel}
    return replace(
        whole,
        single=only(whole.single, single),
        programs=tuple(only(program, values) for program in whole.programs),
        expectations=rows,
    )


class _Rows:
    """The rows of the table."""

    def __init__(self, sides: Sides) -> None:
        self.families = sides.families
        self.single = sides.single.results
        self.parallel: dict[tuple[str, str], list[tuple[int, Compared]]] = {}
        for number, family in enumerate(sides.families.families):
            for compared in family.results:
                self.parallel.setdefault(compared.result.compared.row, []).append(
                    (number, compared)
                )
        self.bases = {f.program.base: n for n, f in enumerate(sides.families.families)}

    def of(self, kind: str) -> list[Result]:
        return [r for r in self.single if r.compared.kind == kind]

    # -- losses -----------------------------------------------------------------------------

    def losses(self, way: Combination, kind: str = LOSS) -> Iterator[Expectation]:
        own = self.of(LOSS)
        if not own:
            return
        part = Fraction(1, len(own)) if way.own == "mean" else Fraction(1)
        single = tuple(Addend(0, 0, r.value, part) for r in own)
        terms = self.parallel.get((LOSS, LOSS), [])
        if not terms or any(compared.result.value < 0 for _, compared in terms):
            yield Expectation(LOSS, LOSS, single, ())
            return
        for group in self.groups(way):
            programs = [self.bases[rank] for rank in group.ranks]
            compared = [(n, h) for n, h in terms if n in programs]
            count = Counter(n for n, _ in compared)
            programs_together = len(count) if way.how == "mean" else 1
            over = tuple((axis, way.how) for axis in group.axes)
            addends = tuple(
                self.addend(
                    n,
                    h,
                    Fraction(1, programs_together * (count[n] if way.own == "mean" else 1)),
                    over,
                )
                for n, h in compared
            )
            yield Expectation(kind, LOSS, single, addends)

    def groups(self, way: Combination) -> list[Spread]:
        """The groups of ranks whose losses combine, as programs name them; none, if some cannot be
        named so."""
        spreads = [self.families.spread(group, group[0]) for group in way.groups]
        known = [one for one in spreads if one is not None]
        return list(dict.fromkeys(known)) if len(known) == len(spreads) else []

    @staticmethod
    def addend(
        program: int,
        compared: Compared,
        weight: Fraction = Fraction(1),
        over: tuple[tuple[str, str], ...] = (),
    ) -> Addend:
        return Addend(program, 0, compared.result.value, weight, over)

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Iterator[Expectation]:
        """Gradients, outputs, new parameters and states; none is of the parallel side alone."""
        none_alone({x.compared.row for x in self.single}, self.parallel, self.families)
        for result in self.single:
            if result.compared.kind == LOSS:
                continue
            row = result.compared.row
            if result.value >= 0:
                yield from self.rows(row, result)
                continue
            for number, other in self.parallel.get(row, []):
                if other.result.value >= 0:
                    name = self.families.families[number].program.name
                    missing = "the single side has none (.grad is None)"
                    raise InvalidInput(f"{name} has a {row[0]} of {row[1]}, {missing}")

    def rows(self, row: tuple[str, str], result: Result) -> Iterator[Expectation]:
        """One row for every program that has a part; those whose parts add up have one
        together."""
        single = (Addend(0, 0, result.value),)
        kind, name = row
        parts = self.parallel.get(row, [])
        if not parts:
            yield Expectation(kind, name, single, ())
        done: set[int] = set()
        for index, (number, other) in enumerate(parts):
            if index in done:
                continue
            box = other.result.compared.box
            if other.result.value < 0:
                if box is None or 0 not in box.shape:  # nothing is held where a shard is empty
                    yield Expectation(kind, name, single, ())
                continue
            group = self.partial(number, box)
            programs = [self.bases[rank] for rank in group.ranks]
            over = tuple((axis, "partial") for axis in group.axes)
            # A program may hold several pieces: each is a row, and adds up with those of its box.
            together = [index] if not programs else self.alike(parts, index, programs)
            done.update(together)
            addends = tuple(
                self.addend(n, h, factor(box), over)
                for n, h in (parts[i] for i in together)
                if h.result.value >= 0
            )
            yield Expectation(kind, name, single, addends, other.offset or ())

    @staticmethod
    def alike(
        parts: Sequence[tuple[int, Compared]], index: int, programs: Sequence[int]
    ) -> list[int]:
        """``found[index]``, and of every other program the first of what it holds of that box."""
        own, other = parts[index]
        first = {own: index}
        for i, (number, compared) in enumerate(parts):
            if number in programs and compared.offset == other.offset:
                first.setdefault(number, i)
        return [*first.values()]

    def partial(self, number: int, box: Box | None) -> Spread:
        """The programs, and the axes, along which local tensors have to be added up."""
        ranks = partial(box)
        if not ranks:
            return Spread((), ())
        spread = self.families.spread(ranks, self.families.families[number].first)
        if spread is None:
            raise InvalidInput(f"a partial value over ranks {list(ranks)[:16]}, which are no group")
        return spread


def assumed(sides: Sides) -> Iterator[Assumption]:
    """What is assumed of the parts that ranks have, and of ranks that were not captured, such as
    "ranks 2-7 do what captured ranks do along the axes of the mesh"."""
    yield from parts(sides)
    for note in noted(sides):
        if note.startswith(CHOSEN):
            yield Assumption("stated", SOME_ROWS, note.removeprefix(CHOSEN), note)
    yield from assumed_of(note for side in (sides.single, *sides.ranks) for note in side.notes)
    ranks = sides.families.assumed
    if ranks:
        captured = shown(tuple(step.trace.rank for step in sides.steps))
        yield Assumption(
            "not captured",
            f"ranks {shown(ranks)}",
            "capture",
            f"ranks {shown(ranks)} do what captured ranks do along the axes of the mesh: they were "
            f"not captured (captured: {captured})",
        )


def partial(box: Box | None) -> tuple[int, ...]:
    """Ranks whose local tensors have to be added up, by the framework's own metadata, such as (0,
    1)."""
    if box is None or not box.partial:
        return ()
    if len(box.partial) > 1:
        raise InvalidInput(f"{box.name} is partial along {len(box.partial)} mesh dimensions")
    ((_, ranks),) = box.partial
    return ranks


def factor(box: Box | None) -> Fraction:
    """What a partial tensor counts for in the sum over its ranks: 1, or 1 over their number for an
    average, for example 1/2 over two."""
    if box is None or not box.partial:
        return Fraction(1)
    ((op, ranks),) = box.partial
    if op not in ("sum", "avg"):
        raise InvalidInput(f"{box.name} is partial by {op}")
    return Fraction(1, len(ranks)) if op == "avg" else Fraction(1)


def check_names(sides: Sides) -> None:
    """Parameters of the parallel side are boxes of parameters of the single side; raises
    `InvalidInput` for one that is not, by name: "nothing says what parameter w is a part of", for
    example."""
    single = sides.single_step
    full = {i.name: single.values[i.value].shape for i in single.inputs if i.kind != "batch"}
    for step in sides.steps:
        for local, box in step.boxes.items():
            where = f"rank {step.trace.rank}"
            if box.name not in full:
                raise InvalidInput(
                    f"nothing says what parameter {local} is a part of; {_STATE}", where
                )
            if box.full_shape != full[box.name]:
                raise InvalidInput(
                    f"parameter {local} has full shape {list(box.full_shape)} by {box.said}, the "
                    f"single side has {list(full[box.name])}"
                    + (f"; {_STATE}" if box.said in BY_NAME else ""),
                    where,
                )


_STATE = "job.start(model, parameters={name: sp.piece(...)}) says which part of a parameter it is"

#: Who says which part of a parameter a rank has: the kind of assumption that it is, and in words.
_SOURCES: dict[str, tuple[Kind, str]] = {
    "DTensor": ("framework", "as its DTensor spec says"),
    "DDP": ("framework", "all of the parameter of the same name, as DDP gives it to every rank"),
    "FSDP1": ("framework", "as FSDP's flat parameters say"),
    "stated": ("stated", "as stated in job.start"),
    "Megatron": ("framework", "as Megatron's metadata for checkpoints says"),
    "same name": ("inferred", "all of the parameter of the same name"),
    "computed": ("stated", "computed from the full one"),
}


def parts(sides: Sides) -> Iterator[Assumption]:
    """What is assumed of the parts of parameters that ranks have, by who says it, with counts.

    Example: "parameters of ranks are as its DTensor spec says (8 of 8)".

    Where nothing but the name and the shape speaks, it is inferred; one rank has all there is.
    """
    counts = Counter(box.said for step in sides.steps for box in step.boxes.values())
    for source, count in sorted(counts.items()):
        kind, how = _SOURCES.get(source, ("user's word", f"as {source} says"))
        if kind == "inferred" and all(step.trace.world_size == 1 for step in sides.steps):
            kind = "default"
        names = dict.fromkeys(
            name for step in sides.steps for name, box in step.boxes.items() if box.said == source
        )
        text = f"parameters of ranks are {how} ({count} of {counts.total()})"
        if kind == "inferred":
            text += f": {some(names)}; parameters={{name: sp.same(name)}} of job.start states it"
        yield Assumption(kind, "parameters of ranks", "capture", text)


def notes(sides: Sides) -> tuple[str, ...]:
    """What the recorder had to assume, and what is not compared, for example "no gradients
    compared: the single side has none"."""
    lines = []
    if not any(r.value >= 0 and r.compared.kind == GRADIENT for r in sides.single.results):
        lines.append("no gradients compared: the single side has none")
    lines += labels.noted(sides.single_step)
    lines += [note for note in noted(sides) if not note.startswith(CHOSEN)]
    own = [note for side in (sides.single, *sides.ranks) for note in side.notes]
    lines += [note for note in own if note not in OF_NUMBERS]
    return tuple(dict.fromkeys(lines))


def noted(sides: Sides) -> tuple[str, ...]:
    """What the recorder had to assume, on any side, such as "of rows whose number data say ..."."""
    steps = (sides.single_step, *sides.steps)
    return tuple(dict.fromkeys(note for step in steps for note in step.trace.notes))


def combinations(sides: Sides) -> list[Combination]:
    """Every way in which losses may combine, simple ones first: every rank by itself, then ranks
    at equal distances, as the axes of a mesh lie.

    Example: of two ranks with one loss each: the loss of every rank, the mean over (0, 1), the sum
    over (0, 1).
    """
    builder = _Rows(sides)
    own = builder.parallel.get((LOSS, LOSS), [])
    terms = Counter(number for number, _ in own)
    most = max(len(builder.of(LOSS)), *terms.values(), 0)
    ranks = sorted(r for n in terms for r in sides.families.families[n].ranks)
    count = len(ranks)
    result: dict[tuple[str, str, frozenset[Spread]], Combination] = {}
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
            owns = ("sum",) if most == 1 else ("mean", "sum")
            for own_terms in owns:
                for how in hows:
                    way = Combination(how, groups, own_terms)
                    named = frozenset(builder.groups(way))
                    if named:
                        result.setdefault((how, own_terms, named), way)
    return list(result.values())
