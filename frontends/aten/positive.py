"""Which values are positive by how they are made, and which may be no numbers.

A logarithm, a root or a quotient is a number of what is positive.  Numbers are real to us, so a
choice that leaves out what is none (``torch.where(x > 0, x.log(), 0)``) is read as a product with
its mask, of which another program may really take the product: that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from math import prod
from typing import Any, Final, Protocol, TypeGuard

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.aten.lowering import Const, Lowering, Operand, Real, Shape

LEFT_OUT: Final = (
    "what torch.where or masked_fill leave out is a number, also of logarithms, roots and quotients"
)
FINDS_NUMBERS: Final = (
    "isnan, isinf, nansum and fmax find numbers only, also of logarithms, roots and quotients"
)
#: What is printed of `nan_to_num`.
CHANGES_NOTHING: Final = "nan_to_num changes nothing: what it reads is a number"
#: Notes that are no statements of the program's, but assumptions.
OF_NUMBERS: Final = frozenset({LEFT_OUT, FINDS_NUMBERS, CHANGES_NOTHING})


def assumed_of(notes: Iterable[str]) -> list[Assumption]:
    """Those of ``notes`` that are assumptions: that what a program reads is a number.

    Example: of "nan_to_num changes nothing ..." it is one of kind "inferred" about "numbers".
    """
    own = sorted(OF_NUMBERS.intersection(notes))
    return [Assumption("inferred", "numbers", "", note) for note in own]


class Made(Protocol):
    """An operator of a body, as any frontend appends it."""

    @property
    def name(self) -> str:
        """What it is, such as "log"."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The values that it reads."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """The values that it makes."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Its numbers, such as ``other`` of a product with a constant."""


class Sign(IntEnum):
    """What is known of every entry of a value.

    Example: of ``exp(x)`` it is `POSITIVE`, of ``relu(x)`` `NOT_NEGATIVE`, of ``x`` `ANY`.
    """

    ANY = 0
    NOT_NEGATIVE = 1
    POSITIVE = 2


