"""Operators inserted behind another one that together change nothing."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from random import Random

from shardproof.engine.plan.ir import Attr, Body
from shardproof.mutation.edit import Draft
from shardproof.mutation.table import Changed


def _after(body: Body, number: int, steps: list[tuple[str, dict[str, Attr]]], what: str) -> Changed:
    """Operators of one input appended to the first result; all keep its shape."""
    draft = Draft(body)
    op = body.ops[number]
    last = draft.value(op.outputs[0])
    draft.change(number, outputs=(last, *op.outputs[1:]))
    for i, (name, attrs) in enumerate(steps):
        final = i == len(steps) - 1
        result = op.outputs[0] if final else draft.value(op.outputs[0])
        draft.add(number + 1 + i, name, [last], result, attrs)
        last = result
    return Changed(draft.built(), what)


def scaled_and_back(body: Body, number: int, rng: Random) -> Changed | None:
    """Times a number, then divided by it.

    Example: "its result times -1/7, divided by -1/7".
    """
    factor = rng.choice([Fraction(2), Fraction(3), Fraction(-1, 7)])
    steps: list[tuple[str, dict[str, Attr]]] = [
        ("mul", {"other": factor}),
        ("div", {"other": factor}),
    ]
    return _after(body, number, steps, f"its result times {factor}, divided by {factor}")


def identity_after(body: Body, number: int, rng: Random) -> Changed | None:
    """An identity behind the operator.

    Example: "backward of matmul in h.0.attn (rank 0, body backward, operator 43): identity after
    it".
    """
    name = rng.choice(["identity", "contiguous"])
    return _after(body, number, [(name, {})], f"{name} after it")


def transposed_twice(body: Body, number: int, rng: Random) -> Changed | None:
    """Two dimensions exchanged, and exchanged again.

    Example: "its result transposed (3, 1) twice"; what has one dimension is left alone.
    """
    op = body.ops[number]
    shape = body.values[op.outputs[0]].shape
    if len(shape) < 2:
        return None
    i, j = rng.sample(range(len(shape)), 2)
    turned = list(shape)
    turned[i], turned[j] = turned[j], turned[i]
    draft = Draft(body)
    before, between = draft.value(op.outputs[0]), draft.value(op.outputs[0], tuple(turned))
    attrs: dict[str, Attr] = {"dim0": i, "dim1": j}
    draft.change(number, outputs=(before, *op.outputs[1:]))
    draft.add(number + 1, "transpose", [before], between, attrs)
    draft.add(number + 2, "transpose", [between], op.outputs[0], attrs)
    return Changed(draft.built(), f"its result transposed ({i}, {j}) twice")


def flattened_and_back(body: Body, number: int, rng: Random) -> Changed | None:
    """A view as one dimension, and back.

    Example: [1, 10, 96] is viewed as [960], and that as [1, 10, 96].
    """
    op = body.ops[number]
    shape = body.values[op.outputs[0]].shape
    total = prod(shape)
    draft = Draft(body)
    before, flat = draft.value(op.outputs[0]), draft.value(op.outputs[0], (total,))
    draft.change(number, outputs=(before, *op.outputs[1:]))
    draft.add(number + 1, "view", [before], flat, {"size": (total,)})
    draft.add(number + 2, "view", [flat], op.outputs[0], {"size": shape})
    return Changed(draft.built(), "its result flattened and back")


def split_and_joined(body: Body, number: int, rng: Random) -> Changed | None:
    """The result cut in two, and joined again.

    Example: "its result cut at 2048 of dimension 1 and joined".
    """
    op = body.ops[number]
    shape = body.values[op.outputs[0]].shape
    dims = [d for d, n in enumerate(shape) if n > 1]
    if not dims:
        return None
    d = rng.choice(dims)
    low = rng.choice([shape[d] // 2, 1])
    draft = Draft(body)
    before = draft.value(op.outputs[0])
    parts = [
        draft.value(op.outputs[0], (*shape[:d], n, *shape[d + 1 :])) for n in (low, shape[d] - low)
    ]
    draft.change(number, outputs=(before, *op.outputs[1:]))
    sizes = ((0, low), (low, shape[d] - low))
    for i, (start, size) in enumerate(sizes):
        attrs: dict[str, Attr] = {"dim": d, "start": start, "size": size}
        draft.add(number + 1 + i, "slice", [before], parts[i], attrs)
    draft.add(number + 3, "concat", parts, op.outputs[0], {"dim": d})
    return Changed(draft.built(), f"its result cut at {low} of dimension {d} and joined")


def doubled_and_halved(body: Body, number: int, rng: Random) -> Changed | None:
    """(x + x) / 2 for x.

    Example: of the result of a ``linear``, an ``add`` of it to itself and a ``mul`` by 1/2.
    """
    op = body.ops[number]
    draft = Draft(body)
    before, double = draft.value(op.outputs[0]), draft.value(op.outputs[0])
    draft.change(number, outputs=(before, *op.outputs[1:]))
    draft.add(number + 1, "add", [before, before], double)
    draft.add(number + 2, "mul", [double], op.outputs[0], {"other": Fraction(1, 2)})
    return Changed(draft.built(), "its result added to itself and halved")


def halves_added(body: Body, number: int, rng: Random) -> Changed | None:
    """x / 3 + 2x / 3 for x.

    Example: "a third and two thirds of its result added".
    """
    op = body.ops[number]
    draft = Draft(body)
    before, low, high = (draft.value(op.outputs[0]) for _ in range(3))
    draft.change(number, outputs=(before, *op.outputs[1:]))
    draft.add(number + 1, "mul", [before], low, {"other": Fraction(1, 3)})
    draft.add(number + 2, "mul", [before], high, {"other": Fraction(2, 3)})
    draft.add(number + 3, "add", [low, high], op.outputs[0])
    return Changed(draft.built(), "a third and two thirds of its result added")
