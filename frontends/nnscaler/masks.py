"""Masks of operators that draw random numbers: inputs that are loaded like the batch.

An operator's mask is known by the name of its result, which both traces of a model give alike.
Each call of a body that drops loads the masks of its microbatch first (`with_masks`); `aligned`
puts the loads of two sides into one order: the batch, then the masks.  What the sides are assumed
to have in common is said by `assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import some
from shardproof.engine.plan.ir import Body, Call, Op, Program, Source, Value
from shardproof.engine.schedule.dataflow import Structure, flow, label
from shardproof.engine.schedule.messages import match
from shardproof.frontends.nnscaler.records import Box

#: The name of the bodies that load masks.
MASKS: Final = "masks"
_LOAD: Final = "load_batch"

#: By mask, where each plan device draws which part of it.
Drawings = dict[str, dict[int, set[Box]]]


def of(name: str) -> str:
    """What the mask is called that is drawn for the result ``name``.

    Example: "mask of dropout".
    """
    return f"mask of {name}"


# -- loads of one side -----------------------------------------------------------------------------


def with_masks(
    programs: Sequence[Program], drawn: Sequence[Mapping[int, Sequence[str]]]
) -> list[Program]:
    """The programs with the masks loaded that their bodies read as their last inputs; ``drawn``:
    for each program, by body the names of those masks.

    Example: a stage whose segment drops loads the mask of each microbatch before its call.
    """
    if not any(any(bodies.values()) for bodies in drawn):
        return list(programs)
    names = sorted({n for bodies in drawn for each in bodies.values() for n in each})
    used = (slot for p in programs for call in p.calls for slot in (*call.inputs, *call.outputs))
    first = max(used, default=0) + 1
    slots = {name: first + number for number, name in enumerate(names)}
    microbatches = _labels(programs)
    return [
        _loading(program, bodies, slots, microbatches[number])
        for number, (program, bodies) in enumerate(zip(programs, drawn, strict=True))
    ]


def _labels(programs: Sequence[Program]) -> list[list[int]]:
    """The microbatch of each call by its data flow; -1 where that does not tell."""
    unknown = [[-1] * len(program.calls) for program in programs]
    try:
        return label(programs, [flow(p) for p in programs], match(programs)) or unknown
    except Structure:
        return unknown


def _loading(
    program: Program,
    drawn: Mapping[int, Sequence[str]],
    slots: Mapping[str, int],
    microbatches: Sequence[int],
) -> Program:
    values: dict[str, Value] = {}
    for number, names in drawn.items():
        body = program.bodies[number]
        for name, value in zip(names, body.inputs[len(body.inputs) - len(names) :], strict=True):
            values[name] = body.values[value]
    if not values:
        return program
    order = tuple(range(len(values)))
    load = Body(MASKS, tuple(values.values()), (_load(order),), outputs=order)
    calls: list[Call] = []
    before: dict[int, int] = {}
    for call, known in zip(program.calls, microbatches, strict=True):
        names = drawn.get(call.body, ())
        if names:
            turn = before.get(call.body, 0)
            before[call.body] = turn + 1
            microbatch = known if known >= 0 else turn
            loaded = tuple(slots[name] for name in values)
            calls.append(Call(len(program.bodies), (), loaded, microbatch))
            call = replace(call, inputs=(*call.inputs, *(slots[name] for name in names)))
        calls.append(call)
    return replace(program, bodies=(*program.bodies, load), calls=tuple(calls))


def _load(outputs: tuple[int, ...]) -> Op:
    return Op(_LOAD, (), outputs, {}, False, Source(MASKS))


# -- both sides ------------------------------------------------------------------------------------


def aligned(single: Program, programs: Sequence[Program]) -> tuple[Program, tuple[Program, ...]]:
    """Both sides with masks at the same positions of their loads; raises `InvalidInput` for a mask
    that the single-device side does not draw.

    Example: with "mask of dropout" on both sides: the batch is what every rank loads first, that
    mask second.
    """
    known = {value.name: value for value in _masks(single)}
    values = {value.name: value for program in programs for value in _masks(program)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidInput(f"the {unknown[0]} is drawn by no operator of the single-device plan")
    if not known:
        return single, tuple(programs)
    order = [*sorted(values), *sorted(set(known) - set(values))]
    batch = next(_batches([single]), ())
    local = next(_batches(programs), ())
    front = local if len(local) == len(batch) else batch
    # What no rank draws is loaded too, and read by nothing.
    masks = [values.get(name, known[name]) for name in order]
    return (
        _together(single, [known[name] for name in order]),
        tuple(_placed(program, front, masks) for program in programs),
    )


def _masks(program: Program) -> Iterator[Value]:
    return (value for body in program.bodies if body.name == MASKS for value in body.values)


def _batches(programs: Sequence[Program]) -> Iterator[tuple[Value, ...]]:
    """What the loads of the batch give, in the order of the programs."""
    for program in programs:
        for body in program.bodies:
            for op in body.ops if body.name != MASKS else ():
                if op.name == _LOAD:
                    yield tuple(body.values[v] for v in op.outputs)


def _placed(program: Program, batch: Sequence[Value], masks: Sequence[Value]) -> Program:
    """The program with every load one of the batch and of all masks."""
    names = [value.name for value in masks]
    values = (*batch, *masks)
    bodies = list(program.bodies)
    for number, body in enumerate(bodies):
        if body.name == MASKS:
            outputs = tuple(len(batch) + names.index(value.name) for value in body.values)
            load = _load(tuple(range(len(values))))
            bodies[number] = replace(body, values=values, ops=(load,), outputs=outputs)
        elif _loads(program, number):
            bodies[number] = _widened(body, masks)
    return replace(program, bodies=tuple(bodies))


def _together(program: Program, masks: Sequence[Value]) -> Program:
    """The single-device program with its one load of the batch and of all masks."""
    number, load = next((n, body) for n, body in enumerate(program.bodies) if body.name == MASKS)
    own_call = next(call for call in program.calls if call.body == number)
    slots = {
        load.values[v].name: slot for v, slot in zip(load.outputs, own_call.outputs, strict=True)
    }
    calls = [call for call in program.calls if call.body != number]
    at = next((n for n, call in enumerate(calls) if _loads(program, call.body)), -1)
    if at < 0:
        raise InvalidInput("expected a single-device plan that loads its batch, found none")
    wider = _widened(program.bodies[calls[at].body], masks)
    given = range(len(wider.values) - len(masks), len(wider.values))
    wider = replace(wider, outputs=(*wider.outputs, *given))
    outputs = (*calls[at].outputs, *(slots[mask.name] for mask in masks))
    bodies = [wider if n == calls[at].body else b for n, b in enumerate(program.bodies)]
    calls[at] = replace(calls[at], outputs=outputs)
    return replace(program, bodies=tuple(bodies[:number]), calls=tuple(calls))


def _widened(body: Body, masks: Sequence[Value]) -> Body:
    """A body that loads the batch, and the masks with it."""
    first = len(body.values)
    more = tuple(range(first, first + len(masks)))
    ops = tuple(
        replace(op, outputs=(*op.outputs, *more)) if op.name == _LOAD else op for op in body.ops
    )
    claims = (*body.claims, *(None for _ in masks)) if body.claims else ()
    return replace(body, values=(*body.values, *masks), ops=ops, claims=claims)


def _loads(program: Program, number: int) -> bool:
    """Whether a body loads the batch."""
    body = program.bodies[number]
    return body.name != MASKS and any(op.name == _LOAD for op in body.ops)


# -- what is assumed -------------------------------------------------------------------------------


def assumed(drawings: Drawings, slices: int) -> tuple[Assumption, ...]:
    """What a parallel plan is taken to draw; ``slices``: of the batch, one for each microbatch of
    each replica.

    Example: "dropout keeps the same elements on both sides: the masks of dropout are equal by the
    name of the result, and whatever was drawn".
    """
    if not drawings:
        return ()
    names = sorted(drawings)
    shared = [n for n in names if _shared(drawings[n])]
    cut = [n for n in names if len({box for boxes in drawings[n].values() for box in boxes}) > 1]
    sentences = [
        f"dropout keeps the same elements on both sides: the masks of {some(names)} are equal by "
        "the name of the result, and whatever was drawn"
    ]
    if shared:
        sentences.append(
            f"ranks that have the same part of {some(shared)} draw the same mask there, as "
            "generators with one seed that draw alike do"
        )
    if cut:
        sentences.append(
            f"where ranks have parts of {some(cut)}, each draws the part of the single-device mask "
            "that the plan records its result to be"
        )
    if slices > 1:
        sentences.append(
            f"of the masks of {some(names)} each microbatch of each replica draws its own slice, "
            f"one of {slices}"
        )
    return tuple(Assumption("inferred", "random operators", "", text) for text in sentences)


def _shared(devices: Mapping[int, set[Box]]) -> bool:
    """Whether a part is drawn in two places."""
    seen: set[Box] = set()
    for boxes in devices.values():
        if boxes & seen:
            return True
        seen |= boxes
    return False
