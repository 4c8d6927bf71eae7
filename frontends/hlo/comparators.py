"""What computations of sorts and of reductions with places decide, found by trying all cases.

A computation that only compares its parameters, with each other and with zero, and chooses among
them depends on nothing but how they are ordered.  So it is evaluated for every order of small
integers: what it does for these, it does for all numbers (that are numbers: ``x != x`` is false).
For example, ``lt(a, b)`` of parameters (a, b, i, j) is true exactly where the first is less: a
sort in rising order by its first operand.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo.module import Computation, Instruction, Type
from shardproof.frontends.hlo.semantics import REDUCTIONS

#: Two numbers and zero are ordered in no more ways than these have.
NUMBERS = (-2, -1, 0, 1, 2)
#: Orders of two places.
PLACES = (0, 1)
MOST_PARAMETERS = 6
_NUMBER, _BITS = Type((), "float32"), Type((), "int32")
_ALL_BUT_THE_SIGN = (1 << 31) - 1

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_LOGIC: Mapping[str, Callable[[Any, Any], bool]] = {
    "and": lambda x, y: bool(x and y),
    "or": lambda x, y: bool(x or y),
}


def evaluate(computation: Computation, given: Sequence[int]) -> Any:
    """The result of a computation for given parameters; raises `Unsupported` for an operator that
    does more than compare and choose.

    Example: of the body of JAX's ``argmax``, the parameters (1, 0, 2, 1) give (2, 1): the larger
    number with its place. An ``add`` among its operators is refused.
    """
    computation = _without_bits(_without_copies(computation))
    values: dict[str, Any] = {}
    for i in computation.instructions:
        xs = [values[name] for name in i.operands]
        if i.opcode == "parameter" and i.number < len(given):
            values[i.name] = given[i.number]
        elif i.opcode == "constant" and i.literal is not None and i.literal.ndim == 0:
            values[i.name] = _constant(i.literal.item())
        elif i.opcode == "compare" and i.attrs.get("direction") in _COMPARE:
            if len(xs) != 2:
                raise InvalidInput(f"a comparison of {len(xs)} operands")
            if any(x != x for x in xs):
                raise Unsupported("a comparison with what is no number")
            values[i.name] = _COMPARE[i.attrs["direction"]](*xs)
        elif i.opcode in _LOGIC:
            values[i.name] = _LOGIC[i.opcode](*xs)
        elif i.opcode == "not" and isinstance(xs[0], bool):
            values[i.name] = not xs[0]
        elif i.opcode == "select":
            values[i.name] = xs[1] if xs[0] else xs[2]
        elif i.opcode == "tuple":
            values[i.name] = tuple(xs)
        else:
            raise Unsupported(f"{i.opcode} in what compares")
    return values[computation.root]


def _without_copies(body: Computation) -> Computation:
    """A computation in which nobody reads a copy: annotations of shardings are such."""
    names: dict[str, str] = {}
    others = []
    for i in body.instructions:
        i = replace(i, operands=tuple(names.get(x, x) for x in i.operands))
        if i.opcode == "copy" and len(i.operands) == 1:
            names[i.name] = i.operands[0]
        else:
            others.append(i)
    return Computation(body.name, tuple(others), names.get(body.root, body.root))


def _without_bits(body: Computation) -> Computation:
    """A computation that orders numbers themselves, where it orders their bits as integers, those
    of negative numbers but the sign the other way round: both orders are the same.

    XLA makes this of comparisons of a total order: ``b = bitcast(x)`` and
    ``select(b < 0, 2147483647 xor b, b)``.  Source: IEEE 754, in which bits of positive numbers are
    ordered as these are.
    """
    made = {i.name: i for i in body.instructions}

    def bits_of(name: str) -> str:
        """The number whose bits these are; empty: none."""
        i = made[name]
        whole = i.opcode == "bitcast" and i.type == _BITS and len(i.operands) == 1
        return i.operands[0] if whole and made[i.operands[0]].type == _NUMBER else ""

    def number(name: str, value: int) -> bool:
        i = made[name]
        return i.opcode == "constant" and i.literal is not None and i.literal.item() == value

    def ordered(i: Instruction) -> str:
        """The number that is ordered as these integers are; empty: none."""
        if i.opcode != "select" or len(i.operands) != 3:
            return ""
        sign, turned, bits = (made[name] for name in i.operands)
        x = bits_of(bits.name)
        below = sign.opcode == "compare" and sign.attrs.get("direction") == "LT"
        below = below and sign.operands[0] == bits.name and number(sign.operands[1], 0)
        pair = set(turned.operands) - {bits.name}
        one = turned.opcode == "xor" and len(pair) == 1 and bits.name in turned.operands
        return x if below and one and number(pair.pop(), _ALL_BUT_THE_SIGN) else ""

    numbers = {i.name: x for i in body.instructions if (x := ordered(i))}
    needed, kept = {body.root}, []
    for i in reversed(body.instructions):
        if i.opcode == "parameter" or (i.name in needed and i.name not in numbers):
            i = replace(i, operands=tuple(numbers.get(x, x) for x in i.operands))
            kept.append(i)
            needed.update(i.operands)
    return Computation(body.name, tuple(reversed(kept)), numbers.get(body.root, body.root))


def _constant(number: Any) -> Any:
    """Zero, truth values, and what is no number: others would have to be among the cases."""
    if isinstance(number, bool) or number == 0 or np.isnan(number):
        return number
    raise Unsupported(f"the constant {number} in what compares")


def _parameters(computation: Computation) -> int:
    count = sum(i.opcode == "parameter" for i in computation.instructions)
    if count > MOST_PARAMETERS:
        raise Unsupported(f"a comparison of {count} values")
    return count


def order(computation: Computation) -> tuple[int, bool]:
    """Which operand a sort is by, and whether in falling order; raises `Unsupported` for any
    other comparison.

    Example: ``compare(x, y), direction=GT`` of parameters (x, y) is (0, True).
    """
    count = _parameters(computation)
    for key, falling in itertools.product(range(count // 2), (False, True)):
        if all(
            evaluate(computation, case)
            == (case[2 * key] > case[2 * key + 1] if falling else case[2 * key] < case[2 * key + 1])
            for case in itertools.product(NUMBERS, repeat=count)
        ):
            return key, falling
    raise Unsupported("a sort by another comparison than of one operand")


def extreme(computation: Computation) -> str:
    """``argmax`` or ``argmin``: the larger (smaller) of two numbers with its place, of equal ones
    the first; raises `Unsupported` for any other computation.

    Example: ``argmax`` for JAX's body, which takes the larger number, of equal ones the smaller
    place.
    """
    if _parameters(computation) != 4:
        raise Unsupported("a reduction with several results")
    cases = list(itertools.product(NUMBERS, PLACES, NUMBERS, PLACES))
    for name, better in (("argmax", operator.gt), ("argmin", operator.lt)):
        if all(
            evaluate(computation, (x, i, y, j))
            == ((x, i) if better(x, y) or (x == y and i < j) else (y, j))
            for x, i, y, j in cases
        ):
            return name
    raise Unsupported("a reduction with several results")


def selected(computation: Computation) -> str:
    """Which of two entries a window keeps, the first of which comes before the second: ``largest``
    or ``smallest``, of equal ones the first; raises `Unsupported` for any other computation.

    Example: ``largest`` for ``compare(x, y), direction=GE``; ``GT`` keeps the last of equal ones.
    """
    if _parameters(computation) == 2:
        cases = list(itertools.product(NUMBERS, repeat=2))
        for name, better in (("largest", operator.ge), ("smallest", operator.le)):
            if all(evaluate(computation, case) == better(*case) for case in cases):
                return name
    raise Unsupported("a choice from windows by another comparison")


def combined(body: Computation, written: bool = False) -> str:
    """The operator of a computation that combines its two parameters by one operator, of
    predicates the one of logic; raises `Unsupported` for another computation.

    ``written``: it may also be the second parameter, which is written over the first.

    Example: ``add(x, y)`` of f32 is ``add``, of predicates ``or``; ``add(x, multiply(y, y))`` is
    refused.
    """
    body = _without_copies(body)
    root = {i.name: i for i in body.instructions}[body.root]
    parameters = [i.name for i in body.instructions if i.opcode == "parameter"]
    if written and root.opcode == "parameter" and root.number == 1 and len(parameters) == 2:
        return "replace"
    plain = len(body.instructions) == 3 and sorted(root.operands) == sorted(parameters)
    if not plain or root.opcode not in REDUCTIONS:
        what = "/".join(i.opcode for i in body.instructions if i.opcode != "parameter")
        raise Unsupported(f"a reduction by {what[:80]}")
    if root.opcode in ("add", "multiply") and root.type.dtype == "bool":
        return "or" if root.opcode == "add" else "and"
    return root.opcode
