"""Mutators that are meant to keep what a plan computes: identities that a plan may use.

One operator is rewritten, or operators are inserted behind it; the backward operators that read the
same values stay as they are, and so stay right.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Final

from shardproof.engine.plan.collectives import COMMUNICATION
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Plan
from shardproof.mutation.edit import Draft, producers, readers
from shardproof.mutation.inserted import (
    doubled_and_halved,
    flattened_and_back,
    halves_added,
    identity_after,
    scaled_and_back,
    split_and_joined,
    transposed_twice,
)
from shardproof.mutation.table import Applies, Changed, Mutation, Mutator, on_operator

TWO: Final = Fraction(2)
HALF: Final = Fraction(1, 2)


def _real(op: Op, body: Body) -> bool:
    """A local operator whose first result is a real tensor."""
    if op.name in COMMUNICATION or op.name in ("load_batch", "create_mask") or not op.outputs:
        return False
    return op.name != "gate_fw" and "int" not in body.values[op.outputs[0]].dtype


def _named(*names: str) -> Applies:
    def applies(op: Op, body: Body) -> bool:
        return op.name in names and not op.backward

    return applies


def _set(body: Body, number: int, what: str, **fields: object) -> Changed:
    draft = Draft(body)
    draft.change(number, **fields)
    return Changed(draft.built(), what)


def commuted(body: Body, number: int, rng: Random) -> Changed | None:
    """Operands of a sum or product the other way round.

    Example: ``add(x, y)`` becomes ``add(y, x)``.
    """
    op = body.ops[number]
    if len(op.inputs) < 2 or op.inputs[0] == op.inputs[1] or "alpha" in op.attrs:
        return None
    inputs = list(op.inputs)
    rng.shuffle(inputs)
    if tuple(inputs) == op.inputs:
        inputs.reverse()
    return _set(body, number, "operands exchanged", inputs=tuple(inputs))


def scale_moved(body: Body, number: int, rng: Random) -> Changed | None:
    """A factor into a linear operator, and out of it behind.

    Example: ``linear(x, w)`` becomes ``linear(2 x, w) / 2``; one with a bias is left alone.
    """
    op = body.ops[number]
    if op.name == "linear" and len(op.inputs) == 3:
        return None
    i = rng.randrange(2 if op.name in ("linear", "matmul") else 1)
    draft = Draft(body)
    scaled, result = draft.value(op.inputs[i]), draft.value(op.outputs[0])
    inputs = (*op.inputs[:i], scaled, *op.inputs[i + 1 :])
    draft.change(number, inputs=inputs, outputs=(result,))
    draft.add(number, "mul", [op.inputs[i]], scaled, {"other": TWO})
    draft.add(number + 2, "mul", [result], op.outputs[0], {"other": HALF})
    return Changed(draft.built(), f"input {i} times 2, its result halved")


def inner_split(body: Body, number: int, rng: Random) -> Changed | None:
    """A matrix product as the sum of two over halves of its inner dimension.

    Example: ``linear(x, w)`` with 64 inputs becomes the sum of that of inputs 0 to 31 and that of
    32 to 63.
    """
    op = body.ops[number]
    x, w = op.inputs[:2]
    inner = body.values[x].shape[-1]
    if inner < 2 or len(op.inputs) > 2:
        return None
    cut = rng.choice([inner // 2, 1])
    last, w_dim = len(body.values[x].shape) - 1, 1
    if op.name == "matmul":
        w_dim = len(body.values[w].shape) - 2
    draft = Draft(body)
    at, addends = number, []
    for start, size in ((0, cut), (cut, inner - cut)):
        cuts = []
        for value, dim in ((x, last), (w, w_dim)):
            shape = body.values[value].shape
            part = draft.value(value, (*shape[:dim], size, *shape[dim + 1 :]))
            attrs: dict[str, Attr] = {"dim": dim, "start": start, "size": size}
            draft.add(at, "slice", [value], part, attrs)
            cuts.append(part)
            at += 1
        addends.append(draft.value(op.outputs[0]))
        draft.add(at, op.name, cuts, addends[-1])
        at += 1
    draft.change(at, name="add", inputs=tuple(addends), attrs={})
    return Changed(draft.built(), f"its inner dimension cut at {cut}, the products added")


def outer_split(body: Body, number: int, rng: Random) -> Changed | None:
    """A linear as the join of two over parts of its outputs.

    Example: ``linear(x, w)`` with 64 outputs becomes the concatenation of that of rows 0 to 31 of
    ``w`` and that of 32 to 63.
    """
    op = body.ops[number]
    if len(op.inputs) > 2:
        return None
    x, w = op.inputs
    rows, inner = body.values[w].shape
    if rows < 2:
        return None
    cut = rng.choice([rows // 2, 1])
    out = body.values[op.outputs[0]].shape
    draft = Draft(body)
    at, parts = number, []
    for start, size in ((0, cut), (cut, rows - cut)):
        part = draft.value(w, (size, inner))
        draft.add(at, "slice", [w], part, {"dim": 0, "start": start, "size": size})
        parts.append(draft.value(op.outputs[0], (*out[:-1], size)))
        draft.add(at + 1, "linear", [x, part], parts[-1])
        at += 2
    draft.change(at, name="concat", inputs=tuple(parts), attrs={"dim": len(out) - 1})
    return Changed(draft.built(), f"its outputs cut at {cut} and joined")


def reassociated(body: Body, number: int, rng: Random) -> Changed | None:
    """(a + b) + c as a + (b + c).

    Example: ``add(add(x, y), z)`` becomes ``add(x, add(y, z))``; with shapes that broadcast it is
    left alone.
    """
    op, made = body.ops[number], producers(body)
    if len(op.inputs) != 2 or op.attrs:
        return None
    inner = made.get(op.inputs[0], -1)
    if inner < 0 or body.ops[inner].name != op.name or body.ops[inner].attrs:
        return None
    first = body.ops[inner]
    if first.backward or len(first.inputs) != 2:
        return None
    shapes = {body.values[v].shape for v in (*op.inputs, *first.inputs)}
    if len(shapes) > 1:
        return None
    draft = Draft(body)
    right = draft.value(op.outputs[0])
    draft.change(number, inputs=(first.inputs[0], right))
    draft.add(number, op.name, [first.inputs[1], op.inputs[1]], right)
    return Changed(draft.built(), "associated to the right")


def subtraction(body: Body, number: int, rng: Random) -> Changed | None:
    """a - b as a + (-1) b, a + b as a - (-1) b, a / c as (1 / c) a, c a as a / (1 / c).

    Example: "mul in loss (rank 0, body forward, operator 50): by the inverse of 1/40 (div)".
    """
    op = body.ops[number]
    if len(op.inputs) == 1:
        constant = op.attrs.get("other")
        if (
            op.name not in ("mul", "div")
            or not isinstance(constant, int | Fraction)
            or not constant
        ):
            return None
        name = "div" if op.name == "mul" else "mul"
        attrs = {"other": 1 / Fraction(constant)}
        return _set(body, number, f"by the inverse of {constant} ({name})", name=name, attrs=attrs)
    if op.name not in ("add", "sub") or op.attrs or len(op.inputs) != 2:
        return None
    draft = Draft(body)
    negative = draft.value(op.inputs[1])
    name = "add" if op.name == "sub" else "sub"
    draft.change(number, name=name, inputs=(op.inputs[0], negative))
    draft.add(number, "mul", [op.inputs[1]], negative, {"other": Fraction(-1)})
    return Changed(draft.built(), f"{name} of minus its second operand")


def expanded(body: Body, number: int, rng: Random) -> Changed | None:
    """An operator by its definition: silu by sigmoid, a power by products.

    Example: ``silu(x)`` becomes ``mul(x, sigmoid(x))``.
    """
    op = body.ops[number]
    x = op.inputs[0]
    draft = Draft(body)
    if op.name == "silu":
        gate = draft.value(x)
        draft.change(number, name="mul", inputs=(x, gate))
        draft.add(number, "sigmoid", [x], gate)
        return Changed(draft.built(), "as x times sigmoid(x)")
    if op.name == "pow" and op.attrs.get("exponent") == 2:
        draft.change(number, name="mul", inputs=(x, x), attrs={})
        return Changed(draft.built(), "as x times x")
    return None


def recomputed(body: Body, number: int, rng: Random) -> Changed | None:
    """A reader gets a copy of the value, computed again.

    Example: "rms_norm in layers.1 (rank 2, body forward, operator 2): computed again for
    all_gather".
    """
    op = body.ops[number]
    reading = readers(body, op.outputs[0])
    if len(reading) < 1 or op.backward:
        return None
    draft = Draft(body)
    again = draft.value(op.outputs[0])
    outputs = (again, *(draft.value(v) for v in op.outputs[1:]))
    chosen = rng.choice(reading)
    inputs = tuple(again if v == op.outputs[0] else v for v in body.ops[chosen].inputs)
    draft.change(chosen, inputs=inputs)
    draft.ops.insert(number + 1, replace(op, outputs=outputs))
    return Changed(draft.built(), f"computed again for {body.ops[chosen].name}")


def nobody_reads(body: Body, number: int, rng: Random) -> Changed | None:
    """One more operator, whose result nobody reads.

    Example: "backward of matmul in h.0.attn (rank 0, body backward, operator 43): an exp of it that
    nobody reads".
    """
    draft = Draft(body)
    unread = draft.value(body.ops[number].outputs[0])
    name = rng.choice(["exp", "tanh", "identity"])
    draft.add(number + 1, name, [body.ops[number].outputs[0]], unread)
    return Changed(draft.built(), f"an {name} of it that nobody reads")


def issued_later(body: Body, number: int, rng: Random) -> Changed | None:
    """Two neighbouring operators that do not depend on each other, the other way round.

    Example: "view in layers.0.attention (rank 0, body forward, operator 10): issued after
    apply_rotary_emb".
    """
    if number + 1 >= len(body.ops):
        return None
    first, second = body.ops[number], body.ops[number + 1]
    if second.name in COMMUNICATION or set(first.outputs) & set(second.inputs):
        return None
    draft = Draft(body)
    draft.ops[number], draft.ops[number + 1] = second, first
    return Changed(draft.built(), f"issued after {second.name}")


def gradient_in_halves(body: Body, number: int, rng: Random) -> Changed | None:
    """A gradient accumulated as two halves.

    Example: the gradient of ``wte.weight`` is accumulated as its half, twice.
    """
    if not body.gradients:
        return None
    i = rng.randrange(len(body.gradients))
    value, shard = body.gradients[i]
    made = producers(body).get(value)
    if made is None:
        return None
    draft = Draft(body)
    half = draft.value(value)
    draft.add(made + 1, "mul", [value], half, {"other": HALF})
    others = [g for k, g in enumerate(body.gradients) if k != i]
    gradients = (*others, (half, shard), (half, shard))
    return Changed(draft.built(gradients=gradients), "a gradient accumulated in two halves")


# -- communication -------------------------------------------------------------------------------


def _reduces(op: Op, body: Body) -> bool:
    return op.name == "all_reduce" and op.attrs.get("op", "sum") == "sum"


def scattered_and_gathered(plan: Plan, rng: Random) -> Mutation | None:
    """An all-reduce as a reduce-scatter and an all-gather.

    Example: "all_reduce in ln_f.bias (rank 0, body reducer, operator 19): reduce-scatter and
    all-gather along 0".
    """
    return on_operator(_reduces, lambda b, n, r: _scattered(plan, b, n, r))(plan, rng)


def _scattered(plan: Plan, body: Body, number: int, rng: Random) -> Changed | None:
    op = body.ops[number]
    group = op.attrs.get("group")
    if not isinstance(group, Group):
        return None
    extents = {axis: n for program in plan.programs for axis, n in program.extents.items()}
    members = max(1, len(group.ranks))
    for axis in group.axes:
        members *= extents[axis]
    shape = body.values[op.inputs[0]].shape
    dims = [d for d, n in enumerate(shape) if n % members == 0 and n]
    if not dims:
        return None
    d = rng.choice(dims)
    draft = Draft(body)
    part = draft.value(op.inputs[0], (*shape[:d], shape[d] // members, *shape[d + 1 :]))
    attrs: dict[str, Attr] = {"group": group, "dim": d}
    draft.change(number, name="reduce_scatter", outputs=(part,), attrs=attrs)
    draft.add(number + 1, "all_gather", [part], op.outputs[0], attrs)
    return Changed(draft.built(), f"reduce-scatter and all-gather along {d}")


def scaled_across(body: Body, number: int, rng: Random) -> Changed | None:
    """A factor before a communication, and out of it behind.

    Example: "all_to_all in layers.0.feed_forward (rank 0, body backward, operator 17): times 2
    before it, halved behind".
    """
    op = body.ops[number]
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return None
    draft = Draft(body)
    before, after = draft.value(op.inputs[0]), draft.value(op.outputs[0])
    draft.change(number, inputs=(before,), outputs=(after,))
    draft.add(number, "mul", [op.inputs[0]], before, {"other": TWO})
    draft.add(number + 2, "mul", [after], op.outputs[0], {"other": HALF})
    return Changed(draft.built(), "times 2 before it, halved behind")


def _moves_alone(op: Op, body: Body) -> bool:
    return op.name in ("all_gather", "chunk", "reduce_scatter", "all_to_all") or _reduces(op, body)


# -- calls ---------------------------------------------------------------------------------------


def microbatches_permuted(plan: Plan, rng: Random) -> Mutation | None:
    """All programs take their microbatches in another order.

    Example: "microbatches in the order [1, 0]", in all pipeline stages.
    """
    if plan.microbatches < 2:
        return None
    order = list(range(plan.microbatches))
    while order == sorted(order):
        rng.shuffle(order)
    programs = tuple(
        replace(
            program,
            calls=tuple(
                replace(call, microbatch=order[call.microbatch]) if call.microbatch >= 0 else call
                for call in program.calls
            ),
        )
        for program in plan.programs
    )
    return Mutation(replace(plan, programs=programs), f"microbatches in the order {order}")


def slots_renamed(plan: Plan, rng: Random) -> Mutation | None:
    """Every slot of every program by another number.

    Example: "slots renamed by 774": slots 0 and 1 are 774 and 775.
    """
    shift = rng.randrange(1, 1000)

    def shifted(slots: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(slot + shift for slot in slots)

    programs = tuple(
        replace(
            program,
            calls=tuple(
                replace(call, inputs=shifted(call.inputs), outputs=shifted(call.outputs))
                for call in program.calls
            ),
            seeds=tuple((slot + shift, loss + shift) for slot, loss in program.seeds),
        )
        for program in plan.programs
    )
    return Mutation(replace(plan, programs=programs), f"slots renamed by {shift}")


_ROWS: Final = (
    ("operands exchanged", _named("add", "mul", "add_n"), commuted),
    ("scaled and back", _real, scaled_and_back),
    ("identity after", _real, identity_after),
    ("transposed twice", _real, transposed_twice),
    ("flattened and back", _real, flattened_and_back),
    ("split and joined", _real, split_and_joined),
    ("doubled and halved", _real, doubled_and_halved),
    ("parts added", _real, halves_added),
    ("scale across a linear operator", _named("linear", "matmul", "sum", "transpose"), scale_moved),
    ("inner dimension split", _named("linear", "matmul"), inner_split),
    ("outputs split", _named("linear"), outer_split),
    ("reassociated", _named("add", "mul"), reassociated),
    ("by inverse or negative", _named("add", "sub", "mul", "div"), subtraction),
    ("by definition", _named("silu", "pow"), expanded),
    ("recomputed", _real, recomputed),
    ("unread operator", _real, nobody_reads),
    ("issued later", _real, issued_later),
    ("gradient in halves", _real, gradient_in_halves),
    ("scale across communication", _moves_alone, scaled_across),
)

EQUIVALENT: Final = (
    *(Mutator(name, "equivalent", on_operator(a, c), keeps=True) for name, a, c in _ROWS),
    Mutator("scattered and gathered", "equivalent", scattered_and_gathered, keeps=True),
    Mutator("microbatches permuted", "equivalent", microbatches_permuted, keeps=True),
    Mutator("slots renamed", "equivalent", slots_renamed, keeps=True),
)
