"""Which inputs roots and logarithms are taken of: of negative ones there are none."""

from __future__ import annotations

from typing import Final

from shardproof.engine.schedule.instances import Instance, Unrolled

#: Functions that are undefined of negative numbers.
UNDEFINED: Final = frozenset({"sqrt", "rsqrt", "log", "pow"})
#: Operators whose result is positive where the inputs at these positions are (None: all).
POSITIVE: Final = {
    "add": None,
    "add_n": None,
    "broadcast_to": None,
    "concat": None,
    "div": (0,),
    "einsum": None,
    "expand": None,
    "mean": None,
    "mul": None,
    "permute": None,
    "slice": None,
    "stack": None,
    "sub": (0,),
    "sum": None,
    "transpose": None,
    "view": None,
}


def roots(unrolled: Unrolled) -> frozenset[str]:
    """Names of what roots and logarithms are taken of, by itself or in sums and products.

    Example: the second moments of Adam, of which ``sqrt((b v + (1 - b) g g) / c)`` is taken; not
    the gradients, whose squares are positive.
    """
    positive: set[int] = set()
    for instance in reversed(unrolled.instances):
        if instance.backward:
            continue
        if instance.name in UNDEFINED:
            positive.update(instance.inputs)
        elif not positive.isdisjoint(instance.outputs):
            positive.update(_behind(instance))
    return frozenset(
        unrolled.tensors[value].name
        for instance in unrolled.instances
        if instance.kind == "shard"
        for value in instance.outputs
        if value in positive
    )


def _behind(instance: Instance) -> tuple[int, ...]:
    """The inputs that make a result positive by being so; none of a square."""
    if instance.name not in POSITIVE:
        return ()
    inputs = tuple(instance.inputs)
    if len(inputs) == 2 and inputs[0] == inputs[1]:
        return ()
    places = POSITIVE[instance.name]
    return inputs if places is None else tuple(inputs[i] for i in places)
