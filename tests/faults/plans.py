"""Small plans, right ones, and functions that put one fault into a plan.

Plans come from the zoo at a tiny size.  A plan whose ranks along an axis share one program can be
taken `apart`, so that a fault sits on one of them only.  Everything here edits `engine.plan.ir`
plans; `tests.faults.records` edits the records of real nnScaler plans.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from shardproof.engine.plan import same_model as pairing
from shardproof.engine.plan.ir import Attr, Body, Call, Op, Plan, Program, Shard, Value
from shardproof.engine.plan.unrolled import unrolled
from shardproof.engine.plan_files import wellformed
from shardproof.frontends.zoo import build
from shardproof.inputs.assume import Assumptions
from shardproof.run import pipeline
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result

Operands = tuple[int, ...]
OpEdit = Callable[[Op], Op]
BodyEdit = Callable[[Body], Body]
ProgramEdit = Callable[[Program], Program]


@functools.cache
def llama(
    *,
    dp: int = 1,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    microbatches: int = 1,
    layers: int = 1,
    sequence_parallel: bool = False,
    sequence: int = 8,
    kv_heads: int = 2,
    ffn: int = 24,
) -> Plan:
    """A tiny Llama, laid out over ranks."""
    return build(
        "llama3-8b",
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        microbatches=microbatches,
        layers=layers,
        sequence_parallel=sequence_parallel,
        hidden=16,
        heads=4,
        vocabulary=32,
        sequence=sequence,
        kv_heads=kv_heads,
        ffn=ffn,
    )


@functools.cache
def apart_llama() -> Plan:
    """Two tensor-parallel ranks of a tiny Llama, each with a program of its own."""
    return unrolled(llama(tp=2), "tp")


def verify(plan: Plan, *, exhaustive: bool = False, out: Path | None = None) -> Result:
    """The verdict on a plan in memory, as the command line comes to it: well formed, of one model,
    then partitioned, solved and composed.  Raises `InvalidInput` where the verdict would be that.
    The run is kept in ``out`` if that is given.
    """
    wellformed.check(plan)
    pairing.check(plan)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as folder:
        options = Options(executor="local", workers=1, exhaustive=exhaustive, cache=False)
        return pipeline.run(
            plan,
            options=options,
            settings=options.settings(),
            out=out or Path(folder),
            assumptions=Assumptions(),
            load_seconds=0.0,
            progress=Progress(),
        )


def assert_proved(plan: Plan) -> Result:
    """Assert that a plan is proved, with every conclusion."""
    result = verify(plan)
    assert result.verdict == "proved", (result.reason, result.findings[:3])
    assert result.conclusions
    assert all(c.holds for c in result.conclusions)
    return result


def assert_refuted(
    plan: Plan,
    *,
    kind: str,
    operator: str | None = None,
    ranks: tuple[int, ...] | None = None,
    layer: str | None = None,
    says: str = "",
) -> Result:
    """Assert that a plan is refuted by a first finding of this kind and place."""
    result = verify(plan)
    assert result.verdict == "refuted", (result.verdict, result.reason)
    assert result.findings
    found = result.findings[0]
    assert found.kind == kind, found
    assert operator is None or found.operator == operator, found
    assert ranks is None or found.ranks == ranks, found
    assert layer is None or found.layer == layer, found
    assert says in found.message, found
    if kind == "mismatch":
        assert found.expected != found.actual, found
    return result


# -- editing ---------------------------------------------------------------------------------------


def edit_program(plan: Plan, program: int, change: ProgramEdit) -> Plan:
    programs = list(plan.programs)
    programs[program] = change(programs[program])
    return replace(plan, programs=tuple(programs))


def edit_body(plan: Plan, program: int, name: str, change: BodyEdit) -> Plan:
    """Change the body called ``name`` of one program."""

    def within(held: Program) -> Program:
        number = [body.name for body in held.bodies].index(name)
        bodies = list(held.bodies)
        bodies[number] = change(bodies[number])
        return replace(held, bodies=tuple(bodies))

    return edit_program(plan, program, within)


def find(body: Body, name: str, nth: int = 0, layer: str | None = None) -> int:
    """The number of the ``nth`` operator called ``name`` (in the module ``layer``)."""
    found = [
        i
        for i, op in enumerate(body.ops)
        if op.name == name and (layer is None or op.source.module == layer)
    ]
    return found[nth]


def edit_op(
    plan: Plan,
    name: str,
    change: OpEdit,
    *,
    nth: int = 0,
    body: str = "forward",
    program: int = 0,
    layer: str | None = None,
) -> Plan:
    """Change one operator of one program."""

    def within(held: Body) -> Body:
        number = find(held, name, nth, layer)
        ops = list(held.ops)
        ops[number] = change(ops[number])
        return replace(held, ops=tuple(ops))

    return edit_body(plan, program, body, within)


def attrs(**changed: Attr) -> OpEdit:
    """Other attributes."""
    return lambda op: replace(op, attrs={**op.attrs, **changed})


def named(name: str) -> OpEdit:
    """Another operator on the same operands."""
    return lambda op: replace(op, name=name)


def exchanged(first: int = 0, second: int = 1) -> OpEdit:
    """Two inputs exchanged."""

    def change(op: Op) -> Op:
        inputs = list(op.inputs)
        inputs[first], inputs[second] = inputs[second], inputs[first]
        return replace(op, inputs=tuple(inputs))

    return change


def outputs_exchanged(op: Op) -> Op:
    return replace(op, outputs=tuple(reversed(op.outputs)))


def identity(op: Op) -> Op:
    """Gives out its first input instead."""
    return Op("identity", op.inputs[:1], op.outputs, {}, source=op.source)


def twice(name: str, body: Body) -> Body:
    """The first operator called ``name``, of one input and one output, applied to its result
    too."""
    number = find(body, name)
    op = body.ops[number]
    between = len(body.values)
    return replace(
        body,
        values=(*body.values, body.values[op.outputs[0]]),
        ops=(
            *body.ops[:number],
            replace(op, outputs=(between,)),
            replace(op, inputs=(between,)),
            *body.ops[number + 1 :],
        ),
    )


def appended(body: Body, name: str, inputs: Operands, shape: tuple[int, ...]) -> Body:
    """One more operator at the end, whose result nobody reads."""
    output = len(body.values)
    return replace(
        body,
        values=(*body.values, Value(shape, name=f"unread {name}")),
        ops=(*body.ops, Op(name, inputs, (output,))),
    )


def scaled_input(
    plan: Plan, name: str, factor: Attr, *, nth: int = 0, body: str = "forward", program: int = 0
) -> Plan:
    """A number multiplied into the first input of an operator."""

    def within(held: Body) -> Body:
        number = find(held, name, nth)
        op = held.ops[number]
        between = len(held.values)
        scale = Op("mul", op.inputs[:1], (between,), {"other": factor}, source=op.source)
        return replace(
            held,
            values=(*held.values, held.values[op.inputs[0]]),
            ops=(
                *held.ops[:number],
                scale,
                replace(op, inputs=(between, *op.inputs[1:])),
                *held.ops[number + 1 :],
            ),
        )

    return edit_body(plan, program, body, within)


def on_microbatch(plan: Plan, microbatch: int, change: BodyEdit, program: int = 0) -> Plan:
    """One microbatch runs bodies of its own: a copy of the forward body with a change, and a copy
    of its backward.  The program has one forward and one backward call per microbatch."""

    def within(held: Program) -> Program:
        names = [body.name for body in held.bodies]
        forward, backward = names.index("forward"), names.index("backward")
        count = len(held.bodies)
        bodies = (
            *held.bodies,
            change(held.bodies[forward]),
            replace(held.bodies[backward], forward_body=count),
        )
        own = {forward: count, backward: count + 1}
        seen: dict[int, int] = {}
        calls = []
        for call in held.calls:
            number = seen.get(call.body, 0)
            seen[call.body] = number + 1
            moved = own.get(call.body, call.body) if number == microbatch else call.body
            calls.append(replace(call, body=moved))
        return replace(held, bodies=bodies, calls=tuple(calls))

    return edit_program(plan, program, within)


def edit_calls(
    plan: Plan, program: int, change: Callable[[Sequence[Call]], Sequence[Call]]
) -> Plan:
    return edit_program(plan, program, lambda p: replace(p, calls=tuple(change(p.calls))))


def swapped_calls(first: int, second: int) -> Callable[[Sequence[Call]], Sequence[Call]]:
    def change(calls: Sequence[Call]) -> Sequence[Call]:
        changed = list(calls)
        changed[first], changed[second] = changed[second], changed[first]
        return changed

    return change


def edit_shard(plan: Plan, program: int, name: str, change: Callable[[Shard], Shard]) -> Plan:
    def within(held: Program) -> Program:
        return replace(held, shards=tuple(change(s) if s.name == name else s for s in held.shards))

    return edit_program(plan, program, within)


def renamed(plan: Plan, first: str, second: str, programs: Sequence[int] = (0,)) -> Plan:
    """Two parameters exchange their names."""
    other = {first: second, second: first}
    for program in programs:
        plan = edit_program(
            plan,
            program,
            lambda p: replace(
                p, shards=tuple(replace(s, name=other.get(s.name, s.name)) for s in p.shards)
            ),
        )
    return plan


# -- ranks with programs of their own --------------------------------------------------------------
