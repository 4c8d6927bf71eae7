"""Mutators of single operators: what they are, what they read, their numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Final

from shardproof.engine.ops.declare import lookup
from shardproof.engine.plan.collectives import COMMUNICATION
from shardproof.engine.plan.ir import Attr, Body, Op, Value
from shardproof.mutation.edit import Draft, alike, defined_before, producers
from shardproof.mutation.table import Changed, Mutator, on_operator

#: Operators that can stand for each other as far as shapes go.
ALTERNATIVES: Final = (
    ("exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu", "gelu", "identity"),
    ("add", "sub", "mul", "div"),
    ("sum", "mean", "amax"),
)
NUMBERS: Final = ("other", "eps", "exponent", "alpha", "route_scale", "count")


def local(op: Op, body: Body) -> bool:
    """Whether an operator is one that a rank runs by itself, on what it has.

    Example: ``linear`` is, ``all_reduce`` and ``load_batch`` are not.
    """
    return op.name not in COMMUNICATION and op.name != "load_batch"


def computes(op: Op, body: Body) -> bool:
    """A local operator that reads something and has a result.

    Example: ``linear`` does, ``full``, which reads nothing, does not.
    """
    return local(op, body) and bool(op.inputs) and bool(op.outputs)


def with_fields(body: Body, number: int, what: str, **fields: object) -> Changed:
    """The body with other fields of one operator.

    Example: ``with_fields(body, 27, "becomes mul", name="mul")``.
    """
    draft = Draft(body)
    draft.change(number, **fields)
    return Changed(draft.built(), what)


def with_attr(body: Body, number: int, key: str, value: Attr) -> Changed:
    """The body with another attribute of one operator.

    Example: ``with_attr(body, 21, "dim", 2)`` says "dim -1 becomes 2".
    """
    op = body.ops[number]
    attrs = {**op.attrs, key: value}
    return with_fields(body, number, f"{key} {op.attrs.get(key)} becomes {value}", attrs=attrs)


def _name(value: Value) -> str:
    return f"{value.name or 'a value'} {list(value.shape)}"


# -- what an operator is -------------------------------------------------------------------------


def another_operator(body: Body, number: int, rng: Random) -> Changed | None:
    """exp for log, add for mul, sum for mean: what takes the same operands.

    Example: "add in h.0.attn (rank 0, body forward, operator 27): becomes mul".
    """
    op = body.ops[number]
    others = [n for kinds in ALTERNATIVES if op.name in kinds for n in kinds if n != op.name]
    if len(op.inputs) == 1 and op.name in ALTERNATIVES[1]:
        others = [n for n in others if n in ("add", "mul", "div", "sub")]
    if not others:
        return None
    name = rng.choice(others)
    known = lookup(name).attrs | (op.attrs.keys() & {"wrt", "arity"})
    attrs = {key: value for key, value in op.attrs.items() if key in known}
    return with_fields(body, number, f"becomes {name}", name=name, attrs=attrs)


def removed(body: Body, number: int, rng: Random) -> Changed | None:
    """The operator gives out one of its inputs.

    Example: "rms_norm in layers.1 (rank 2, body forward, operator 2): removed, gives out hidden [1,
    4, 4096]".
    """
    op = body.ops[number]
    out = body.values[op.outputs[0]]
    same = [v for v in op.inputs if v >= 0 and body.values[v].shape == out.shape]
    if not same or len(op.outputs) != 1 or op.name in ("identity", "contiguous", "to", "float"):
        return None
    kept = rng.choice(same)
    made = replace(op, name="identity", inputs=(kept,), attrs={}, backward=False)
    return with_fields(
        body, number, f"removed, gives out {_name(body.values[kept])}", **_fields(made)
    )


def _fields(op: Op) -> dict[str, object]:
    return {
        "name": op.name,
        "inputs": op.inputs,
        "attrs": op.attrs,
        "backward": op.backward,
    }


def twice(body: Body, number: int, rng: Random) -> Changed | None:
    """The operator is applied to its own result again.

    Example: "silu in layers.0.feed_forward.experts (rank 0, body forward, operator 45): applied
    twice".
    """
    op = body.ops[number]
    if len(op.outputs) != 1 or not op.inputs or op.inputs[0] < 0 or op.backward:
        return None
    if body.values[op.inputs[0]].shape != body.values[op.outputs[0]].shape:
        return None
    draft = Draft(body)
    between = draft.value(op.outputs[0])
    draft.change(number, outputs=(between,))
    draft.ops.insert(number + 1, replace(op, inputs=(between, *op.inputs[1:])))
    return Changed(draft.built(), "applied twice")


def outputs_exchanged(body: Body, number: int, rng: Random) -> Changed | None:
    """Two outputs of the same shape the other way round.

    Example: "backward of layernorm in h.0 (rank 0, body backward, operator 12): outputs 1 and 2
    exchanged", the gradients of weight and bias.
    """
    outputs = list(body.ops[number].outputs)
    pairs = [
        (i, j)
        for i in range(len(outputs))
        for j in range(i)
        if alike(body.values[outputs[i]], body.values[outputs[j]])
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    outputs[i], outputs[j] = outputs[j], outputs[i]
    return with_fields(body, number, f"outputs {j} and {i} exchanged", outputs=tuple(outputs))


# -- what it reads -------------------------------------------------------------------------------


def inputs_exchanged(body: Body, number: int, rng: Random) -> Changed | None:
    """Two inputs of the same shape the other way round.

    Example: "layernorm in h.0 (rank 0, body forward, operator 39): inputs 1 and 2 exchanged",
    weight and bias.
    """
    inputs = list(body.ops[number].inputs)
    pairs = [
        (i, j)
        for i in range(len(inputs))
        for j in range(i)
        if inputs[i] != inputs[j]
        and min(inputs[i], inputs[j]) >= 0
        and alike(body.values[inputs[i]], body.values[inputs[j]])
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    inputs[i], inputs[j] = inputs[j], inputs[i]
    return with_fields(body, number, f"inputs {j} and {i} exchanged", inputs=tuple(inputs))


def another_input(body: Body, number: int, rng: Random) -> Changed | None:
    """One input is another tensor of the same shape that is there.

    Example: "input 0 is gradient of layers.0.attention_norm [1, 8, 4096] (141) in place of
    tok_embeddings.embedding [1, 8, 4096] (86)".
    """
    op = body.ops[number]
    choices = []
    known = defined_before(body, number)
    for i, v in enumerate(op.inputs):
        if v >= 0:
            choices += [(i, w) for w in known if w != v and alike(body.values[w], body.values[v])]
    if not choices:
        return None
    i, w = rng.choice(choices)
    inputs = (*op.inputs[:i], w, *op.inputs[i + 1 :])
    was = body.values[op.inputs[i]]
    what = f"input {i} is {_name(body.values[w])} ({w}) in place of {_name(was)} ({op.inputs[i]})"
    return with_fields(body, number, what, inputs=inputs)


def stale_input(body: Body, number: int, rng: Random) -> Changed | None:
    """One input is what its producer read, one step too early.

    Example: "backward of rms_norm in layers.0 (rank 0, body backward, operator 57): input 2 is
    taken before add_n".
    """
    op, made = body.ops[number], producers(body)
    choices = []
    for i, v in enumerate(op.inputs):
        for w in body.ops[made[v]].inputs if v in made else ():
            if w >= 0 and w != v and alike(body.values[w], body.values[v]):
                choices.append((i, w))
    if not choices:
        return None
    i, w = rng.choice(choices)
    inputs = (*op.inputs[:i], w, *op.inputs[i + 1 :])
    what = f"input {i} is taken before {body.ops[made[op.inputs[i]]].name}"
    return with_fields(body, number, what, inputs=inputs)


def one_input_twice(body: Body, number: int, rng: Random) -> Changed | None:
    """One input in place of another one too.

    Example: ``add(x, x)`` in place of ``add(x, y)``: "wpe.positions [1, 10, 96] is input 1 too".
    """
    op = body.ops[number]
    choices = [
        (i, v)
        for i, w in enumerate(op.inputs)
        for v in op.inputs
        if min(v, w) >= 0 and v != w and alike(body.values[v], body.values[w])
    ]
    if not choices:
        return None
    i, v = rng.choice(choices)
    inputs = (*op.inputs[:i], v, *op.inputs[i + 1 :])
    return with_fields(body, number, f"{_name(body.values[v])} is input {i} too", inputs=inputs)


def fewer_addends(body: Body, number: int, rng: Random) -> Changed | None:
    """One addend of a sum is left out (in backward: one contribution to a gradient).

    Example: "add_n (rank 0, body backward, operator 65): without addend 0".
    """
    op = body.ops[number]
    if op.name not in ("add", "add_n") or op.backward or len(op.inputs) < 2:
        return None
    gone = rng.randrange(len(op.inputs))
    rest = tuple(v for i, v in enumerate(op.inputs) if i != gone)
    if any(body.values[v].shape != body.values[op.outputs[0]].shape for v in rest):
        return None
    name = op.name if len(rest) > 1 else "identity"
    attrs = op.attrs if len(rest) > 1 else {}
    return with_fields(body, number, f"without addend {gone}", name=name, inputs=rest, attrs=attrs)


def other_gradient(body: Body, number: int, rng: Random) -> Changed | None:
    """The gradient of another input of the same shape.

    Example: "backward of mul in layers.0.feed_forward (rank 0, body backward, operator 4): wrt (0,
    1) becomes (0, 0)".
    """
    op = body.ops[number]
    wrt, arity = op.attrs.get("wrt"), op.attrs.get("arity")
    if not op.backward or not isinstance(wrt, tuple) or not isinstance(arity, int) or not wrt:
        return None
    i = rng.randrange(len(wrt))
    shape = body.values[op.outputs[i]].shape
    others = [
        j
        for j in range(arity)
        if j != wrt[i] and op.inputs[j] >= 0 and body.values[op.inputs[j]].shape == shape
    ]
    if not others:
        return None
    return with_attr(body, number, "wrt", (*wrt[:i], rng.choice(others), *wrt[i + 1 :]))


def missing_gradient(body: Body, number: int, rng: Random) -> Changed | None:
    """A backward operator that does not get one of its gradients.

    Example: "backward of apply_rotary_emb in layers.1.attention (rank 2, body backward, operator
    33): without the gradient of output 1".
    """
    op = body.ops[number]
    arity = op.attrs.get("arity")
    if not op.backward or not isinstance(arity, int):
        return None
    given = [i for i in range(arity, len(op.inputs)) if op.inputs[i] >= 0]
    if len(given) < 2:
        return None
    i = rng.choice(given)
    inputs = (*op.inputs[:i], -1, *op.inputs[i + 1 :])
    return with_fields(body, number, f"without the gradient of output {i - arity}", inputs=inputs)


# -- numbers -------------------------------------------------------------------------------------


def another_number(body: Body, number: int, rng: Random) -> Changed | None:
    """A constant: slightly off, or far.

    Example: "layernorm in h.0 (rank 0, body forward, operator 39): eps 1/100000 becomes 1/300000".
    """
    op = body.ops[number]
    keys = [k for k in NUMBERS if _is_number(op.attrs.get(k))]
    if not keys:
        return None
    key = rng.choice(keys)
    old = op.attrs[key]
    assert isinstance(old, int | Fraction)
    value = Fraction(old)
    choices = [
        value * (1 + Fraction(1, 10**3)),
        value * (1 + Fraction(1, 10**7)),
        value * 2,
        value + 1,
        -value,
        value / 3,
        Fraction(0),
        1 / value if value else Fraction(1),
    ]
    new = rng.choice([c for c in choices if c != value])
    return with_attr(body, number, key, new)


def _is_number(value: object) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def scaled_input(body: Body, number: int, rng: Random) -> Changed | None:
    """A factor is multiplied into one input.

    Example: "input 4 times 1001/1000".
    """
    op = body.ops[number]
    reals = [i for i, v in enumerate(op.inputs) if v >= 0 and "int" not in body.values[v].dtype]
    if not reals:
        return None
    i = rng.choice(reals)
    factor = rng.choice([Fraction(2), Fraction(1, 2), Fraction(-1), Fraction(1001, 1000)])
    draft = Draft(body)
    between = draft.value(op.inputs[i])
    inputs = (*op.inputs[:i], between, *op.inputs[i + 1 :])
    draft.change(number, inputs=inputs)
    draft.add(number, "mul", [op.inputs[i]], between, {"other": factor})
    return Changed(draft.built(), f"input {i} times {factor}")


OPERATORS: Final = (
    Mutator("another operator", "operators", on_operator(local, another_operator)),
    Mutator("operator removed", "missing", on_operator(computes, removed)),
    Mutator("operator twice", "extra", on_operator(computes, twice)),
    Mutator("outputs exchanged", "inputs", on_operator(computes, outputs_exchanged)),
    Mutator("inputs exchanged", "inputs", on_operator(computes, inputs_exchanged)),
    Mutator("another input", "inputs", on_operator(computes, another_input)),
    Mutator("stale input", "inputs", on_operator(computes, stale_input)),
    Mutator("one input twice", "inputs", on_operator(computes, one_input_twice)),
    Mutator("fewer addends", "missing", on_operator(computes, fewer_addends)),
    Mutator("gradient of another input", "inputs", on_operator(computes, other_gradient)),
    Mutator("gradient not given", "missing", on_operator(computes, missing_gradient)),
    Mutator("another number", "constants", on_operator(local, another_number)),
    Mutator("scaled input", "scales", on_operator(computes, scaled_input)),
)
