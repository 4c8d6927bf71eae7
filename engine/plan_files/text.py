"""A plan as text that a person can read, a test can compare and `engine.plan_files.text_parser`
reads again.

Everything that a plan means is in the text; what it only records about its values (`Body.claims`,
`Plan.recorded`, `Plan.rounded`) is left out.  For example::

    plan "example" loss=sum microbatches=1 replicas=(dp)

    single "one"
      parameter "weight" float32[16, 8]
      body "forward"
        %0: float32[8, 8] "x" = load_batch()
        %1 = shard 0
        %2: float32[8, 16] = linear(%0, %1)
        %3: float32[1] = sum(%2)
        loss %3
        output %3
      call 0() -> 0
    ...

A value is ``%`` and its number in the body; slots and shards are plain numbers.  Types are written
as in PyTorch's printed shapes, affine functions of mesh coordinates in angle brackets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.plan.ir import (
    ACCUMULATED,
    Addend,
    Attr,
    Body,
    Call,
    Expectation,
    Group,
    Op,
    Plan,
    Program,
    Shard,
    Value,
)


def plan_text(plan: Plan) -> str:
    """A plan as text.

    Example: the first line is ``plan "column parallel" loss=sum microbatches=1 replicas=()``; see
    the module.
    """
    return "\n".join(_plan(plan)) + "\n"


def quoted(text: str) -> str:
    """A name: between quotes, on one line.

    Example: ``layers.0`` is ``"layers.0"``, and a line's end in it is ``\\n``.
    """
    return json.dumps(text, ensure_ascii=False)


def attribute_text(value: Attr) -> str:
    """An attribute, so that its type can be told: ``2`` is an integer and ``2/1`` a fraction.

    Example: ``<8*tp + 4>``, ``group(ranks=(0 1), axes=())``, ``(2, "x")``.
    """
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case int():
            return str(value)
        case Fraction():
            return f"{value.numerator}/{value.denominator}"
        case Affine():
            return affine_text(value)
        case Group():
            return f"group(ranks={_names(value.ranks)}, axes={_names(value.axes)})"
        case tuple():
            return f"({', '.join(map(attribute_text, value))})"


def affine_text(value: Affine) -> str:
    """An affine function of coordinates, in angle brackets.

    Example: ``<8*tp + 4>``.
    """
    return f"<{value}>"


def _names(items: Sequence[object]) -> str:
    return "(" + " ".join(map(str, items)) + ")"


def _sizes(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _type(value: Value) -> str:
    name = f" {quoted(value.name)}" if value.name else ""
    return f"{value.dtype}{_sizes(value.shape)}{name}"


def _plan(plan: Plan) -> Iterator[str]:
    yield (
        f"plan {quoted(plan.name)} loss={plan.loss} microbatches={plan.microbatches} "
        f"replicas={_names(plan.replica_axes)}"
    )
    for note in plan.notes:
        yield f"note {quoted(note)}"
    for word, program in (("single", plan.single), *(("program", p) for p in plan.programs)):
        yield ""
        yield from program_lines(word, program)
    if plan.expectations:
        yield ""
    for row in plan.expectations:
        yield expectation_text(row)


def program_lines(word: str, program: Program) -> Iterator[str]:
    """The lines of a program; ``word`` is its side.

    Example: ``program "ranks" axes: tp=2*1``, then
    ``parameter "w" float32[2, 8] of [4, 8] at (<2*tp>, <0>)``, then its bodies and calls.
    """
    base = f" base={program.base}" if program.base else ""
    axes = "".join(f" {name}={extent}*{stride}" for name, extent, stride in program.axes)
    yield f"{word} {quoted(program.name)}{base}{f' axes:{axes}' if axes else ''}"
    for shard in program.shards:
        yield f"  {shard_text(shard)}"
    for number, body in enumerate(program.bodies):
        yield from (f"  {line}" for line in _body(number, body))
    yield from (f"  {call_text(call)}" for call in program.calls)
    for slot, loss in program.seeds:
        yield f"  seed {slot} of {loss}"


def shard_text(shard: Shard) -> str:
    """A named input, for example ``parameter "w" float32[8, 8] of [16, 8] at (<8*tp>, <0>)``."""
    kind = shard.kind or ("parameter" if shard.trainable else "buffer")
    text = f"{kind} {quoted(shard.name)} {shard.dtype}{_sizes(shard.shape)}"
    if shard.shape != shard.full_shape or any(o != Affine() for o in shard.offset):
        text += f" of {_sizes(shard.full_shape)} at {attribute_text(shard.offset)}"
    if shard.kind and shard.trainable:
        text += " trainable"
    if shard.domain is not None:
        text += f" in {shard.domain[0]}..{shard.domain[1]}"
    return text + (f" updated_as={shard.updated_as}" if shard.updated_as >= 0 else "")


def _body(number: int, body: Body) -> Iterator[str]:
    mirror = f" backward_of={body.forward_body}" if body.forward_body >= 0 else ""
    yield f"body {number} {quoted(body.name)}{mirror}"
    declared: set[int] = set()

    def value(v: int) -> str:
        if v in declared or v < 0:
            return f"%{v}" if v >= 0 else "absent"
        declared.add(v)
        return f"%{v}: {_type(body.values[v])}"

    for v in body.inputs:
        yield f"  {value(v)} = input"
    for v, shard in body.shards:
        yield f"  {value(v)} = shard {shard}"
    for v, there in body.saved:
        yield f"  {value(v)} = saved {there}"
    for v, _, shard in body.reduced:
        yield f"  {value(v)} = gradient {shard}"
    for op in body.ops:
        yield f"  {op_text(op, [value(v) for v in op.outputs])}"
    for v in range(len(body.values)):
        if v not in declared:
            yield f"  {value(v)} = nothing"
    for word, numbers in (
        ("output", body.outputs),
        ("loss", body.losses),
        ("result", body.results),
    ):
        yield from (f"  {word} %{v}" for v in numbers)
    yield from (f"  accumulate %{v} into {shard}" for v, shard in body.gradients)
    yield from (f"  reduced %{v} replaces %{read} of {shard}" for read, v, shard in body.reduced)


def op_text(op: Op, outputs: Sequence[str] | None = None) -> str:
    """An operator, for example ``%2 = linear(%0, %1)``, or with ``outputs`` that have their types
    ``%2: float32[8, 16] = linear(%0, %1)``; of a reverse derivative the name is that of the forward
    operator, with ``backward`` before it."""
    left = ", ".join(outputs if outputs is not None else [f"%{v}" for v in op.outputs])
    given = ", ".join(f"%{v}" if v >= 0 else "absent" for v in op.inputs)
    return (
        f"{f'{left} = ' if left else ''}{'backward ' if op.backward else ''}{op.name}({given})"
        f"{_attributes(op.attrs)}{_source(op)}"
    )


def _attributes(attrs: Mapping[str, Attr]) -> str:
    if not attrs:
        return ""
    return " {" + ", ".join(f"{k}={attribute_text(v)}" for k, v in sorted(attrs.items())) + "}"


def _source(op: Op) -> str:
    parts = (op.source.cell, op.source.module, op.source.location)
    return f" @ {' '.join(map(quoted, parts))}" if any(parts) else ""


def call_text(call: Call) -> str:
    """A call, for example ``call 0(3) -> 4 microbatch=1``."""
    outputs = ", ".join(map(str, call.outputs))
    return (
        f"call {call.body}({', '.join(map(str, call.inputs))})"
        f"{f' -> {outputs}' if outputs else ''}"
        f"{f' microbatch={call.microbatch}' if call.microbatch >= 0 else ''}"
    )


def expectation_text(row: Expectation) -> str:
    """A row of the table, for example
    ``expect "gradient" "w": [] is [0.gradient 0] at (<2*tp>, <0>)``."""
    optional = "" if row.required else " optional"
    at = f" at {attribute_text(row.offset)}" if row.offset else ""
    return (
        f"expect {quoted(row.kind)} {quoted(row.name)}{optional}: "
        f"[{', '.join(map(_addend, row.single))}] is [{', '.join(map(_addend, row.parallel))}]{at}"
    )


def _addend(addend: Addend) -> str:
    """``1/2 * 0.1%7 sum(dp)``: value 7 of body 1 of program 0, half of it, summed along ``dp``."""
    body = "gradient " if addend.body == ACCUMULATED else f"{addend.body}%"
    over = "".join(f" {how}({axis})" for axis, how in addend.over)
    weight = f"{attribute_text(addend.weight)} * " if addend.weight != 1 else ""
    return f"{weight}{addend.program}.{body}{addend.value}{over}"
