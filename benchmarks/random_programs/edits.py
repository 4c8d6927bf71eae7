"""Random edits of a plan: one thing of its parallel side is another one.

The generator's mistakes are those that somebody makes who divides a model; these know nothing of
what they change.  An operator reads another value of the same shape, takes another constant, dim or
start, or is another operator; a collective is along another axis or left out; a body saves, reduces
or accumulates another value; a shard lies elsewhere.  Many an edit changes nothing that anybody
computes: the judge says which.

Example: ``edited(plan, Random(3))`` is ``(plan, "reads another value: add")``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Final, TypeAlias

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Plan, Program, Shard

#: The edited thing, or None where there is nothing of this kind to edit.
Edit: TypeAlias = Callable[[Program, Random], "tuple[Program, str] | None"]

#: Operators that take the same and give the same.
ALIKE: Final = (
    ("add", "sub", "mul", "div"),
    ("sigmoid", "tanh", "silu", "exp"),
    ("rsqrt", "sqrt", "log"),
    ("all_reduce", "identity"),
)


def edited(plan: Plan, random: Random) -> tuple[Plan, str] | None:
    """The plan with one random edit of one program, and which; None if the edit that was drawn has
    no place."""
    number = random.randrange(len(plan.programs))
    program = plan.programs[number]
    found = random.choice(EDITS)(program, random)
    if found is None or found[0] == program:
        return None
    programs = (*plan.programs[:number], found[0], *plan.programs[number + 1 :])
    return replace(plan, programs=programs), found[1]


def _with_body(program: Program, number: int, body: Body) -> Program:
    bodies = (*program.bodies[:number], body, *program.bodies[number + 1 :])
    return replace(program, bodies=bodies)


def _with_op(program: Program, number: int, place: int, op: Op) -> Program:
    body = program.bodies[number]
    ops = (*body.ops[:place], op, *body.ops[place + 1 :])
    return _with_body(program, number, replace(body, ops=ops))


def _some_op(
    program: Program, random: Random, wanted: Callable[[Op], bool]
) -> tuple[int, int, Op] | None:
    found = [
        (b, o, op)
        for b, body in enumerate(program.bodies)
        for o, op in enumerate(body.ops)
        if wanted(op)
    ]
    return random.choice(found) if found else None


def _written_before(body: Body, place: int) -> list[int]:
    """The values of a body that are there when an operator runs."""
    made = {v for op in body.ops for v in op.outputs}
    given = [v for v in range(len(body.values)) if v not in made]
    return [*given, *(v for op in body.ops[:place] for v in op.outputs)]


def _reads_another(program: Program, random: Random) -> tuple[Program, str] | None:
    found = _some_op(program, random, lambda op: bool(op.inputs))
    if found is None:
        return None
    number, place, op = found
    body = program.bodies[number]
    which = random.randrange(len(op.inputs))
    value = body.values[op.inputs[which]]
    others = [
        v
        for v in _written_before(body, place)
        if v != op.inputs[which]
        and body.values[v].shape == value.shape
        and body.values[v].dtype == value.dtype
    ]
    if not others:
        return None
    inputs = list(op.inputs)
    inputs[which] = random.choice(others)
    return _with_op(program, number, place, replace(op, inputs=tuple(inputs))), (
        f"reads another value: {op.name}"
    )


def _another_attribute(program: Program, random: Random) -> tuple[Program, str] | None:
    keys = (
        "other", "dim", "start", "exponent", "dim0", "dim1", "split_dim", "concat_dim", "eps",
        "peer", "src", "root", "tag",
    )  # fmt: skip
    found = _some_op(program, random, lambda op: any(key in op.attrs for key in keys))
    if found is None:
        return None
    number, place, op = found
    key = random.choice([k for k in keys if k in op.attrs])
    attrs = {**op.attrs, key: _another(op.attrs[key], random, program)}
    return _with_op(program, number, place, replace(op, attrs=attrs)), f"another {key}: {op.name}"


def _another(value: Attr, random: Random, program: Program) -> Attr:
    if isinstance(value, Fraction):
        return random.choice([value * 2, -value, 1 / value if value else Fraction(1)])
    if isinstance(value, Affine):
        axes = [axis for axis, _, _ in program.axes] or ["none"]
        moved = affine(0, {axis: 1 for axis in random.sample(axes, 1) if axis in program.extents})
        return random.choice([value + affine(1), value + moved])
    if isinstance(value, int):
        return random.choice([value + 1, value - 1, value + 2])
    return value


def _another_operator(program: Program, random: Random) -> tuple[Program, str] | None:
    names = {name: group for group in ALIKE for name in group}
    found = _some_op(program, random, lambda op: op.name in names)
    if found is None:
        return None
    number, place, op = found
    name = random.choice([n for n in names[op.name] if n != op.name])
    attrs = {} if op.name == "all_reduce" else op.attrs
    if name == "all_reduce":
        if not program.axes:
            return None
        axis = random.choice(program.axes)[0]
        attrs = {"group": Group(axes=(axis,)), "op": "sum"}
    made = replace(op, name=name, attrs=attrs)
    return _with_op(program, number, place, made), f"{name} for {op.name}"


def _another_axis(program: Program, random: Random) -> tuple[Program, str] | None:
    found = _some_op(program, random, lambda op: isinstance(op.attrs.get("group"), Group))
    if found is None:
        return None
    number, place, op = found
    axes = tuple(axis for axis, _, _ in program.axes)
    ranks = op.attrs["group"].ranks if isinstance(op.attrs["group"], Group) else ()
    if ranks:
        fewer = tuple(r for r in ranks if r == program.base or random.random() < 0.6)
        turned = random.choice([fewer, ranks[::-1], (program.base,)])
        made = replace(op, attrs={**op.attrs, "group": Group(turned)})
        return _with_op(program, number, place, made), f"{op.name} over ranks {turned}"
    if not axes:
        return None
    choices = [(axis,) for axis in axes] + ([axes] if op.name == "all_reduce" else [])
    chosen = random.choice(choices)
    made = replace(op, attrs={**op.attrs, "group": Group(axes=chosen)})
    return _with_op(program, number, place, made), f"{op.name} along {' and '.join(chosen)}"


def _another_pair(program: Program, random: Random) -> tuple[Program, str] | None:
    """A body saves, or accumulates, or reduces, what another one is for."""
    number = random.randrange(len(program.bodies))
    body = program.bodies[number]
    fields = [f for f in ("saved", "gradients", "reduced") if getattr(body, f)]
    if not fields:
        return None
    name = random.choice(fields)
    pairs = list(getattr(body, name))
    at = random.randrange(len(pairs))
    if name == "saved":
        mirror = program.bodies[body.forward_body]
        own = body.values[pairs[at][0]]
        others = [v for v, there in enumerate(mirror.values) if there.shape == own.shape]
        pairs[at] = (pairs[at][0], random.choice(others))
    elif name == "gradients" or random.random() < 0.5:
        kept = random.random() < 0.5
        own = body.values[pairs[at][-2]]
        others = [v for v, there in enumerate(body.values) if there.shape == own.shape]
        if kept:
            pairs[at] = (*pairs[at][:-2], random.choice(others), pairs[at][-1])
        else:
            del pairs[at]
    else:
        del pairs[at]
    changed = {name: tuple(pairs)}
    return _with_body(program, number, replace(body, **changed)), f"{name} of another value"


def _another_place(program: Program, random: Random) -> tuple[Program, str] | None:
    """A shard begins elsewhere, or moves along another axis."""
    divided = [
        n
        for n, s in enumerate(program.shards)
        if any(o.terms for o in s.offset) or s.shape != s.full_shape
    ]
    if not divided:
        return None
    number = random.choice(divided)
    shard = program.shards[number]
    made = replace(
        shard, offset=tuple(_elsewhere(program, shard, d, random) for d in range(len(shard.shape)))
    )
    shards: Sequence[Shard] = (*program.shards[:number], made, *program.shards[number + 1 :])
    return replace(program, shards=tuple(shards)), f"{shard.name} lies elsewhere"


def _elsewhere(program: Program, shard: Shard, dim: int, random: Random) -> Affine:
    start, size, full = shard.offset[dim], shard.shape[dim], shard.full_shape[dim]
    if size == full:
        return start
    fitting = [axis for axis, n, _ in program.axes if size * n <= full]
    choices = [affine(0), affine(full - size), start]
    choices += [affine(0, {axis: size}) for axis in fitting]
    choices += [affine(size * (program.extents[axis] - 1), {axis: -size}) for axis in fitting]
    return random.choice(choices)


def _order(program: Program, random: Random) -> tuple[Program, str] | None:
    """Two calls change places."""
    calls = list(program.calls)
    if len(calls) < 2:
        return None
    at = random.randrange(len(calls) - 1)
    calls[at], calls[at + 1] = calls[at + 1], calls[at]
    return replace(program, calls=tuple(calls)), "two calls in another order"


def _calls(program: Program, random: Random) -> tuple[Program, str] | None:
    """A call is issued once more, or not at all, or at another time."""
    calls = list(program.calls)
    at = random.randrange(len(calls))
    how = random.choice(["again", "left out", "moved"])
    call = calls[at] if how == "again" else calls.pop(at)
    if how != "left out":
        calls.insert(random.randint(0, len(calls)), call)
    return replace(program, calls=tuple(calls)), f"a call {how}"


def _slots(program: Program, random: Random) -> tuple[Program, str] | None:
    """A call reads or writes another slot."""
    slots = sorted({s for c in program.calls for s in (*c.inputs, *c.outputs)})
    places = [n for n, c in enumerate(program.calls) if c.inputs or c.outputs]
    if not places:
        return None
    at = random.choice(places)
    call = program.calls[at]
    name = random.choice([f for f in ("inputs", "outputs") if getattr(call, f)])
    bound = list(getattr(call, name))
    bound[random.randrange(len(bound))] = random.choice(slots)
    made = replace(call, **{name: tuple(bound)})
    calls = (*program.calls[:at], made, *program.calls[at + 1 :])
    return replace(program, calls=calls), f"{name} of a call in another slot"


def _losses(program: Program, random: Random) -> tuple[Program, str] | None:
    """What counts as a loss, or which slot has the gradient of which."""
    if program.seeds and random.random() < 0.5:
        seeds = list(program.seeds)
        at = random.randrange(len(seeds))
        losses = [loss for _, loss in seeds]
        seeds[at] = (seeds[at][0], random.choice(losses))
        if random.random() < 0.3:
            del seeds[at]
        return replace(program, seeds=tuple(seeds)), "the gradient of another loss"
    places = [n for n, body in enumerate(program.bodies) if body.losses]
    if not places:
        return None
    number = random.choice(places)
    body = program.bodies[number]
    shape = body.values[body.losses[0]].shape
    others = [v for v, value in enumerate(body.values) if value.shape == shape]
    more = random.choice([(), body.losses * 2, (random.choice(others),)])
    return _with_body(program, number, replace(body, losses=more)), "another loss"


def _bound(program: Program, random: Random) -> tuple[Program, str] | None:
    """A body gives or takes another value, or reads another parameter of the same shape."""
    number = random.randrange(len(program.bodies))
    body = program.bodies[number]
    fields = [f for f in ("inputs", "outputs", "shards") if getattr(body, f)]
    if not fields:
        return None
    name = random.choice(fields)
    held = list(getattr(body, name))
    at = random.randrange(len(held))
    if name == "shards":
        shape = program.shards[held[at][1]].shape
        alike = [n for n, s in enumerate(program.shards) if s.shape == shape]
        held[at] = (held[at][0], random.choice(alike))
    else:
        shape = body.values[held[at]].shape
        held[at] = random.choice([v for v, x in enumerate(body.values) if x.shape == shape])
    changed = {name: tuple(held)}
    return _with_body(program, number, replace(body, **changed)), f"other {name}"


def _microbatch(program: Program, random: Random) -> tuple[Program, str] | None:
    """A call reads another microbatch, or a seed is that of another loss."""
    numbers = sorted({c.microbatch for c in program.calls if c.microbatch >= 0})
    places = [n for n, c in enumerate(program.calls) if c.microbatch >= 0]
    if len(numbers) < 2:
        return None
    at = random.choice(places)
    call = replace(program.calls[at], microbatch=random.choice(numbers))
    calls = (*program.calls[:at], call, *program.calls[at + 1 :])
    return replace(program, calls=calls), "another microbatch is read"


EDITS: Final[tuple[Edit, ...]] = (
    _reads_another, _reads_another, _reads_another, _another_attribute, _another_attribute,
    _another_operator, _another_axis, _another_pair, _another_pair, _another_place, _order,
    _microbatch, _calls, _slots, _losses, _bound,
)  # fmt: skip
