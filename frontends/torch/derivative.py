"""Whether the backward that a step records is the derivative of the forward that it records.

The question is a plan of its own: its single-device program is the recorded forward with the
derivative that the engine makes of it, its parallel program is what was recorded.  No gradient goes
where autograd said, while the step was recorded, that an operand gets none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shardproof.engine.errors import Unsupported
from shardproof.engine.ops import lookup
from shardproof.engine.plan.ir import Addend, Expectation, Op, Plan, Program, Value, whole
from shardproof.engine.schedule.instances import Instance
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.gradients import derive
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch.lower import Side, lower
from shardproof.frontends.torch.memory import RESHAPE, STILL, Functional
from shardproof.frontends.torch.memory import Op as Operator
from shardproof.frontends.torch.trace import tensors_of

LOSS, GRADIENT = "loss", "gradient"
#: What makes the gradient that backward begins with.
BEGINS = "aten.ones_like.default"
#: Functions that are straight on either side of 0: the derivative of their derivative is zero.
STRAIGHT = frozenset({"relu", "abs"})


def question(
    side: Side, step: Functional, losses: Sequence[Addend], gradients: Mapping[str, int]
) -> Plan:
    """The plan that is proved if the recorded backward is the derivative of the sum of ``losses``.

    Example: for an MLP with ``up`` and ``down``: the rows ``loss``, and the gradients of
    ``down.bias``, ``down.weight``, ``up.bias`` and ``up.weight``.

    ``side``, ``step``: the single side's; ``gradients``: values of its program, by parameter.
    Raises `Unsupported` where the engine has no such derivative.
    """
    recorded = only(side.program, {*(a.value for a in losses), *gradients.values()})
    forward, own = side, tuple(losses)
    if _stops(step):
        forward = _lowered(side, step, marks=True)
        numbers = _numbers(side, forward)
        own = tuple(replace(a, value=numbers[a.value]) for a in losses)
    single, derived = _differentiated(forward, own)
    if not derived and forward is not side:
        # A loss without any gradient was detached to be told: backward was from what it is of.
        own = tuple(losses)
        single, derived = _differentiated(side, own)
    rows = [Expectation(LOSS, LOSS, own, tuple(losses))]
    for name in sorted(gradients.keys() | derived.keys()):
        want = (Addend(0, 0, derived[name]),) if name in derived else ()
        have = (Addend(0, 0, gradients[name]),) if name in gradients else ()
        rows.append(Expectation(GRADIENT, name, want, have))
    return Plan("derivative", single, (recorded,), 1, expectations=tuple(rows))


def _differentiated(forward: Side, losses: Sequence[Addend]) -> tuple[Program, dict[str, int]]:
    """What losses are made of, with their derivative."""
    program = only(forward.program, {a.value for a in losses})
    return differentiated(program, losses, forward.still)


def lowered_again(
    side: Side, step: Functional, losses: Sequence[Addend], gradients: Mapping[str, int]
) -> tuple[Side, tuple[Addend, ...], dict[str, int]]:
    """The single side with another step's results, and their losses and gradients in it.

    Example: of a step with `before_changes` the gradients are those before they were clipped.
    """
    other = _lowered(side, step)
    numbers = _numbers(side, other)
    own = tuple(replace(a, value=numbers[a.value]) for a in losses)
    return other, own, {name: numbers[value] for name, value in gradients.items()}


def _lowered(side: Side, step: Functional, *, marks: bool = False) -> Side:
    """A step, read as that of the single side was."""
    return lower(
        step,
        Inference(),
        reading=side.reading,
        marks=marks,
        parts=side.parts,
        cuts=side.cuts,
        sliced=side.windows.sliced,
    )


def _numbers(side: Side, other: Side) -> dict[int, int]:
    """The results of one lowering by those of another, which are compared in the same order."""
    pairs = zip(side.results, other.results, strict=True)
    return {mine.value: theirs.value for mine, theirs in pairs}


def only(program: Program, results: Collection[int]) -> Program:
    """The program without what some results do not depend on.

    Example: of an MLP's step and its loss: ``permute``, ``matmul``, ``add``, ``gelu``, ...,
    ``sum``, ``mul``, without what the backward adds.
    """
    (body,) = program.bodies
    needed = set(results)
    kept = []
    for op in reversed(body.ops):
        if not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    own = tuple(value for value in body.results if value in results)
    return replace(program, bodies=(replace(body, ops=tuple(kept[::-1]), results=own),))


def differentiated(
    program: Program, losses: Sequence[Addend], still: Collection[int] = ()
) -> tuple[Program, dict[str, int]]:
    """A program of one body with the derivative of the sum of some of its values, and by name of
    parameter which values that are.  ``still``: values that no gradient goes through.

    Example: of ``y = w x`` the derivative is the value of ``w`` that is ``x``.
    """
    (body,) = program.bodies
    cut, origin = _cut(program, still)
    _check(cut)
    # The gradient that is asked for is of every parameter, whatever the row's name is.
    rows = (
        Expectation(LOSS, LOSS, tuple(losses), tuple(losses)),
        Expectation(GRADIENT, GRADIENT, (), ()),
    )
    given = unroll([cut], 1)
    derived = derive(Plan("derivative", cut, (cut,), 1, expectations=rows), given)
    instances, tensors = derived.unrolled.instances, derived.unrolled.tensors
    numbers: dict[int, int] = {}
    bound = {shard: value for value, shard in reversed(cut.bodies[0].shards)}
    ops = iter(cut.bodies[0].ops)
    for instance in instances[: derived.given]:
        number = instance.attrs.get("shard")
        shard = instance.kind == "shard" and isinstance(number, int)
        outputs = (bound[int(str(number))],) if shard else next(ops).outputs
        for tensor, value in zip(instance.outputs, outputs, strict=True):
            numbers[tensor] = origin.get(value, value)
    values = list(body.values)
    for instance in instances[derived.given :]:
        for tensor in instance.outputs:
            numbers[tensor] = len(values)
            values.append(Value(tensors[tensor].shape, name=tensors[tensor].name))
    made = tuple(_op(i, numbers, values) for i in instances[derived.given :])
    names = [program.shards[n].name for n in derived.gradients]
    if len(set(names)) < len(names):
        raise Unsupported("a parameter of the single side in several pieces")
    gradients = dict(zip(names, (numbers[t] for t in derived.gradients.values()), strict=True))
    results = tuple(dict.fromkeys((*body.results, *gradients.values())))
    own = replace(body, values=tuple(values), ops=(*body.ops, *made), results=results)
    return replace(program, bodies=(own,)), gradients


def _op(instance: Instance, numbers: Mapping[int, int], values: Sequence[Value]) -> Op:
    """An instance of the derivative as an operator; what enters backward is 1."""
    outputs = tuple(numbers[v] for v in instance.outputs)
    if instance.kind == "seed":
        return Op("full", (), outputs, {"size": values[outputs[0]].shape, "value": 1})
    inputs = tuple(numbers[v] if v >= 0 else -1 for v in instance.inputs)
    return Op(instance.name, inputs, outputs, instance.attrs, instance.backward, instance.source)


def _cut(program: Program, still: Collection[int]) -> tuple[Program, dict[int, int]]:
    """The program in which values are read as inputs that nothing is known of, and which value
    each of these is."""
    (body,) = program.bodies
    shards, values = list(program.shards), list(body.values)
    bound = list(body.shards)
    copies: dict[int, int] = {}
    for value in sorted({v for op in body.ops for v in op.outputs} & set(still)):
        copies[value] = len(values)
        bound.append((len(values), len(shards)))
        shape = values[value].shape
        shards.append(whole(f"still {value}", shape, trainable=False))
        values.append(values[value])
    ops = tuple(replace(op, inputs=tuple(copies.get(v, v) for v in op.inputs)) for op in body.ops)
    own = replace(body, values=tuple(values), ops=ops, shards=tuple(bound))
    origin = {copy: value for value, copy in copies.items()}
    return replace(program, bodies=(own,), shards=tuple(shards)), origin


def _check(program: Program) -> None:
    """Raise `Unsupported` where the forward has derivatives in it (a step, a scatter) through which
    a gradient goes."""
    (body,) = program.bodies
    moving = {value for value, shard in body.shards if program.shards[shard].trainable}
    for op in body.ops:
        data = lookup(op.name).index_data(len(op.inputs))
        arity = op.attrs.get("arity") if op.backward else len(op.inputs)
        count = arity if isinstance(arity, int) else 0
        read = {v for i, v in enumerate(op.inputs[:count]) if i not in data} & moving
        given = moving.intersection(op.inputs[count:])
        if op.backward and (given or (read and op.name not in STRAIGHT)):
            raise Unsupported(f"the derivative of the derivative of {op.name}")
        if read and not op.backward and op.attrs.get("other") != 0:
            moving.update(op.outputs)


def own_places(step: Functional) -> tuple[str, ...]:
    """Where anything but autograd's own operators makes gradients of a recorded loss: a custom
    function, a hook, a scaled loss, what is done to gradients afterwards.

    Example: of ``loss.backward()`` alone it is (); ``p.grad.mul_(0.5)`` in line 30 of train.py adds
    "train.py:30 (step)".
    """
    losses = {c.value for c in step.compared if c.kind == LOSS}
    forward = _cone(step, losses)
    places: dict[str, None] = {}
    backward = _cone(step, {c.value for c in step.compared if c.kind == GRADIENT})
    for number in sorted(backward - forward):
        op = step.ops[number]
        event = step.trace.events[op.event]
        begins = op.name == BEGINS and not losses.isdisjoint(tensors_of(*op.args))
        # A reshape stands where memory was read first, be it by an optimizer.
        plain = begins or op.name == RESHAPE or event.name.startswith("job.")
        if not plain and (event.own or not event.backward):
            places.setdefault(step.trace.sources[event.source])
    return tuple(places) or step.trace.functions


#: What takes a scale away again that the loss had.
SCALES = frozenset({"mul_", "div_", "_foreach_mul_", "_foreach_div_"})


def before_changes(step: Functional) -> Functional:
    """The step with the gradients that its backward left, before what was written over them then,
    but for scales that depend on no gradient.

    Example: after ``loss.backward()`` and ``clip_grad_norm_(...)``, which multiplies every gradient
    by a number that is computed of all of them, those are compared that ``loss.backward()`` left.
    """
    made = {value: op for op in step.ops for value in op.outputs}
    derived: set[int] = set()
    for op in step.ops:
        read = derived.intersection(tensors_of(*op.args, *op.kwargs.values()))
        if read or step.trace.events[op.event].backward:
            derived.update(op.outputs)
    compared = list(step.compared)
    for at, row in enumerate(compared):
        value = row.value
        while row.kind == GRADIENT and value in made:
            before = _overwritten(step, made[value], value, derived)
            if before is None:
                break
            value = before
        if value != row.value and step.values[value].shape == step.values[row.value].shape:
            compared[at] = row._replace(value=value)
    return replace(step, compared=compared)


def _overwritten(
    step: Functional, op: Operator, value: int, derived: Collection[int]
) -> int | None:
    """What was in the memory of a value that was written in place behind backward; None where it
    was not, or was scaled by what depends on no gradient."""
    event = step.trace.events[op.event]
    if event.backward or op.name != event.name or len(event.writes) != len(op.outputs):
        return None
    read = list(tensors_of(*event.args))
    written = event.writes[op.outputs.index(value)]
    values = list(tensors_of(*op.args))
    if written not in read or len(values) != len(read):
        return None
    before = values[read.index(written)]
    others = set(values) - {v for v, n in zip(values, read, strict=True) if n in event.writes}
    if op.name.split(".")[1] in SCALES and others.isdisjoint(derived):
        return None
    return before


def _cone(step: Functional, results: Collection[int]) -> set[int]:
    """The operators that results depend on, by number."""
    needed, numbers = set(results), set()
    for number in range(len(step.ops) - 1, -1, -1):
        op = step.ops[number]
        if not needed.isdisjoint(op.outputs):
            numbers.add(number)
            needed.update(tensors_of(*op.args, *op.kwargs.values()))
    return numbers


def _stops(step: Functional) -> bool:
    """Whether somewhere in a step no gradient goes to an operand that depends on a parameter."""
    moving = {i.value for i in step.inputs if i.trainable}
    for op in step.ops:
        if not moving.isdisjoint(tensors_of(*op.args, *op.kwargs.values())):
            if op.name == STILL:
                return True
            moving.update(op.outputs)
    return False
