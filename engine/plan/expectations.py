"""What must hold of a plan: one table, from the plan to the tensors of both sides.

`table` gives the rows of a plan: its own, or what the losses and gradients of its bodies say.
`check` says what must hold of rows before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import (
    ACCUMULATED,
    COMBINATIONS,
    MICROBATCH,
    Addend,
    Expectation,
    Plan,
    Program,
)
from shardproof.engine.system.names import near

LOSS, GRADIENT, COVERAGE = "loss", "gradient", "coverage"
#: A row that is not required: that an output is the single device's once it is summed over ranks.
PARTIAL = "partial"
#: Kinds of conclusions that are no kinds of rows.
RESERVED = (COVERAGE, "single-device gradient")

Shape = tuple[int, ...]


# -- the rows --------------------------------------------------------------------------------------


def table(plan: Plan) -> tuple[Expectation, ...]:
    """All that must hold of a plan: the rows of its table, in a fixed order.

    Example: of two replicas with one parameter ``w``, a row of the loss with the addend
    ``sum(mb) sum(dp)``, and a row of the gradient of ``w`` at (0, 0), which all ranks have to have.

    Where it has none of its own: in every program that computes losses, all of them together are
    the single-device loss, combined over replicas and microbatches as `Plan.loss` says; and every
    shard of a parameter that is updated as it is gets its box of the derivative.
    """
    return plan.expectations or (*_losses(plan), *_gradients(plan))


def _losses(plan: Plan) -> Iterator[Expectation]:
    over = tuple((axis, plan.loss) for axis in (MICROBATCH, *reversed(plan.replica_axes)))
    single = tuple(_lost(0, plan.single, ()))
    computed = False
    for number, program in enumerate(plan.programs):
        addends = tuple(_lost(number, program, over))
        if addends:
            computed = True
            body = program.bodies[addends[0].body]
            name = f"{body.name}: {body.values[addends[0].value].name}"
            yield Expectation(LOSS, name, single, addends)
    if not computed:
        yield Expectation(LOSS, LOSS, single, ())


def _lost(number: int, program: Program, over: tuple[tuple[str, str], ...]) -> Iterator[Addend]:
    """The losses of the bodies that a program calls; a value that is listed twice counts twice."""
    own = tuple((a, how) for a, how in over if a == MICROBATCH or a in program.extents)
    called = {call.body for call in program.calls}
    for body in sorted(called):
        for value in program.bodies[body].losses:
            yield Addend(number, body, value, Fraction(1), own)


def _gradients(plan: Plan) -> Iterator[Expectation]:
    trained = {shard.name for shard in plan.single.shards if shard.trainable}
    for number, program in enumerate(plan.programs):
        for n, shard in enumerate(program.shards):
            if shard.updated_as < 0 and (shard.trainable or shard.name in trained):
                addends = (Addend(number, ACCUMULATED, n),)
                yield Expectation(GRADIENT, shard.name, (), addends, shard.offset)


# -- well-formedness -------------------------------------------------------------------------------


def check(plan: Plan) -> None:
    """Raise `InvalidInput`, with the row, unless the rows of a plan are well formed; its programs
    must be.

    Example: rows of which none is required are refused with "no expectation is required: nothing
    would be proved".
    """
    rows = plan.expectations
    known: dict[tuple[str, str], Expectation] = {}
    full = {shard.name: shard.full_shape for shard in plan.single.shards} if rows else {}
    for row in rows:
        try:
            _expectation(plan, row, full)
            first = known.setdefault((row.kind, row.name), row)
            if first.single != row.single:
                raise InvalidInput("is about another single-device value than a row before it")
        except InvalidInput as error:
            raise error.within(f"expectation {row.kind} {row.name}") from error
    if not rows:
        for program in (plan.single, *plan.programs):
            if any(body.results for body in program.bodies):
                raise InvalidInput("results, and no table of expectations", program.name)
        return
    if not any(row.required for row in rows):
        raise InvalidInput("no expectation is required: nothing would be proved", plan.name)
    _all_told(plan, rows)
    if any(row.kind == GRADIENT and not row.single for row in rows) and not any(
        row.kind == LOSS for row in rows
    ):
        raise InvalidInput("gradients of a loss are expected, and no loss is", plan.name)


def _all_told(plan: Plan, rows: Sequence[Expectation]) -> None:
    """Every result of every program is some row's: none is held against nothing."""
    single = {(a.body, a.value) for row in rows for a in row.single}
    expected = {(a.program, a.body, a.value) for row in rows for a in row.parallel}
    programs = [(plan.single, single)]
    for p, program in enumerate(plan.programs):
        programs.append((program, {(body, value) for q, body, value in expected if q == p}))
    for program, known in programs:
        for number, body in enumerate(program.bodies):
            for value in body.results:
                if (number, value) not in known:
                    name = body.values[value].name or value
                    raise InvalidInput(f"result {name} is in no expectation", program.name)


