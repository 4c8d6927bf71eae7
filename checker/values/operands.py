"""Whether every operator of a plan fits its operands: also those that no conclusion depends on.

Bodies are read as the plan has them, before anything is unrolled, joined or found dead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from operator import itemgetter

from shardproof.checker.result import Problems
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.declare import OPERATORS, understood
from shardproof.engine.plan.ir import Body, Op, Plan, Program
from shardproof.engine.reference_runtime.exchange import COLLECTIVES, OTHERS, Stuck
from shardproof.engine.reference_runtime.exchange import understood as communicates
from shardproof.engine.reference_runtime.runtime import applied
from shardproof.engine.simulation.axis_classes import Axes
from shardproof.engine.simulation.recording import Recorded, RecordingInterpreter

Shapes = tuple[tuple[int, ...], ...]


def check_operands(plan: Plan, problems: Problems) -> None:
    """Shapes that do not fit and attributes that nobody declared are problems, each named with its
    operator; what an operator needs more than shapes for is left to those who evaluate it.

    Example: "rank 0: linear in layers.0.attention: attribute strange of operator linear is not
    declared (it has none)".
    """
    known: dict[Hashable, str] = {}
    for program, body, op in _operators(plan):
        attrs = sorted(((k, v) for k, v in op.attrs.items() if k != "claimed"), key=itemgetter(0))
        given = tuple(body.values[v].shape if v >= 0 else None for v in op.inputs)
        made = tuple(body.values[v].shape for v in op.outputs)
        key = (op.name, op.backward, tuple(attrs), given, made)
        if key not in known:
            known[key] = _wrong(op, given, made)
        if known[key]:
            who = "single device" if program is plan.single else f"rank {program.base}"
            layer = f" in {op.source.module}" if op.source.module else ""
            name = f"backward of {op.name}" if op.backward else op.name
            problems.add("plan", f"{who}: {name}{layer}: {known[key]}")


def _operators(plan: Plan) -> Iterator[tuple[Program, Body, Op]]:
    """All operators of bodies that are called, of both sides."""
    for program in (plan.single, *plan.programs):
        for number in sorted({call.body for call in program.calls}):
            body = program.bodies[number]
            for op in body.ops:
                yield program, body, op


def _wrong(op: Op, given: Sequence[tuple[int, ...] | None], made: Shapes) -> str:
    """Why an operator does not fit ("" if it does)."""
    try:
        if op.name in COLLECTIVES or op.name in OTHERS:
            communicates(op)
            return ""
        if op.name not in OPERATORS:
            return ""  # whoever needs its value says so
        arity = op.attrs.get("arity") if op.backward else len(given)
        understood(op.name, arity if isinstance(arity, int) else len(given), op.attrs)
    except (Stuck, Unsupported) as error:
        return str(error)
    axes = Axes()
    inputs = [
        None if shape is None else Recorded(tuple(axes.fresh(n) for n in shape), axes.new())
        for shape in given
    ]
    try:
        shapes = tuple(x.shape for x in applied(RecordingInterpreter(axes), op, op.attrs, inputs))
    except (ShapeMismatch, Stuck) as error:
        return str(error)
    except Unsupported:
        return ""
    if shapes != made:
        return f"gives shapes {[list(s) for s in shapes]}, the plan has {[list(s) for s in made]}"
    return ""
