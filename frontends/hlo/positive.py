"""Which values are never negative, by how they are made: there a magnitude changes nothing.

``logsumexp`` of JAX is ``log(abs(sum(exp(x))))``.  Over the reals, for inputs for which a value
is defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from shardproof.frontends.graphs.recorder import Recorded, Recorder

#: Functions whose values are never negative.
ALWAYS: Final = frozenset({"exp", "sigmoid", "sqrt", "rsqrt", "step", "onehot", "relu", "abs"})
#: Operators that give no negative value of operands without one.
KEEPS: Final = frozenset(
    {
        *("sum", "amax", "einsum", "concat", "slice", "view", "expand", "permute", "to"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "inv"),
    }
)
#: How far back it is looked.
MOST = 100


def nonnegative(recorder: Recorder, value: int) -> bool:
    """Whether a value has no negative entry, as far as the operators that it is made by say so.

    Example: ``exp(x)``, its sum and ``x * x`` have none, nor have ids in [0, 9); ``x`` and
    ``x + x`` may have some.
    """
    made = {op.outputs[0]: op for op in recorder.ops if op.outputs}
    ids = {x.value: True for x in recorder.placed if x.domain is not None and x.domain[0] >= 0}
    return _holds(made, value, ids, MOST)


def _holds(made: Mapping[int, Recorded], value: int, known: dict[int, bool], most: int) -> bool:
    op = made.get(value)
    if value in known:
        return known[value]
    if op is None or not most:
        return False
    known[value] = False
    known[value] = _made(made, op, known, most - 1)
    return known[value]


def _made(made: Mapping[int, Recorded], op: Recorded, known: dict[int, bool], most: int) -> bool:
    def all_of(inputs: tuple[int, ...]) -> bool:
        return all(_holds(made, v, known, most) for v in inputs)

    if op.name in ALWAYS:
        return True
    if op.name == "full":
        return _at_least_zero(op.attrs.get("value"))
    if op.name == "pow":
        exponent = op.attrs.get("exponent")
        return isinstance(exponent, Fraction) and exponent.denominator == 1 and exponent % 2 == 0
    if op.name in ("add", "mul", "div"):
        if op.name == "mul" and len(op.inputs) == 2 and _square(made, *op.inputs):
            return True
        return all(_at_least_zero(v) for v in op.attrs.values()) and all_of(op.inputs)
    if op.name == "sub" and len(op.inputs) == 2:
        return _rest(made, *op.inputs)
    return op.name in KEEPS and all_of(op.inputs)


def _rest(made: Mapping[int, Recorded], x: int, y: int) -> bool:
    """What a positive number leaves of x: y is ``d floor(x / d)``."""
    factors = []
    for name in ("mul", "floor", "mul"):
        op = made.get(y)
        if op is None or op.name != name or len(op.inputs) != 1:
            return False
        factors.append(op.attrs.get("other"))
        y = op.inputs[0]
    divisor, _, part = factors
    if not isinstance(divisor, Fraction) or not isinstance(part, Fraction):
        return False
    return y == x and divisor > 0 and divisor * part == 1


def _square(made: Mapping[int, Recorded], x: int, y: int) -> bool:
    """x * x, or x where it is positive (x * step(x))."""
    other = made.get(y)
    return x == y or (other is not None and other.name == "step" and other.inputs == (x,))


def _at_least_zero(number: Any) -> bool:
    return isinstance(number, (int, Fraction)) and number >= 0
