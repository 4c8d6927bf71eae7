"""How an operator is declared, and the table of all of them.

A declaration is the operator's name, its operands and attributes by name, its axis signature, its
forward code over an `Interpreter` and, only where reverse differentiation of that code is not what
the framework does, its own backward code.  Everything else (shapes, values, terms, reference
values, gradients) is a reading of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops import packages
from shardproof.engine.ops.calls import (
    Attribute,
    Operand,
    attributes_of,
    operands_of,
    wrong_attributes,
    wrong_operands,
)
from shardproof.engine.ops.primitives import Interpreter, Tape, scale
from shardproof.engine.plan.ir import Attr

Attrs = Mapping[str, Attr]
Forward = Callable[[Interpreter[Any], Sequence[Any], Attrs], Sequence[Any]]
Backward = Callable[[Interpreter[Any], Sequence[Any], Sequence[Any], Attrs], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Operator:
    """The declaration of an operator.

    Example: ``OPERATORS["linear"]`` has the signature ``... k+, n k+ -> ... n``, the operands x,
    weight and perhaps bias, and no backward code of its own.

    ``signature`` is written like an einops string for one representative rank of the inputs; an
    axis followed by ``+`` is summed, by ``^`` max-reduced, by ``#`` positional, by ``!`` read as a
    unit; every other axis is parallel.  ``...`` stands for any number of parallel axes.
    ``backward(reading, inputs, output gradients, attrs)`` gives one gradient (or None) per input.
    ``operands``, ``attributes``: what a call has to give, as `engine.ops.calls` writes it.
    ``results``: how many outputs there are: a number, the attribute that says it, or the operand of
    which there is one output each.
    ``data``: positions of inputs that are index data and have no gradient (-1: the last one).
    ``differentiable``: whether it has a derivative at all.
    """

    name: str
    signature: str
    forward: Forward
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    results: int | str
    backward: Backward | None = None
    data: frozenset[int] = frozenset()
    differentiable: bool = True

    @property
    def attrs(self) -> frozenset[str]:
        """The names of its attributes."""
        return frozenset(x.name for x in self.attributes)

    def index_data(self, count: int) -> frozenset[int]:
        """Positions of index data in a call of ``count`` operands."""
        return frozenset(place % count for place in self.data) if count else frozenset()

    def outputs(self, count: int, attrs: Attrs) -> int:
        """How many outputs a call of ``count`` operands that fits has."""
        if isinstance(self.results, int):
            return self.results
        if self.results in self.attrs:
            return integer(attrs, self.results)
        return count - sum(x.name != self.results for x in self.operands)


#: Attributes of backward operators, which are not the operator's own: which gradients it gives, and
#: how many of its inputs are the forward ones.
BACKWARD = (Attribute("wrt", "integers"), Attribute("arity", "integer"))
_OWN = frozenset(x.name for x in BACKWARD)

OPERATORS: dict[str, Operator] = {}


def operator(
    name: str,
    signature: str,
    operands: str,
    attrs: str = "",
    *,
    results: str = "",
    backward: Backward | None = None,
    data: Sequence[int] = (),
    differentiable: bool = True,
) -> Callable[[Forward], Forward]:
    """Decorator: register ``forward`` as the operator ``name``; see `Operator`.  ``results``: where
    the number of outputs is not that of the signature.

    Example: ``@operator("linear", "... k+, n k+ -> ... n", "x weight bias?")``.
    """

    def register(forward: Forward) -> Forward:
        if name in OPERATORS:
            raise ValueError(f"operator {name} is declared twice")
        OPERATORS[name] = Operator(
            name,
            signature,
            forward,
            operands_of(operands),
            attributes_of(attrs),
            results or len(signature.split("->")[1].split(",")),
            backward,
            frozenset(data),
            differentiable,
        )
        return forward

    return register


def lookup(name: str) -> Operator:
    """The declaration, here or in an installed package; raises `Unsupported` naming an operator
    that has none, and what is near.

    Example: ``layer_norm`` is not declared, and ``layernorm`` is near.
    """
    problems = packages.load() if name not in OPERATORS else ()
    if name not in OPERATORS:
        near = get_close_matches(name, OPERATORS, n=3)
        hint = f" (near: {', '.join(near)})" if near else ""
        failed = f"; not loaded: {'; '.join(problems)}" if problems else ""
        raise Unsupported(f"operator {name} is not declared{hint}{failed}")
    return OPERATORS[name]


def declared_elsewhere(names: Iterable[str]) -> list[tuple[str, str]]:
    """Which of these operators somebody else declared, and in which module.

    Example: ``[("my_gelu", "my_kernels")]`` where an installed package declares ``my_gelu``; of
    ``linear`` nothing.
    """
    wanted = set(names)
    if not wanted <= OPERATORS.keys():
        packages.load()
    declared = sorted(wanted & OPERATORS.keys())
    modules = [(name, OPERATORS[name].forward.__module__) for name in declared]
    return [(name, module) for name, module in modules if not module.startswith("shardproof.")]


def misfit(name: str, count: int, attrs: Attrs) -> str:
    """What is wrong with a call of a declared operator with ``count`` operands, in words that
    follow its name; empty if nothing is.  (What an attribute means that is not declared is another
    question: see `understood`.)

    Example: of ``linear`` with one operand, ``takes 2 to 3 operands (x, weight, [bias]), found 1``.
    """
    declared = lookup(name)
    return wrong_operands(declared.operands, count, attrs) or wrong_attributes(
        declared.attributes, attrs
    )


def backward_misfit(name: str, inputs: Sequence[int], outputs: int, attrs: Attrs) -> str:
    """As `misfit`, of the reverse derivative: ``inputs`` are the forward inputs, then a gradient
    for each forward output (-1: there is none); ``outputs``: how many it has.

    Example: "gives gradients of operands [0] of 2, found 2 outputs".
    """
    if wrong := wrong_attributes(BACKWARD, attrs):
        return wrong
    arity, wrt = integer(attrs, "arity"), integers(attrs, "wrt")
    if wrong := misfit(name, arity, attrs):
        return wrong
    expected = arity + lookup(name).outputs(arity, attrs)
    if len(inputs) != expected:
        return (
            f"takes {arity} forward operands and {expected - arity} gradients, "
            f"found {len(inputs)} inputs"
        )
    if any(v < 0 for v in inputs[:arity]):
        return "takes all of its forward operands, found one missing"
    if len(wrt) != outputs or any(not 0 <= w < arity for w in wrt) or len(set(wrt)) < len(wrt):
        return f"gives gradients of operands {list(wrt)} of {arity}, found {outputs} outputs"
    return ""


def understood(name: str, count: int, attrs: Attrs, own: frozenset[str] = _OWN) -> Operator:
    """The declaration, if it knows all attributes of a call with ``count`` operands; raises
    `Unsupported` naming one that it does not know, or what else does not fit (no plan that is well
    formed has that).  ``own``: attributes that are not the operator's but the derivative's.

    Example: of ``linear`` with ``alpha`` "attribute alpha of operator linear is not declared (it
    has none)".
    """
    declared = lookup(name)
    known = declared.attrs
    unknown = sorted(key for key in attrs if key not in known and key not in own)
    if unknown:
        has = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise Unsupported(f"attribute {unknown[0]} of operator {name} is not declared ({has})")
    wrong = misfit(name, count, attrs)
    if wrong:
        raise Unsupported(f"operands that its declaration does not fit ({wrong})")
    return declared


def apply_forward(r: Interpreter[Any], name: str, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The outputs of operator ``name`` as the interpreter ``r`` computes them.

    Example: over floats ``linear`` of [[1, 2]] and [[3, 4], [5, 6]] is [[11, 17]].
    """
    return list(understood(name, len(inputs), attrs, frozenset()).forward(r, inputs, attrs))


