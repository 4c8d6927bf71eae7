"""Attribute values as rows of a table: each distinct value once, operands before what holds them.

A row is (kind, text, items): scalars have a text, composite values refer to earlier rows.  The
kinds are those of `engine.plan.ir.Attr` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Attr, Group

#: Tuples in tuples beyond this, or values of more parts than this, are no attributes of a plan.
MOST_DEPTH = 16
MOST_PARTS = 1 << 20

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_FRACTION = re.compile(r"(-?(?:0|[1-9][0-9]*))/([1-9][0-9]*)", re.ASCII)

Row = tuple[str, str, tuple[int, ...]]


class Encoder:
    """Attribute values as rows of a table; equal values of equal kinds share one.

    Example: ``(2, Fraction(1, 2))`` is row 2, ``("tuple", "", (0, 1))``, after
    ``("integer", "2", ())`` and ``("fraction", "1/2", ())``.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._numbers: dict[Row, int] = {}

    def row(self, kind: str, text: str = "", items: tuple[int, ...] = ()) -> int:
        """The number of a row of the table, a new one for content that no row has yet."""
        key = (kind, text, items)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.rows)
            self.rows.append(key)
        return number

    def encode(self, value: object, depth: int = 1) -> int:
        """The row of ``value``; raises `InvalidInput` for what is no attribute."""
        if depth > MOST_DEPTH:
            raise InvalidInput(f"an attribute of more than {MOST_DEPTH} tuples in tuples")
        match value:
            case None:
                return self.row("none")
            case bool():
                return self.row("flag", "true" if value else "false")
            case str():
                return self.row("text", value)
            case int():
                return self.row("integer", _decimal(value))
            case Fraction():
                text = f"{_decimal(value.numerator)}/{_decimal(value.denominator)}"
                return self.row("fraction", text)
            case tuple():
                return self.row("tuple", "", tuple(self.encode(x, depth + 1) for x in value))
            case Affine():
                items = tuple(self.encode(x) for term in value.terms for x in term)
                return self.row("affine", _decimal(value.const), items)
            case Group():
                return self.row("group", "", (self.encode(value.ranks), self.encode(value.axes)))
            case _:
                raise InvalidInput(f"an attribute of kind {type(value).__name__}: {value!r}")


def _decimal(value: int) -> str:
    try:
        return str(value)
    except ValueError as error:
        raise InvalidInput(f"a number of more digits than can be written: {error}") from error


def decode(rows: Sequence[Row], where: str) -> list[Attr]:
    """The values of all rows; raises `InvalidInput` naming the row at fault.

    Example: of ``[("integer", "2", ()), ("tuple", "", (0, 0))]`` 2 and (2, 2); of
    ``("integer", "two", ())`` "table attributes, row 0: not an attribute: integer 'two' of 0
    parts".
    """
    values: list[Attr] = []
    depths: list[int] = []
    parts: list[int] = []
    for number, (kind, text, items) in enumerate(rows):
        if any(not 0 <= i < number for i in items):
            raise InvalidInput(f"refers to rows {list(items)}", f"{where}, row {number}")
        depths.append(1 + max((depths[i] for i in items), default=0))
        parts.append(1 + sum(parts[i] for i in items))
        if depths[-1] > MOST_DEPTH + 2 or parts[-1] > MOST_PARTS:
            raise InvalidInput("an attribute too large for a plan", f"{where}, row {number}")
        try:
            values.append(_value(kind, text, [values[i] for i in items]))
        except ValueError as error:
            shown = f"{kind} {text[:40]!r} of {len(items)} parts"
            raise InvalidInput(f"not an attribute: {shown}", f"{where}, row {number}") from error
    return values


def _value(kind: str, text: str, items: list[Attr]) -> Attr:
    """Raises `ValueError` unless the parts make a value of this kind."""
    match kind, items:
        case "none", [] if not text:
            return None
        case "flag", [] if text in ("true", "false"):
            return text == "true"
        case "text", []:
            return text
        case "integer", []:
            return _integer(text)
        case "fraction", []:
            match = _FRACTION.fullmatch(text)
            if match is not None:
                value = Fraction(int(match[1]), int(match[2]))
                if value.denominator == int(match[2]):
                    return value
        case "tuple", _ if not text:
            return tuple(items)
        case "affine", _:
            return _affine(_integer(text), items)
        case "group", [tuple(ranks), tuple(axes)] if not text:
            if all(_is_rank(x) for x in ranks) and all(isinstance(x, str) for x in axes):
                return Group(ranks, axes)  # type: ignore[arg-type]
    raise ValueError


def _is_rank(value: Attr) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None or text == "-0":
        raise ValueError
    return int(text)


def _affine(const: int, items: Sequence[Attr]) -> Affine:
    terms: dict[str, int] = {}
    for axis, coefficient in zip(items[::2], items[1::2], strict=True):
        if not isinstance(axis, str) or not isinstance(coefficient, int):
            raise ValueError
        if isinstance(coefficient, bool):
            raise ValueError
        terms[axis] = coefficient
    result = affine(const, terms)
    if result.terms != tuple(terms.items()) or 2 * len(terms) != len(items):
        raise ValueError
    return result
