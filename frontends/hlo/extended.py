"""Which values may be no real number, or zero, because a mask hides entries or a constant is zero.

Numbers are real to us, so a question about infinity is answered by what a value is made of: hidden
scores are minus infinity, their exponential is 0, the logarithm of that is minus infinity again,
and what is computed of infinite numbers may be either infinity or no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.aten.positive import Signs
from shardproof.frontends.graphs.graph import PerRank
from shardproof.frontends.graphs.recorder import Recorded, Recorder

#: What hides an entry, in place of minus infinity.
HIDDEN: Final = -(10**30)


class May(Flag):
    """What entries of a value may be: ``LOW`` minus infinity, ``WILD`` either infinity or no
    number, ``ZERO`` nought.

    Example: of ``exp(select(mask, x, -inf))`` it is ``ZERO``, of its logarithm ``LOW``.
    """

    NOTHING = 0
    LOW = 1
    WILD = 2
    ZERO = 4


@dataclass(frozen=True, slots=True)
class Reach:
    """What entries of a value may be, and which dimensions a maximum or a sum has to go over so
    that it reads one that is shown (None: any).

    Example: scores behind a causal mask, ``f32[1,2,4,4]``, are ``Reach(May.LOW, {2, 3})``: every
    row and every column shows its entry on the diagonal.
    """

    may: May = May.NOTHING
    dims: frozenset[int] | None = None

    def over(self, dims: frozenset[int]) -> bool:
        """Whether something is shown wherever ``dims`` are summed up."""
        return self.dims is None or bool(self.dims & dims)


NOTHING: Final = Reach()
NOWHERE: Final[frozenset[int]] = frozenset()


@dataclass(slots=True)
class Reaches:
    """The reach of every value that is recorded, brought up to date when it is read.

    Example: after ``is-finite`` of an input nothing is known of any value, so all are finite.

    ``chosen``: products with the predicate of a choice, which are nothing where it does not hold.
    """

    recorder: Recorder
    chosen: set[int] = field(default_factory=set)
    _known: dict[int, Reach] = field(default_factory=dict)
    _partial: set[int] = field(default_factory=set)
    _signs: Signs = field(default_factory=Signs)
    _makers: dict[int, Recorded] = field(default_factory=dict)
    _read: tuple[int, int] = (0, 0)

    def of(self, value: int) -> Reach:
        """The reach of a value.

        Example: of ``amax`` of scores behind a causal mask, along their rows, nothing.
        """
        self._read_on()
        return self._known.get(value, NOTHING)

    def is_total(self, value: int) -> bool:
        """Whether a value is made by nothing that is undefined for some real numbers.

        Example: ``x - y`` of two inputs is; ``sqrt(x)``, ``x / y`` and what is made of them are
        not.
        """
        self._read_on()
        return value not in self._partial

    def may_be_none(self, value: int) -> bool:
        """Whether some entries may be no numbers where others are.

        Example: of ``log(x)``, and what is made of it; not of ``log(exp(x) + 1)``.
        """
        signs = self._signs.read(self.recorder.ops, self.recorder.shape)
        return value in signs.may_be_none

    def maker(self, value: int) -> Recorded | None:
        """The operator whose result a value is; None: it is an input or a constant.

        Example: of ``exp(x)``, the operator ``exp``; of ``x``, None.
        """
        self._read_on()
        return self._makers.get(value)

    def _read_on(self) -> None:
        ops, constants = self.recorder.ops, self.recorder.constants
        for constant in constants[self._read[1] :]:
            if not constant.drawn and any(np.any(a == 0) for a in constant.arrays):
                self._known[constant.value] = Reach(May.ZERO)
        for op in ops[self._read[0] :]:
            self._makers.update(dict.fromkeys(op.outputs, op))
            if not _of_all_numbers(op) or not self._partial.isdisjoint(op.inputs):
                self._partial.update(op.outputs)
            reach = self._made(op)
            if reach.may:
                self._known.update(dict.fromkeys(op.outputs, reach))
        self._read = len(ops), len(constants)

    def _made(self, op: Recorded) -> Reach:
        given = [self._known.get(v, NOTHING) for v in op.inputs]
        may = _any_of(reach.may for reach in given)
        if op.name in _MADE:
            return _MADE[op.name](self.recorder, op)
        if op.name == "permute_ranks":
            may |= May.ZERO  # where nobody sends anything
        if not may:
            return NOTHING
        dims = _joined(given)
        if May.WILD in may:
            return Reach(May.WILD, NOWHERE)
        if op.name in _MOVED:
            return Reach(may, None if dims is None else _MOVED[op.name](self.recorder, op, dims))
        if op.name in _REDUCED:
            shown = _over(_REDUCED[op.name](op), given)
            return NOTHING if shown else Reach(may, None if dims is None else NOWHERE)
        if op.name == "einsum":
            return self._product(op, given)
        if op.name == "mul" and len(op.inputs) == 2:
            return self._times(op, given, dims)
        rule = _ENTRYWISE.get(op.name, _unknown)
        reach = replace(Reach(dims=dims), may=rule(op, [g.may for g in given]))
        return reach if reach.may else NOTHING

    def _times(self, op: Recorded, given: list[Reach], dims: frozenset[int] | None) -> Reach:
        """Of two factors: one of which is a choice, or both are one number and its step."""
        may = given[0].may | given[1].may
        steps = [m for v in op.inputs if (m := self._makers.get(v)) and m.name == "step"]
        if any(step.inputs[0] in op.inputs for step in steps):
            return Reach(May.ZERO, dims)
        if op.outputs[0] in self.chosen:
            low = may & May.LOW
            return Reach(low, dims) if low else NOTHING
        return Reach(May.WILD if May.LOW in may else May.ZERO, dims)

    def _product(self, op: Recorded, given: list[Reach]) -> Reach:
        """Rows that are chosen are these rows; a contraction over shown entries is not zero for
        what is hidden."""
        makers = [m for v in op.inputs if (m := self._makers.get(v))]
        makers += [m for v in makers if v.name == "view" and (m := self._makers.get(v.inputs[0]))]
        names = {m.name for m in makers}
        if May.LOW in _any_of(reach.may for reach in given):
            return Reach(May.LOW if "onehot" in names else May.WILD, NOWHERE)
        reads, result = op.attrs["equation"].split("->")
        for letters, reach in zip(reads.split(","), given, strict=True):
            gone = frozenset(d for d, name in enumerate(letters) if name not in result)
            if reach.may and not (gone and reach.over(gone)):
                return Reach(May.ZERO, None if reach.dims is None else NOWHERE)
        return NOTHING


#: Operators that give numbers for all real numbers, beside those that move them or add them up.
_TOTAL: Final = frozenset(
    {
        *("full", "create_mask", "apply_mask", "add", "sub", "mul", "einsum", "exp", "sigmoid"),
        *("tanh", "erf", "sin", "cos", "atan", "abs", "relu", "step", "floor", "ceil", "trunc"),
        *("round", "identity", "tril", "onehot"),
    }
)


def _of_all_numbers(op: Recorded) -> bool:
    if op.name == "div":
        return len(op.inputs) == 1 and all(n != 0 for n in _numbers(op.attrs["other"]))
    if op.name == "pow":
        exponent = op.attrs["exponent"]
        return isinstance(exponent, int | Fraction) and exponent.denominator == 1 and exponent > 0
    return op.name in _TOTAL or op.name in _MOVED or op.name in _REDUCED


def _any_of(mays: Iterable[May]) -> May:
    joined = May.NOTHING
    for may in mays:
        joined |= may
    return joined


def _joined(given: list[Reach]) -> frozenset[int] | None:
    """Dimensions over which something of every operand is shown."""
    joined: frozenset[int] | None = None
    for reach in given:
        if reach.may and reach.dims is not None:
            joined = reach.dims if joined is None else joined & reach.dims
    return joined


def _over(dims: frozenset[int], given: list[Reach]) -> bool:
    return all(reach.over(dims) for reach in given if reach.may)


# -- what is made of nothing, moved, or reduced ----------------------------------------------------


def _full(recorder: Recorder, op: Recorded) -> Reach:
    number = op.attrs.get("value")
    return Reach(May.LOW if number == HIDDEN else May.ZERO if number == 0 else May.NOTHING)


def _masked(recorder: Recorder, op: Recorded) -> Reach:
    rank = len(recorder.shape(op.outputs[0]))
    return Reach(May.LOW, frozenset({rank - 2, rank - 1}))


_MADE: Final[Mapping[str, Callable[[Recorder, Recorded], Reach]]] = {
    "full": _full,
    "apply_mask": _masked,
    "create_mask": lambda recorder, op: NOTHING,
}


def _permuted(recorder: Recorder, op: Recorded, dims: frozenset[int]) -> frozenset[int]:
    return frozenset(i for i, d in enumerate(op.attrs["dims"]) if d in dims)


def _viewed(recorder: Recorder, op: Recorded, dims: frozenset[int]) -> frozenset[int]:
    """Dimensions that are whole in another shape, too."""
    before, after = recorder.shape(op.inputs[0]), recorder.shape(op.outputs[0])
    places = {(prod(after[d:]), after[d]): d for d in range(len(after)) if after[d] > 1}
    kept = (places.get((prod(before[d:]), before[d])) for d in dims)
    return frozenset(d for d in kept if d is not None)


#: Between ranks; a sum or a maximum of minus infinities is one, too.
_SENT: Final = ("all_gather", "all_to_all", "permute_ranks", "all_reduce", "reduce_scatter")
_MOVED: Final[Mapping[str, Callable[[Recorder, Recorded, frozenset[int]], frozenset[int]]]] = {
    "permute": _permuted,
    "view": _viewed,
    "expand": lambda recorder, op, dims: dims,
    **dict.fromkeys(
        ("slice", "concat", "topk", *_SENT),
        lambda recorder, op, dims: NOWHERE,
    ),
}


def _dims_of(op: Recorded) -> frozenset[int]:
    return frozenset(op.attrs["dim"])


_REDUCED: Final[Mapping[str, Callable[[Recorded], frozenset[int]]]] = {
    "sum": _dims_of,
    "amax": _dims_of,
}


# -- entry by entry --------------------------------------------------------------------------------


def _unknown(op: Recorded, may: list[May]) -> May:
    joined = _any_of(may)
    return May.WILD if May.LOW in joined else joined


def _numbers(value: Any) -> tuple[Any, ...]:
    return value.values if isinstance(value, PerRank) else (value,)


def _add(op: Recorded, may: list[May]) -> May:
    """Zero is what is zero on all sides; minus infinity keeps."""
    low = _any_of(may) & May.LOW
    shifted = any(n != 0 for n in _numbers(op.attrs.get("other", 0)))
    return low | (May.NOTHING if shifted or not all(May.ZERO in m for m in may) else May.ZERO)


def _sub(op: Recorded, may: list[May]) -> May:
    return May.WILD if len(may) > 1 and May.LOW in may[1] else _add(op, may)


def _scaled(op: Recorded, may: list[May]) -> May:
    """Times, or divided by, a number: minus infinity keeps if it is positive."""
    positive = all(isinstance(n, int | Fraction) and n > 0 for n in _numbers(op.attrs["other"]))
    return may[0] if positive or May.LOW not in may[0] else May.WILD


def _div(op: Recorded, may: list[May]) -> May:
    if len(may) == 1:
        return _scaled(op, may)
    wild = May.LOW in may[0] or May.ZERO in may[1]
    return May.WILD if wild else May.ZERO


def _power(op: Recorded, may: list[May]) -> May:
    exponent = op.attrs["exponent"]
    fine = may[0] == May.ZERO and isinstance(exponent, int | Fraction) and exponent > 0
    return May.ZERO if fine else May.WILD


def _table(low: May, zero: May) -> Callable[[Recorded, list[May]], May]:
    def rule(op: Recorded, may: list[May]) -> May:
        made = May.NOTHING
        if May.LOW in may[0]:
            made |= low
        return made | (zero if May.ZERO in may[0] else May.NOTHING)

    return rule


_ENTRYWISE: Final[Mapping[str, Callable[[Recorded, list[May]], May]]] = {
    "add": _add,
    "sub": _sub,
    "mul": _scaled,
    "div": _div,
    "pow": _power,
    "exp": _table(May.ZERO, May.NOTHING),
    "sigmoid": _table(May.ZERO, May.NOTHING),
    "tanh": _table(May.NOTHING, May.ZERO),
    "erf": _table(May.NOTHING, May.ZERO),
    "relu": _table(May.ZERO, May.ZERO),
    "step": _table(May.ZERO, May.ZERO),
    "sqrt": _table(May.WILD, May.ZERO),
    "log": _table(May.WILD, May.LOW),
    "rsqrt": _table(May.WILD, May.WILD),
    "inv": _table(May.ZERO, May.WILD),
}