def apply_backward(
    r: Interpreter[Any],
    name: str,
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    attrs: Attrs,
    wrt: Sequence[int],
) -> list[Any]:
    """Gradients of the inputs at positions ``wrt``, given those of the outputs (None: no gradient).

    Example: of that ``linear``, with ones as the gradient, [[8, 10]] and [[1, 2], [1, 2]].

    Raises `Unsupported` if an asked-for gradient does not exist.
    """
    declared = understood(name, len(inputs), attrs)
    if all(gradient is None for gradient in gradients):
        raise Unsupported(f"the derivative of {name} where no gradient arrives")
    if declared.backward is not None:
        computed = list(declared.backward(r, inputs, gradients, attrs))
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
        computed = [total.get(x.index) for x in tracked]
        if any(g is None for g in gradients) and any(g is not None for g in gradients):
            # What reaches only outputs without a gradient has a gradient of zero.
            every = tape.pull(outputs, [y.value for y in outputs])
            computed = [
                scale(r, Fraction(0), x) if g is None and t.index in every else g
                for x, t, g in zip(inputs, tracked, computed, strict=True)
            ]
    result = [computed[i] if i < len(computed) else None for i in wrt]
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
    """An integer attribute; raises `Unsupported` naming what was found.

    Example: ``{"dim": True}`` is refused: a truth value is no integer.
    """
    value = attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unsupported(f"attribute {key} should be an integer, found {value!r}")
    return value


def position(attrs: Attrs, key: str) -> Affine:
    """A position, which may depend on where the program runs; 0 if it is not given.

    Example: of ``{"start": affine(0, {"tp": 8})}`` ``8*tp``, of ``{"start": 3}`` 3, of ``{}`` 0.
    """
    value = attrs.get(key)
    if isinstance(value, Affine):
        return value
    return Affine() if value is None else affine(integer(attrs, key))


def number(attrs: Attrs, key: str) -> Fraction:
    """An exact number; raises `Unsupported` naming what was found.

    Example: of ``Fraction(1, 100000)`` that; the float 1e-5 is refused.
    """
    value = attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise Unsupported(f"attribute {key} should be an exact number, found {value!r}")
    return Fraction(value)


def integers(attrs: Attrs, key: str) -> tuple[int, ...]:
    """A tuple of integers (a single integer counts as one of length 1), each as it is given: some
    remember how a dimension of that size is represented.

    Example: of ``{"dims": 2}`` (2,), of ``{"dims": (0, 2)}`` (0, 2).
    """
    value = attrs.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, tuple):
        raise Unsupported(f"attribute {key} should be a tuple of integers, found {value!r}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise Unsupported(f"attribute {key} should hold integers, found {item!r}")
    return value  # type: ignore[return-value]


def dimension(index: int, rank: int) -> int:
    """A dimension counted from either end; raises `ShapeMismatch` outside the tensor.

    Example: -1 of three dimensions is 2.
    """
    if not -rank <= index < rank:
        raise ShapeMismatch(f"dimension {index} of a tensor of {rank} dimensions")
    return index % rank


def sized(
    r: Interpreter[Any], x: Any, least: int, what: str, most: int | None = None
) -> tuple[int, ...]:
    """The shape of an operand of ``least`` to ``most`` dimensions (None: or more); raises
    `ShapeMismatch` for another.

    Example: "queries of shape [1, 2], expected 3 to 4 dimensions".
    """
    shape = r.shape(x)
    if len(shape) < least or (most is not None and len(shape) > most):
        span = f"{least}" if least == most else f"{least} or more" if most is None else ""
        raise ShapeMismatch(
            f"{what} of shape {list(shape)}, expected {span or f'{least} to {most}'} dimensions"
        )
    return shape
