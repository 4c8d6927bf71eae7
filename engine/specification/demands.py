"""What a plan's expectations demand of tensors: which values of both sides each row is about.

A row of `engine.plan.expectations.table` becomes one demand, or one for every microbatch where
these are unrolled and not added up.  Conclusions, coverage, simulation, the cone of what is live
and the checker read demands and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.plan.expectations import GRADIENT, LOSS, reach, shape_of, table
from shardproof.engine.plan.ir import ACCUMULATED, MICROBATCH, Expectation, Plan, Program, Shard
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.specification.given import Given
from shardproof.engine.specification.gradients import Derived

Shape = tuple[int, ...]


class Sum(NamedTuple):
    """``weight`` times the sum of ``tensors`` of one program, along ``over``, (axis, extent), and
    along the microbatches of those that have one if ``batched``.

    Example: ``Sum(0, (8,), Fraction(1, 4), (("dp", 2),), True)``: the mean of the losses of two
    replicas with two microbatches each.
    """

    program: int
    tensors: tuple[int, ...]
    weight: Fraction
    over: tuple[tuple[str, int], ...] = ()
    batched: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """A row of the table, resolved.

    Example: "gradient" of "w1" on rank 1: ``expected`` is tensor 16 of the single-device side,
    ``shape`` (8, 8) of ``full`` (16, 8), at ``offset`` (8, 0).

    ``program``: the first one that holds it (-1: none); ``shard``: its shard whose accumulated
    gradient this is (-1: none); ``expected``: the single-device value (-1: zero), which begins at
    ``origin`` of the tensor of shape ``full`` that boxes are of; ``sums``: what adds up to the box
    of ``shape`` at ``offset`` (none: it is all of it); ``problem``: why it cannot hold.
    """

    kind: str
    name: str
    program: int
    expected: int
    sums: tuple[Sum, ...]
    full: Shape
    shape: Shape
    offset: tuple[Affine, ...] = ()
    origin: tuple[int, ...] = ()
    shard: int = -1
    required: bool = True
    problem: str = ""

    @property
    def value(self) -> int:
        """The first tensor of the parallel side (-1: none)."""
        return self.sums[0].tensors[0] if self.sums else -1

    @property
    def relative(self) -> tuple[Affine, ...]:
        """Where the box begins in the single-device value."""
        place = self.offset or (ZERO,) * len(self.full)
        return tuple(o - n for o, n in zip(place, self.origin or (0,) * len(place), strict=True))


def demands(plan: Plan, derived: Derived, parallel: Unrolled) -> list[Demand]:
    """The demands of a plan, in the order of its table.

    Example: two demands of the loss and two of each gradient, where two ranks are programs of their
    own; one of each where they are one program.
    """
    rows = table(plan)
    resolver = _Resolver(plan, derived, parallel)
    return [*(d for row in rows for d in resolver.of(row)), *_left_out(plan, rows)]


def compared_alone(plan: Plan, derived: Derived, parallel: Unrolled) -> tuple[set[int], set[int]]:
    """The tensors of both sides that are held against one another as they are: nothing is added up
    over ranks or microbatches first.

    Example: of the mean of two replicas' losses and two gradients ({16, 17}, {18, 19}).
    """
    single, many, added = set[int](), set[int](), set[int]()
    for demand in demands(plan, derived, parallel):
        if not demand.required:
            continue
        own = demand.sums[0] if len(demand.sums) == 1 else None
        if own is not None and own == Sum(own.program, own.tensors[:1], Fraction(1)):
            single.add(demand.expected)
            many.update(own.tensors)
        else:
            added.add(demand.expected)
    return single - added - {-1}, many


def roots(plan: Plan, derived: Derived, parallel: Unrolled) -> tuple[set[int], set[int]]:
    """The tensors of both sides that conclusions are about.

    Example: of the loss and two gradients ({8, 16, 17}, {8, 18, 19}).
    """
    required = [demand for demand in demands(plan, derived, parallel) if demand.required]
    single = {*derived.gradients.values(), *(demand.expected for demand in required)}
    many = {v for demand in required for term in demand.sums for v in term.tensors}
    if derived.gradients:
        single |= {v for _, _, v in derived.unrolled.gradients}
    if not plan.expectations:
        many |= {v for _, _, v in (*parallel.losses, *parallel.gradients)}
    return single - {-1}, many


class _Resolver:
    """Finds what rows are about; single-device gradients and parameters are known by name."""

    def __init__(self, plan: Plan, derived: Derived, parallel: Unrolled) -> None:
        self.plan = plan
        self.derived = derived
        self.parallel = parallel
        self.read = Given(plan, parallel)
        shards = plan.single.shards
        self.full = {shard.name: shard.full_shape for shard in shards}
        self.parts: dict[str, list[tuple[Shard, int]]] = {}
        for number, value in derived.gradients.items():
            self.parts.setdefault(shards[number].name, []).append((shards[number], value))

    def of(self, row: Expectation) -> Iterator[Demand]:
        """The demands of one row."""
        if not row.parallel:
            yield self.missing(row)
            return
        first = row.parallel[0]
        program = self.plan.programs[first.program]
        number = first.value if first.body == ACCUMULATED else -1
        shape = shape_of(program, first)
        demand = self.held_against(
            row,
            Demand(
                row.kind,
                row.name,
                first.program,
                -1,
                (),
                shape,
                shape,
                row.offset,
                shard=number,
                required=row.required,
            ),
        )
        frozen = number >= 0 and not program.shards[number].trainable
        if demand.expected < 0 and frozen and not self.plan.expectations:
            return
        for microbatch, sums, problem in _sums(self.plan, self.parallel, self.read, row):
            offset = demand.offset
            if microbatch >= 0:
                offset = tuple(start.fix(MICROBATCH, microbatch) for start in offset)
            yield Demand(
                demand.kind,
                demand.name,
                demand.program,
                demand.expected,
                sums,
                demand.full,
                demand.shape,
                offset,
                demand.origin,
                demand.shard,
                demand.required,
                demand.problem or problem,
            )

    def missing(self, row: Expectation) -> Demand:
        """A row without a counterpart."""
        problem = (
            "no rank computes a loss"
            if row.kind == LOSS
            else f"the single-device {row.kind} {row.name} has no counterpart"
        )
        value = self.derived.values.get((row.kind, row.name), -1)
        full = self.derived.unrolled.tensors[value].shape if value >= 0 else ()
        return Demand(
            row.kind, row.name, -1, value, (), full, full, problem=problem, required=row.required
        )

    def held_against(self, row: Expectation, demand: Demand) -> Demand:
        """The demand with the single-device value that it is about."""
        if row.single:
            value = self.derived.values[row.kind, row.name]
            full = self.derived.unrolled.tensors[value].shape
            return replace(demand, expected=value, full=full)
        full = self.full.get(row.name, demand.full)
        demand = replace(demand, full=full)
        extents = _extents(self.plan, self.plan.programs[demand.program])
        parts = self.parts.get(row.name, [])
        for shard, value in parts:
            if shard.shape == full or _lies_in(demand, shard, extents):
                origin = tuple(start.const for start in shard.offset)
                return replace(demand, expected=value, origin=origin)
        if parts:
            problem = "is held across boxes that the single-device program holds apart"
            return replace(demand, problem=problem)
        return demand


def _extents(plan: Plan, program: Program) -> dict[str, int]:
    return {**program.extents, MICROBATCH: plan.microbatches}


def _lies_in(demand: Demand, shard: Shard, extents: Mapping[str, int]) -> bool:
    """Whether a box lies in what the single device holds as one shard, at all coordinates."""
    place = demand.offset or (ZERO,) * len(demand.full)
    for start, size, own, extent in zip(
        place, demand.shape, shard.offset, shard.shape, strict=True
    ):
        low, high = reach(start, extents)
        if low < own.const or high + size > own.const + extent:
            return False
    return True


def _sums(
    plan: Plan, parallel: Unrolled, read: Given, row: Expectation
) -> Iterator[tuple[int, tuple[Sum, ...], str]]:
    """What adds up to the value of a row, by microbatch (-1: of all, or of none); with a problem
    where it is not computed once."""
    tensors = [read.of(addend) for addend in row.parallel]
    apart = [
        t for a, t in zip(row.parallel, tensors, strict=True) if MICROBATCH not in dict(a.over)
    ]
    numbers = sorted({m for t in apart for _, m in t} - {-1}) or [-1]
    for number in numbers:
        sums, problem = [], ""
        for addend, known in zip(row.parallel, tensors, strict=True):
            extents = _extents(plan, plan.programs[addend.program])
            batched = MICROBATCH in dict(addend.over)
            here = tuple(t for t, m in known if batched or m in (number, -1))
            weight = addend.weight
            for axis, how in addend.over:
                weight /= extents[axis] if how == "mean" else 1
            axes = tuple((axis, extents[axis]) for axis, _ in addend.over if axis != MICROBATCH)
            on_its_way = not known and read.computed(addend)
            if not here and addend.body != ACCUMULATED and not on_its_way:
                problem = "is never computed"
            elif len(here) > 1 and not batched:
                problem = f"is computed {len(here)} times"
            if here:
                sums.append(Sum(addend.program, here, weight, axes, batched and parallel.symbolic))
        yield number, tuple(sums), problem


def _left_out(plan: Plan, rows: Sequence[Expectation]) -> Iterator[Demand]:
    """Where a plan has a table of its own: what it has to say and does not.  Every rank that holds
    a part of a parameter must end with a gradient of it, if any is expected."""
    if not plan.expectations:
        return
    expected = {row.name: row for row in rows if row.kind == GRADIENT}
    named = {(row.name, a.program) for row in rows if row.kind == GRADIENT for a in row.parallel}
    for number, program in enumerate(plan.programs):
        for shard in program.shards:
            expectation = expected.get(shard.name)
            if expectation is None or not shard.trainable or shard.updated_as >= 0:
                continue
            if (shard.name, number) not in named:
                named.add((shard.name, number))
                yield Demand(
                    GRADIENT,
                    shard.name,
                    number,
                    -1,
                    (),
                    shard.full_shape,
                    shard.shape,
                    problem="is expected nowhere, though a part of the parameter is held",
                )
