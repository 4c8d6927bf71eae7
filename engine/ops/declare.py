"""How an operator is declared, and the table of all of them.

A declaration is the operator's name, its axis signature, its forward code over a `Reading` and,
only where reverse differentiation of that code is not what the framework does, its own backward
code.  Everything else (shapes, values, terms, reference values, gradients) is a reading of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.primitives import Reading, Tape, scale
from shardproof.engine.plan.ir import Attr

Attrs = Mapping[str, Attr]
Forward = Callable[[Reading[Any], Sequence[Any], Attrs], Sequence[Any]]
Backward = Callable[[Reading[Any], Sequence[Any], Sequence[Any], Attrs], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One declaration.

    ``signature`` is written like an einops string for one representative rank of the inputs; an
    axis followed by ``+`` is summed, by ``^`` max-reduced, by ``#`` positional, by ``!`` read as a
    unit; every other axis is parallel.  ``...`` stands for any number of parallel axes.
    ``backward(reading, inputs, output gradients, attrs)`` gives one gradient (or None) per input.
    ``data``: positions of inputs that are index data and have no gradient.
    ``attrs``: the attributes that the code reads; any other is not understood.
    """

    name: str
    signature: str
    forward: Forward
    backward: Backward | None = None
    data: frozenset[int] = frozenset()
    attrs: frozenset[str] = frozenset()


#: Attributes of backward operators, which are not the operator's own.
_BACKWARD = frozenset({"wrt", "arity"})

OPERATORS: dict[str, Operator] = {}


def operator(
    name: str,
    signature: str,
    *,
    attrs: str = "",
    backward: Backward | None = None,
    data: Sequence[int] = (),
) -> Callable[[Forward], Forward]:
    """Decorator: register ``forward`` as the operator ``name``; ``attrs``: names, by spaces."""

    def register(forward: Forward) -> Forward:
        if name in OPERATORS:
            raise ValueError(f"operator {name} is declared twice")
        OPERATORS[name] = Operator(
            name, signature, forward, backward, frozenset(data), frozenset(attrs.split())
        )
        return forward

    return register


def lookup(name: str) -> Operator:
    """The declaration; raises `Unsupported` naming an operator that has none."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise Unsupported(f"operator {name} is not declared") from None


def understood(name: str, attrs: Attrs) -> Operator:
    """The declaration, if it knows all attributes; raises `Unsupported` naming one it does not."""
    declared = lookup(name)
    unknown = sorted(set(attrs) - declared.attrs - _BACKWARD)
    if unknown:
        raise Unsupported(f"attribute {unknown[0]} of operator {name} is not declared")
    return declared


def apply_forward(r: Reading[Any], name: str, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The outputs of operator ``name`` in reading ``r``."""
    return list(understood(name, attrs).forward(r, inputs, attrs))


def apply_backward(
    r: Reading[Any],
    name: str,
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    attrs: Attrs,
    wrt: Sequence[int],
) -> list[Any]:
    """Gradients of the inputs at positions ``wrt``, given those of the outputs (None: no gradient).

    Raises `Unsupported` if an asked-for gradient does not exist.
    """
    declared = understood(name, attrs)
    if declared.backward is not None:
        found = list(declared.backward(r, inputs, gradients, attrs))
    else:
        tape: Tape[Any] = Tape(r)
        tracked = [tape.track(x, wanted=i in wrt) for i, x in enumerate(inputs)]
        outputs = declared.forward(tape, tracked, attrs)
        if len(outputs) != len(gradients):
            raise ShapeMismatch(
                f"{name} has {len(outputs)} outputs, its backward got {len(gradients)} gradients"
            )
        for output, gradient in zip(outputs, gradients, strict=True):
            if gradient is not None and tape.shape(output) != r.shape(gradient):
                raise ShapeMismatch(
                    f"an output of {name} has shape {list(tape.shape(output))}, "
                    f"its gradient {list(r.shape(gradient))}"
                )
        total = tape.pull(outputs, gradients)
        found = [total.get(x.index) for x in tracked]
        if any(g is None for g in gradients) and any(g is not None for g in gradients):
            # What reaches only outputs without a gradient has a gradient of zero.
            every = tape.pull(outputs, [y.value for y in outputs])
            found = [
                scale(r, Fraction(0), x) if g is None and t.index in every else g
                for x, t, g in zip(inputs, tracked, found, strict=True)
            ]
    result = [found[i] if i < len(found) else None for i in wrt]
    for position, gradient in zip(wrt, result, strict=True):
        if gradient is None:
            raise Unsupported(f"{name} has no gradient for its input {position}")
        # Not every derivative reads its operands (a cast's does not), so it is asked here.
        if r.shape(gradient) != r.shape(inputs[position]):
            raise ShapeMismatch(
                f"the gradient of input {position} of {name} has shape "
                f"{list(r.shape(gradient))}, the input {list(r.shape(inputs[position]))}"
            )
    return result


def integer(attrs: Attrs, key: str) -> int:
    """An integer attribute; raises `Unsupported` naming what was found."""
    value = attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unsupported(f"attribute {key} should be an integer, found {value!r}")
    return value


def position(attrs: Attrs, key: str) -> Affine:
    """A position, which may depend on where the program runs; 0 if it is not given."""
    value = attrs.get(key)
    if isinstance(value, Affine):
        return value
    return Affine() if value is None else affine(integer(attrs, key))


def number(attrs: Attrs, key: str) -> Fraction:
    """An exact number; raises `Unsupported` naming what was found."""
    value = attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise Unsupported(f"attribute {key} should be an exact number, found {value!r}")
    return Fraction(value)


def integers(attrs: Attrs, key: str) -> tuple[int, ...]:
    """A tuple of integers (a single integer counts as one of length 1)."""
    value = attrs.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, tuple):
        raise Unsupported(f"attribute {key} should be a tuple of integers, found {value!r}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise Unsupported(f"attribute {key} should hold integers, found {item!r}")
    return tuple(int(item) for item in value)  # type: ignore[arg-type]


def dimension(index: int, rank: int) -> int:
    """A dimension counted from either end; raises `ShapeMismatch` outside the tensor."""
    if not -rank <= index < rank:
        raise ShapeMismatch(f"dimension {index} of a tensor of {rank} dimensions")
    return index % rank
