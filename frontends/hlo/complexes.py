"""Complex numbers as pairs of real ones: every operator of them becomes operators of both parts.

For example, ``multiply`` of a + bi and c + di is ac - bd and ad + bc, a ``dot`` four of real ones,
and what moves numbers or adds them up moves or adds both parts.  An operator that is in no table
here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Type
from shardproof.frontends.hlo.spectra import Emit, transform

#: Element types of the parts.
PARTS: Mapping[str, str] = {"complex64": "float32", "complex128": "float64"}
#: One part of a complex tensor: a value of the graph by its number, or a known one.
Part: TypeAlias = "int | Known"


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor: its real and its imaginary part, both of one real type.

    Example: ``complex(x, y)`` of the values 0 and 1 is ``Complex(0, 1)``.
    """

    real: Part
    imaginary: Part


#: The same numbers elsewhere, or sums of them: of how many of the first operands the parts are
#: taken (None: of all); the others are numbers of places, or predicates.
LINEAR: Mapping[str, int | None] = {
    "add": None,
    "subtract": None,
    "negate": None,
    "broadcast": None,
    "reshape": None,
    "transpose": None,
    "slice": None,
    "concatenate": None,
    "reverse": None,
    "pad": None,
    "reduce": None,
    "all-reduce": None,
    "all-gather": None,
    "reduce-scatter": None,
    "all-to-all": None,
    "collective-permute": None,
    "dynamic-slice": 1,
    "dynamic-update-slice": 2,
    "gather": 1,
}


def is_complex(dtype: str) -> bool:
    """Whether an element type is of complex numbers.  Example: ``complex64`` is."""
    return dtype in PARTS


def part_type(type: Type) -> Type:
    """The type of both parts.  Example: of ``complex64[4]``, ``float32[4]``."""
    return Type(type.shape, PARTS[type.dtype])


def joined_type(dtype: str) -> str:
    """The complex element type whose parts are these.  Example: of ``float32``, ``complex64``."""
    return next(name for name, part in PARTS.items() if part == dtype)


def constant(array: np.ndarray[Any, Any], type: Type) -> Complex:
    """Known complex numbers, the same on all ranks.

    Example: ``[1j, 2]`` has the parts ``[0, 2]`` and ``[1, 0]``.
    """
    own = part_type(type)
    return Complex(
        known.constant(np.array(array.real), own),
        known.constant(np.array(array.imag), own),
    )


def apply(
    opcode: str, attrs: Mapping[str, Any], operands: Sequence[Any], type: Type, emit: Emit
) -> Any:
    """The result of an operator that reads or gives complex numbers; raises `Unsupported` by name.

    ``attrs``: as `opcodes.typed` gives them, reductions as the operator that they are by.

    Example: ``real`` of ``complex(x, y)`` is ``x``; ``log`` of it is refused.
    """
    if opcode == "complex" and len(operands) == 2 and is_complex(type.dtype):
        return Complex(*operands)
    if opcode == "convert" and len(operands) == 1 and is_complex(type.dtype):
        return _converted(operands[0], type, attrs, emit)
    if opcode == "fft" and len(operands) == 1:
        return _transformed(attrs, operands[0], type, emit)
    if opcode == "scatter" and len(operands) == 3:
        return _scattered(attrs, operands, type, emit)
    if opcode == "select" and len(operands) == 3:
        return _by_part(opcode, attrs, operands, type, emit, (1, 3))
    if opcode in LINEAR:
        if attrs.get("to_apply", "add") != "add":
            raise Unsupported(f"{opcode} of complex numbers by {attrs['to_apply']}")
        end = LINEAR[opcode]
        return _by_part(
            opcode, attrs, operands, type, emit, (0, len(operands) if end is None else end)
        )
    rule = _RULES.get((opcode, len(operands)))
    if rule is None or not all(isinstance(x, Complex) for x in operands):
        raise Unsupported("complex numbers, of which no rule of this operator is declared")
    return rule(operands, type, attrs, emit)


def _scattered(
    attrs: Mapping[str, Any], operands: Sequence[Any], type: Type, emit: Emit
) -> Complex:
    """Both parts of numbers, written over or added to both parts of others at the same places."""
    into, places, updates = operands
    if attrs.get("to_apply") not in ("replace", "add"):
        raise Unsupported(f"scatter of complex numbers by {attrs.get('to_apply')}")
    if not isinstance(into, Complex) or not isinstance(updates, Complex):
        raise Unsupported("complex numbers beside others")
    own = part_type(type)
    pairs = (into.real, updates.real), (into.imaginary, updates.imaginary)
    return Complex(*(emit("scatter", own, [x, places, y], attrs) for x, y in pairs))