def _expectation(plan: Plan, row: Expectation, full: Mapping[str, Shape]) -> None:
    """``full``: the full shapes of the single-device program's inputs."""
    if not row.kind or row.kind in RESERVED:
        raise InvalidInput(f"kind {row.kind!r}, expected another word")
    if not row.single and row.kind != GRADIENT:
        raise InvalidInput("no single-device value")
    for addend in row.single:
        if addend.program or addend.over:
            raise InvalidInput("a single-device value of another program, or over axes")
        _addend(plan.single, addend)
    for addend in row.parallel:
        if not 0 <= addend.program < len(plan.programs):
            raise InvalidInput(f"program {addend.program} of {len(plan.programs)}")
        _addend(plan.programs[addend.program], addend)
    shapes = {shape_of(plan.programs[a.program], a) for a in row.parallel}
    if row.kind != LOSS and len(shapes) > 1:
        raise InvalidInput(f"addends of shapes {sorted(map(list, shapes))}")
    if row.kind == LOSS and row.offset:
        raise InvalidInput("a loss that is a box")
    if row.parallel and row.kind != LOSS:
        whole = shape_of(plan.single, row.single[0]) if row.single else full.get(row.name)
        if whole is not None:
            _box(plan, row, next(iter(shapes)), whole)


def _addend(program: Program, addend: Addend) -> None:
    if addend.body == ACCUMULATED:
        if not 0 <= addend.value < len(program.shards):
            raise InvalidInput(f"shard {addend.value} of {len(program.shards)} in {program.name}")
    elif not 0 <= addend.body < len(program.bodies):
        raise InvalidInput(f"body {addend.body} of {len(program.bodies)} in {program.name}")
    else:
        body = program.bodies[addend.body]
        if addend.value not in (*body.results, *body.losses):
            raise InvalidInput(f"value {addend.value} is no result of {body.name}", program.name)
    axes = [axis for axis, _ in addend.over]
    unknown = [a for a in axes if a != MICROBATCH and a not in program.extents]
    if unknown or len(set(axes)) < len(axes):
        hints = "".join(near(axis, program.extents) for axis in unknown)
        raise InvalidInput(f"combines over axes {axes} of {program.name}{hints}")
    if any(how not in COMBINATIONS for _, how in addend.over) or not addend.weight:
        raise InvalidInput(f"combines by {[h for _, h in addend.over]}, weight {addend.weight}")


def shape_of(program: Program, addend: Addend) -> Shape:
    """The local shape of an addend.

    Example: of the gradient of a shard that is [8, 8] of [16, 8], (8, 8).
    """
    if addend.body == ACCUMULATED:
        return program.shards[addend.value].shape
    return program.bodies[addend.body].values[addend.value].shape


def _box(plan: Plan, row: Expectation, shape: Shape, full: Shape) -> None:
    """The box lies in the single-device value at all coordinates along which it is not summed."""
    if not row.offset:
        if shape != full and (prod(shape), prod(full)) != (1, 1):
            raise InvalidInput(f"shape {list(shape)} is all of {list(full)}")
        return
    if not len(full) == len(shape) == len(row.offset):
        raise InvalidInput(f"a box of {len(shape)} dimensions in {list(full)}")
    first = row.parallel[0]
    extents = {**plan.programs[first.program].extents, MICROBATCH: plan.microbatches}
    for axis, _ in first.over:
        extents.pop(axis, None)
    for size, start, n in zip(shape, row.offset, full, strict=True):
        if any(axis not in extents for axis in start.axes):
            raise InvalidInput(f"a box at {start}, along axes that do not tell its place")
        low, high = reach(start, extents)
        if low < 0 or high + size > n:
            raise InvalidInput(f"[{start}, +{size}) does not lie in a dimension of {n}")


def reach(start: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest value over all coordinates.

    Example: ``8*tp + 4`` with ``tp`` of two positions is from 4 to 12.
    """
    steps = [c * (extents[a] - 1) for a, c in start.terms]
    return (
        start.const + sum(x for x in steps if x < 0),
        start.const + sum(x for x in steps if x > 0),
    )
