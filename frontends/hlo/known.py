"""Tensors whose values are known while a program is read, on every rank at once.

Counters of loops, rank numbers and what is computed of them, masks of positions: integers and
predicates are folded exactly; floats are only moved (float32 rounds, our numbers do not), or
computed with where all of them are whole numbers that their type has.  For example,
``partition-id() * 4`` on four ranks is ``Known([0, 4, 8, 12])``, and a dynamic slice that begins
there is a slice whose start depends on the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.aten.singles import meant
from shardproof.frontends.hlo import origins, semantics
from shardproof.frontends.hlo.module import Array, Type
from shardproof.frontends.hlo.opcodes import ELEMENTWISE, MOVEMENT
from shardproof.frontends.hlo.origins import Begins

#: Known tensors may have this many different elements.
MOST_KNOWN = 1 << 26
#: Floats that are whole numbers are computed with up to this many.
MOST_WHOLE = 1 << 20
#: Larger numbers are no factors: scores are hidden by them.
MOST_FACTOR = 1 << 20
#: What is exact for floats too.
_EXACT = frozenset({*MOVEMENT, "select", "compare", "is-finite"})
#: What gives whole numbers of whole numbers.
_WHOLE = frozenset({"add", "subtract", "multiply", "negate", "maximum", "minimum", "abs"})
#: Up to where a type has all whole numbers.
_LIMITS = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor whose numbers are known on every rank. ``arrays``: one for all ranks, or one for
    each; repeated elements are held once (NumPy views with stride 0). ``begins``: where the
    positions begin of which it is made (`origins`).

    Example: ``partition-id() * 4`` on four ranks has the arrays 0, 4, 8 and 12; a constant has one.
    """

    arrays: tuple[Array, ...]
    dtype: str
    begins: Begins = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, the same on all ranks."""
        return self.arrays[0].shape

    def at(self, rank: int) -> Array:
        """The tensor of rank number ``rank`` (of the graph)."""
        return self.arrays[rank if len(self.arrays) > 1 else 0]

    def number(self) -> Any:
        """The one number that all elements on all ranks are; None if there is none."""
        first: Any = None
        for array in self.arrays:
            core = compact(array)
            if not core.size:
                return None
            low, high = core.min(), core.max()
            if low != high or (first is not None and low != first):
                return None
            first = low
        return first.item()


def compact(array: Array) -> Array:
    """One position of every dimension along which elements repeat by construction.

    Example: ``[0, 1, 2]`` broadcast to two rows is ``[[0, 1, 2]]``.
    """
    return array[
        tuple(
            slice(0, 1) if step == 0 and n > 1 else slice(None)
            for step, n in zip(array.strides, array.shape, strict=True)
        )
    ]


def flags(item: Known) -> tuple[Known, float] | None:
    """Numbers that are all 0 or one other number as zeros and ones, and that number; None: they
    are others, or zeros and ones.

    Example: ``[-1/4, 0, 0]``, what the gradient of a mean over the first column begins with, is
    -1/4 times ``[1, 0, 0]``: on ranks with a part of the rows it is the same, times another number.
    """
    if not item.dtype.startswith(("float", "bfloat")):
        return None
    numbers = np.unique(np.concatenate([np.unique(compact(a)) for a in item.arrays]))
    others = [float(n) for n in numbers if n]
    if len(others) != 1 or len(numbers) != 2 or others[0] == 1 or abs(others[0]) > MOST_FACTOR:
        return None
    arrays = tuple((a != 0).astype(a.dtype) for a in map(compact, item.arrays))
    wide = tuple(np.broadcast_to(a, item.shape) for a in arrays)
    return replace(item, arrays=wide), others[0]


def core(array: Array) -> Array:
    """One position of every dimension along which all numbers repeat.

    Example: of ``[[1, 2], [1, 2]]``, ``[[1, 2]]``.
    """
    made = compact(array)
    for d, n in enumerate(made.shape):
        if n > 1:
            first = np.take(made, [0], axis=d)
            if np.array_equal(np.broadcast_to(first, made.shape), made):
                made = first
    return made


def constant(array: Array, type: Type) -> Known:
    """An array that is the same on all ranks.

    Example: the number 4 of ``s32[]``, of which ``number()`` is 4.
    """
    return Known((array,), type.dtype)


def iota(type: Type, dimension: int) -> Known:
    """The positions along a dimension.

    Example: of ``s32[2,3]`` along dimension 1, ``[[0, 1, 2], [0, 1, 2]]``, of which one row is
    held.
    """
    if dimension >= len(type.shape):
        raise InvalidInput(f"an iota of {type} along dimension {dimension}")
    n = type.shape[dimension]
    if n > MOST_KNOWN:
        raise Unsupported(f"iota of {n} positions")
    line = np.arange(n).astype("float32" if type.dtype == "bfloat16" else type.dtype)
    wide = line.reshape([n if d == dimension else 1 for d in range(len(type.shape))])
    return Known((np.broadcast_to(wide, type.shape),), type.dtype)


#: What arithmetic raises for operands or attributes that are not those of an operator.
_MALFORMED = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)


def ranks(numbers: Sequence[int], type: Type) -> Known:
    """A scalar for each rank.

    Example: 0, 4, 8 and 12 are four arrays; 3 and 3 are one.
    """
    arrays = tuple(np.array(n, dtype=type.dtype) for n in numbers)
    return Known(arrays if len(set(numbers)) > 1 else arrays[:1], type.dtype)


def fold(
    opcode: str, attrs: Mapping[str, Any], operands: Sequence[Known], type: Type
) -> Known | None:
    """The result of an operator on known tensors, where it is exact to compute it now; None: it is
    not.

    Example: ``multiply`` of the rank number and 4 is 0, 4, 8, 12; of 0.1 and 4.0 it is None, since
    float32 would round; of 3.0 and 4.0 it is 12.0.
    """
    if not operands:
        return None
    floats = _floating(type.dtype) or any(_floating(x.dtype) for x in operands)
    if opcode in _WHOLE and floats:
        return _of_whole_numbers(opcode, attrs, operands, type)
    if opcode not in _EXACT and floats:
        return None if opcode != "convert" else _converted(attrs, operands[0], type)
    count = max(len(x.arrays) for x in operands)
    compute = _elementwise if opcode in ELEMENTWISE or opcode == "compare" else semantics.apply
    arrays = []
    for rank in range(count):
        try:
            with np.errstate(over="ignore"):
                computed = compute(opcode, attrs, [x.at(rank) for x in operands], type.shape)
                computed = of_type(computed, type.dtype)
        except _MALFORMED as error:
            raise Unsupported(f"{opcode} of other operands than its own ({error})") from None
        if compact(computed).size * count > MOST_KNOWN:
            raise Unsupported(
                f"a constant of {compact(computed).size} different elements ({opcode})"
            )
        arrays.append(computed)
    same = all(a is arrays[0] or np.array_equal(a, arrays[0]) for a in arrays)
    made = Known(tuple(arrays[:1] if same else arrays), type.dtype)
    return replace(made, begins=origins.begins(opcode, attrs, operands, made))


def of_type(computed: Array, dtype: str) -> Array:
    """What NumPy gives in an integer type of its own, as the type that HLO says: its lowest bits,
    and of predicates, whether it is not zero.

    Example: 200, the sum of two numbers of ``s8`` that NumPy adds up in 64 bits, is -56.
    """
    if computed.dtype == dtype or not dtype.startswith(("int", "uint", "bool")):
        return computed
    return np.broadcast_to(compact(computed).astype(dtype), computed.shape)


def _elementwise(
    opcode: str, attrs: Mapping[str, Any], xs: Sequence[Array], shape: tuple[int, ...]
) -> Array:
    cores = [compact(x) for x in xs]
    rule: Callable[..., Array] = semantics.apply
    return np.broadcast_to(rule(opcode, attrs, cores, shape), shape)


def _floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _of_whole_numbers(
    opcode: str, attrs: Mapping[str, Any], operands: Sequence[Known], type: Type
) -> Known | None:
    """Sums and products of floats that are whole numbers: a result that the type has is not
    rounded.  What is made of masks of 0 and 1 alone stays what it is made of."""
    if (limit := _LIMITS.get(type.dtype)) is None or any(x.dtype != type.dtype for x in operands):
        return None
    ranks = range(max(len(x.arrays) for x in operands))
    own = [[compact(x.at(rank)) for x in operands] for rank in ranks]
    if any(core.size * len(own) > MOST_WHOLE for cores in own for core in cores):
        return None
    if all(np.all((core == 0) | (core == 1)) for cores in own for core in cores):
        return None
    arrays = []
    for cores in own:
        wide = [np.asarray(core, dtype=float) for core in cores]
        if not all(_whole_up_to(core, limit) for core in wide):
            return None
        try:
            made = _elementwise(opcode, attrs, wide, type.shape)
        except _MALFORMED:
            return None
        if not _whole_up_to(compact(made), limit) or compact(made).size > MOST_WHOLE:
            return None
        narrow = compact(made).astype("float32" if type.dtype == "bfloat16" else type.dtype)
        arrays.append(np.broadcast_to(narrow, type.shape))
    same = all(np.array_equal(a, arrays[0]) for a in arrays)
    return Known(tuple(arrays[:1] if same else arrays), type.dtype)


def _whole_up_to(core: Array, limit: int) -> bool:
    return bool(np.all(np.isfinite(core) & (np.abs(core) <= limit)) and np.all(core % 1 == 0))


def _converted(attrs: Mapping[str, Any], x: Known, type: Type) -> Known | None:
    """Integers and predicates as floats, where every one is a float exactly."""
    if _floating(x.dtype) or not _floating(type.dtype):
        return None
    arrays = []
    for array in x.arrays:
        core = compact(array)
        limit = _LIMITS.get(type.dtype, 256)
        if core.size and max(abs(int(core.min())), abs(int(core.max()))) > limit:
            return None
        arrays.append(
            np.broadcast_to(semantics.apply("convert", attrs, [core], core.shape), x.shape)
        )
    return Known(tuple(arrays), type.dtype, x.begins)


def exact(number: object) -> Fraction:
    """A finite number as an exact one, the one that is `meant`; raises `Unsupported`.

    Example: 0.5 is 1/2; infinity is refused ("the constant inf").
    """
    if isinstance(number, bool | int):
        return Fraction(int(number))
    if isinstance(number, float) and math.isfinite(number):
        return meant(number)
    raise Unsupported(f"the constant {number}")