def _transformed(attrs: Mapping[str, Any], x: Any, type: Type, emit: Emit) -> Any:
    """A Fourier transform, to complex or to real numbers."""
    parts = (x.real, x.imaginary) if isinstance(x, Complex) else (x, None)
    own = part_type(type) if is_complex(type.dtype) else type
    made = transform(attrs, parts, own, emit)
    if not is_complex(type.dtype):
        return made[0]
    zero = known.constant(np.broadcast_to(np.zeros((), own.dtype), own.shape), own)
    return Complex(*(zero if part is None else part for part in made))


def _by_part(
    opcode: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Any],
    type: Type,
    emit: Emit,
    span: tuple[int, int],
) -> Complex:
    """The operator of the real parts, and of the imaginary ones, of the operands in ``span``."""
    inside = operands[slice(*span)]
    if not is_complex(type.dtype) or not all(isinstance(x, Complex) for x in inside):
        raise Unsupported("complex numbers beside others")
    before, behind = operands[: span[0]], operands[span[1] :]
    own = part_type(type)
    real = [*before, *(x.real for x in inside), *behind]
    imaginary = [*before, *(x.imaginary for x in inside), *behind]
    return Complex(emit(opcode, own, real, attrs), emit(opcode, own, imaginary, attrs))


def _converted(x: Any, type: Type, attrs: Mapping[str, Any], emit: Emit) -> Complex:
    """Complex numbers of another width, or real ones, of which the imaginary part is zero."""
    own = part_type(type)
    if isinstance(x, Complex):
        parts = (x.real, x.imaginary)
        real, imaginary = (emit("convert", own, [part], attrs) for part in parts)
        return Complex(real, imaginary)
    zero = np.broadcast_to(np.zeros((), own.dtype), own.shape)
    return Complex(emit("convert", own, [x], attrs), known.constant(zero, own))


_Rule: TypeAlias = Callable[[Sequence[Complex], Type, Mapping[str, Any], Emit], Any]


def _product(
    xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit, by: str
) -> Complex:
    """ac - bd and ad + bc, where the products are those of ``by``."""
    (a, b), (c, d) = ((x.real, x.imaginary) for x in xs)
    own = part_type(type)

    def times(x: Part, y: Part) -> Any:
        return emit(by, own, [x, y], attrs)

    return Complex(
        emit("subtract", own, [times(a, c), times(b, d)], {}),
        emit("add", own, [times(a, d), times(b, c)], {}),
    )


def _multiply(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    return _product(xs, type, attrs, emit, "multiply")


def _dot(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    return _product(xs, type, attrs, emit, "dot")


def _divide(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    """x times the conjugate of y, by the square of its absolute value."""
    own = part_type(type)
    x, y = xs
    conjugate = Complex(y.real, emit("negate", own, [y.imaginary], {}))
    above = _product([x, conjugate], type, attrs, emit, "multiply")
    below = _square(y, own, emit)
    return Complex(
        emit("divide", own, [above.real, below], {}),
        emit("divide", own, [above.imaginary, below], {}),
    )


def _square(x: Complex, own: Type, emit: Emit) -> Any:
    """The square of the absolute value."""
    squares = [emit("multiply", own, [part, part], {}) for part in (x.real, x.imaginary)]
    return emit("add", own, squares, {})


def _absolute(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    return emit("sqrt", type, [_square(xs[0], type, emit)], {})


def _exponential(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    """e^a cos b and e^a sin b."""
    own = part_type(type)
    size = emit("exponential", own, [xs[0].real], {})
    turns = (emit(f, own, [xs[0].imaginary], {}) for f in ("cosine", "sine"))
    real, imaginary = (emit("multiply", own, [size, turn], {}) for turn in turns)
    return Complex(real, imaginary)


def _compare(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    """Both parts are equal, or one of them is not."""
    joined = {"EQ": "and", "NE": "or"}.get(attrs.get("direction", ""))
    if joined is None:
        raise InvalidInput("complex numbers have no order")
    own = {"direction": attrs["direction"]}
    x, y = xs
    pairs = ((x.real, y.real), (x.imaginary, y.imaginary))
    return emit(joined, type, [emit("compare", type, pair, own) for pair in pairs], {})


def _real(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    return xs[0].real


def _imaginary(xs: Sequence[Complex], type: Type, attrs: Mapping[str, Any], emit: Emit) -> Any:
    return xs[0].imaginary


#: Rules of operators by their name and how many operands they have.
_RULES: Mapping[tuple[str, int], _Rule] = {
    ("real", 1): _real,
    ("imag", 1): _imaginary,
    ("multiply", 2): _multiply,
    ("divide", 2): _divide,
    ("dot", 2): _dot,
    ("abs", 1): _absolute,
    ("exponential", 1): _exponential,
    ("compare", 2): _compare,
}