#: The same entries somewhere else, or sums of them.
_MOVED: Final = frozenset(
    {
        *("view", "slice", "permute", "expand", "concat", "to", "sum", "mean", "amax"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"),
    }
)
#: Operators that give one value of several.
_SUMS: Final = frozenset({"sum", "mean", "amax", "all_reduce", "reduce_scatter"})
_ALWAYS: Final[Mapping[str, Sign]] = {
    **dict.fromkeys(("exp", "sigmoid", "softmax"), Sign.POSITIVE),
    **dict.fromkeys(("relu", "abs"), Sign.NOT_NEGATIVE),
}
#: Functions whose values are positive where their operands are, and not negative likewise.
_KEEPING: Final = frozenset({"sqrt", "rsqrt", "inv", "div"})
#: Functions that are numbers of positive ones only, as far as is looked: by which operand.
_PARTIAL: Final[Mapping[str, int]] = {"log": 0, "rsqrt": 0, "sqrt": 0, "inv": 0, "div": 1, "pow": 0}


@dataclass(slots=True)
class Signs:
    """What is known of the values of a body, brought up to date when it is read.

    Example: after ``y = x.exp() + 1`` the sign of ``y`` is `POSITIVE`; after ``z = x.log()``, ``z``
    and what is made of it may be none.
    """

    known: dict[int, Sign] = field(default_factory=dict)
    may_be_none: set[int] = field(default_factory=set)
    #: Scores of which a mask may hide some (minus infinity); what may be 0 where these are hidden,
    #: sums of it included (of which something is shown, or they are no numbers); and without sums.
    hidden: set[int] = field(default_factory=set)
    emptied: set[int] = field(default_factory=set)
    bare: set[int] = field(default_factory=set)
    _read: int = 0

    def read(self, ops: Sequence[Made], shape: Callable[[int], Shape]) -> Signs:
        """These, with the operators that were appended since; ``shape``: of a value."""
        for op in ops[self._read :]:
            if not self.may_be_none.isdisjoint(op.inputs) or self._is_partial(op, shape):
                self.may_be_none.update(op.outputs)
            if sign := self._sign(op):
                self.known.update(dict.fromkeys(op.outputs, sign))
            self._hide(op)
        self._read = len(ops)
        return self

    def _hide(self, op: Made) -> None:
        """Note what of a mask's minus infinity, or of 0 in its place, an operator gives on."""
        if _backward(op):
            return
        of_hidden = not self.hidden.isdisjoint(op.inputs)
        if op.name in _ALWAYS:
            self.emptied.update(op.outputs if of_hidden else ())
            self.bare.update(op.outputs if of_hidden else ())
        elif op.name == "apply_mask" or of_hidden:
            self.hidden.update(op.outputs)
        elif not self.emptied.isdisjoint(op.inputs) and not _is_more(op):
            self.emptied.update(op.outputs)
            summed = op.name in _SUMS or self.bare.isdisjoint(op.inputs)
            self.bare.update(() if summed else op.outputs)

    def _is_partial(self, op: Made, shape: Callable[[int], Shape]) -> bool:
        """Of one number nothing can be left out by itself."""
        place = _PARTIAL.get(op.name)
        if place is None or place >= len(op.inputs) or prod(shape(op.inputs[place])) < 2:
            return False
        exponent = op.attrs.get("exponent")
        if _whole(exponent) and exponent > 0:
            return False
        if op.name != "sqrt" and op.inputs[place] in self.bare:
            return True
        enough = Sign.NOT_NEGATIVE if op.name == "sqrt" and not _backward(op) else Sign.POSITIVE
        return self.known.get(op.inputs[place], Sign.ANY) < enough

    def _sign(self, op: Made) -> Sign:
        if _backward(op) or not op.inputs or "alpha" in op.attrs:
            return Sign.ANY
        if op.name in _ALWAYS:
            return _ALWAYS[op.name]
        signs = [self.known.get(n, Sign.ANY) for n in op.inputs]
        if _is_square(op):
            return max(Sign.NOT_NEGATIVE, signs[0])
        if op.name not in _MOVED | _KEEPING | {"add", "mul"} or op.attrs.get("op", "sum") != "sum":
            return Sign.ANY
        if "other" in op.attrs:
            signs.append(_of_number(op.attrs["other"]))
        if op.name == "add" and min(signs) != Sign.ANY:
            return max(signs)
        return min(signs)


def _whole(exponent: object) -> TypeGuard[int | Fraction]:
    return isinstance(exponent, int | Fraction) and exponent.denominator == 1


def _backward(op: Made) -> bool:
    return bool(getattr(op, "backward", False))


def _is_more(op: Made) -> bool:
    """Whether an operator adds a positive number."""
    return op.name == "add" and _of_number(op.attrs.get("other")) == Sign.POSITIVE


def _is_square(op: Made) -> bool:
    if op.name == "pow":
        exponent = op.attrs.get("exponent")
        return _whole(exponent) and exponent > 0 and exponent % 2 == 0
    return op.name == "mul" and len(op.inputs) == 2 and op.inputs[0] == op.inputs[1]


def _of_number(number: object) -> Sign:
    if not isinstance(number, int | float | Fraction) or number < 0:
        return Sign.ANY
    return Sign.POSITIVE if number > 0 else Sign.NOT_NEGATIVE


def is_positive(lo: Lowering, x: Operand) -> bool:
    """Whether all entries are positive, as far as the operators say so that made them.

    Example: of ``softmax(x)``, a row of it, and ``relu(x) + 1``; not of ``x``, nor of ``relu(x)``,
    nor of ``softmax(x)`` where a mask hides some of ``x``.
    """
    if not isinstance(x, Real):
        return _of_number(x.value if isinstance(x, Const) else x) == Sign.POSITIVE
    signs = _signs(lo)
    return signs.known.get(x.number) == Sign.POSITIVE and x.number not in signs.emptied


def note_if_none(lo: Lowering, *values: Operand, note: str = LEFT_OUT) -> None:
    """Print what is assumed where one of ``values`` may be no number at some entry.

    Example: ``torch.where(x > 0, x.log(), 0)`` beside ``(x > 0) * x.log()``.
    """
    none = _signs(lo).may_be_none
    if any(isinstance(x, Real) and x.number in none for x in values):
        lo.notes.setdefault(note)


def _signs(lo: Lowering) -> Signs:
    if not lo.signs:
        lo.signs.append(Signs())
    signs: Signs = lo.signs[0].read(lo.ops, lambda value: lo.values[value].shape)
    return signs
