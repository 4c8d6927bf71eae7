"""What a call of an operator gives: its operands and attributes, by name; whether one fits.

A declaration says both as text.  Operands: ``"x weight bias?"`` (``?``: may be left out),
``"xs+ frequencies"`` (``+``: one or more), ``"x y|other"`` (in the place of the operand ``y``, the
attribute ``other`` may hold a constant).  Attributes: ``"dim:integers? eps:number
score_func:sigmoid/softmax"``, a kind of `KINDS` or the permitted texts; ``?``: may be left out, or
None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.plan.ir import Attr


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an operator, as its declaration has it.

    Example: ``bias?`` is ``Operand("bias", optional=True)``, ``y|other``
    ``Operand("y", instead="other")``.

    ``instead``: the attribute that may hold a constant in its place.
    """

    name: str
    optional: bool = False
    several: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator, as its declaration has it.

    Example: ``score_func:sigmoid/softmax`` is ``Attribute("score_func", "text", values=("sigmoid",
    "softmax"))``.

    ``kind``: one of `KINDS`; ``values``: the permitted texts, of a text.
    """

    name: str
    kind: str
    optional: bool = False
    values: tuple[str, ...] = ()

    def takes(self, value: Attr) -> bool:
        """Whether this may be its value."""
        if value is None:
            return self.optional
        return KINDS[self.kind](value) and (not self.values or value in self.values)

    @property
    def expected(self) -> str:
        """What it has to be, in words."""
        return " or ".join(self.values) if self.values else _WORDS[self.kind]


def _is_integer(value: Attr) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integers(value: Attr) -> bool:
    return _is_integer(value) or (isinstance(value, tuple) and all(map(_is_integer, value)))


KINDS: Final[Mapping[str, Callable[[Attr], bool]]] = {
    "integer": _is_integer,
    "integers": _is_integers,
    "position": lambda value: _is_integer(value) or isinstance(value, Affine),
    "number": lambda value: _is_integer(value) or isinstance(value, Fraction),
    "flag": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
}
_WORDS: Final = {
    "integer": "an integer",
    "integers": "an integer or a tuple of integers",
    "position": "an integer, or affine in coordinates",
    "number": "an exact number",
    "flag": "true or false",
    "text": "a text",
}


def operands_of(text: str) -> tuple[Operand, ...]:
    """The operands that a declaration lists; raises `ValueError` where calls would be ambiguous.

    Example: ``"x weight bias?"`` lists three operands, of which the last may be left out.
    """
    listed = []
    for word in text.split():
        name, _, instead = word.partition("|")
        several, optional = name.endswith("+"), name.endswith("?")
        listed.append(Operand(name.rstrip("?+"), optional, several, instead))
    absent = [x.optional or bool(x.instead) for x in listed]
    if sum(x.several for x in listed) > 1 or absent != sorted(absent):
        raise ValueError(f"operands {text!r}: which one is meant does not follow from their number")
    return tuple(listed)


def attributes_of(text: str) -> tuple[Attribute, ...]:
    """The attributes that a declaration lists; raises `ValueError` for a kind that there is not.

    Example: ``dim:integers?`` is one attribute, which may be left out; ``dim:intger`` is of no
    kind.
    """
    listed = []
    for word in text.split():
        name, _, kind = word.partition(":")
        optional = kind.endswith("?")
        values = tuple(kind.rstrip("?").split("/")) if "/" in kind else ()
        kind = "text" if values else kind.rstrip("?")
        if kind not in KINDS:
            raise ValueError(f"attribute {word!r} is of no kind of {sorted(KINDS)}")
        listed.append(Attribute(name, kind, optional, values))
    return tuple(listed)


def wrong_operands(operands: Sequence[Operand], count: int, attrs: Mapping[str, Attr]) -> str:
    """What is wrong with ``count`` operands beside these attributes; empty if nothing.

    Example: "takes 2 to 3 operands (x, weight, [bias]), found 1".
    """
    least = sum(not (x.optional or x.instead) for x in operands)
    most = None if any(x.several for x in operands) else len(operands)
    if count < least or (most is not None and count > most):
        names = ", ".join(_shown(x) for x in operands)
        return f"takes {_many(least, most)} ({names}), found {count}"
    for place, operand in enumerate(operands):
        if operand.instead:
            constant = attrs.get(operand.instead) is not None
            if constant == (place < count):
                given = "both" if constant else "neither"
                return (
                    f"takes the operand {operand.name} or the attribute {operand.instead}, "
                    f"found {given}"
                )
    return ""


def _shown(operand: Operand) -> str:
    if operand.several:
        return f"{operand.name}..."
    return f"[{operand.name}]" if operand.optional or operand.instead else operand.name


def _many(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} operands or more"
    span = str(most) if least == most else f"{least} to {most}"
    return f"{span} operand" if span == "1" else f"{span} operands"


def wrong_attributes(attributes: Sequence[Attribute], attrs: Mapping[str, Attr]) -> str:
    """What is wrong with the declared attributes of a call; empty if nothing.

    Example: "lacks its attribute dim, expected an integer".
    """
    for attribute in attributes:
        if attribute.name not in attrs and not attribute.optional:
            return f"lacks its attribute {attribute.name}, expected {attribute.expected}"
        value = attrs.get(attribute.name)
        if attribute.name in attrs and not attribute.takes(value):
            return (
                f"expects {attribute.expected} as its attribute {attribute.name}, found {value!r}"
            )
    return ""
