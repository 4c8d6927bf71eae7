"""Definitions of reference nodes as text: one spelling per definition, and no other is accepted.

The text is JSON: numbers are integers, fractions are ``"p/q"`` in lowest terms, everything else is
a list of its parts in the order of its fields.  What a definition is made of follows from the kind
of its node (`engine.lineage.expressions.KINDS`) and from the types of the fields of its class;
nothing in the text chooses a type.

Example: ``Unary("exp", Fraction(-1, 2), 7)`` is ``["exp","-1/2",7]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.lineage.expressions import KINDS, Expression
from shardproof.engine.lineage.lineage import Addend

T = TypeVar("T")
_FRACTION = re.compile(r"(-?(?:0|[1-9][0-9]{0,400}))/([1-9][0-9]{0,400})", re.ASCII)
#: Numbers beyond this are no size of anything.
MOST_NUMBER = 1 << 62


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_NUMBER:
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.40} is no text")
    return value


def fraction_text(value: Fraction) -> str:
    """A fraction as ``"p/q"``, for example ``"-1/2"`` and ``"3/1"``."""
    return f"{value.numerator}/{value.denominator}"


def fraction_of(value: Any) -> Fraction:
    """The fraction in lowest terms that a text spells; raises ``ValueError``.

    Example: ``"-1/2"`` is -1/2, and ``"2/4"`` and ``"3"`` are refused.
    """
    match = _FRACTION.fullmatch(_text(value))
    if match is not None:
        result = Fraction(int(match[1]), int(match[2]))
        if fraction_text(result) == value:
            return result
    raise ValueError(f"{value!r:.40} is no fraction in lowest terms")


def _affine(const: int, terms: tuple[tuple[str, int], ...]) -> Affine:
    result = affine(const, dict(terms))
    if result.terms != terms:
        raise ValueError("an affine function whose terms are not sorted, distinct and non-zero")
    return result


@cache
def _names(cls: type) -> tuple[str, ...]:
    """The fields of a frozen dataclass or a named tuple."""
    names: tuple[str, ...] = getattr(cls, "_fields", ())
    return tuple(f.name for f in fields(cls)) if is_dataclass(cls) else names


def _plain(value: Any) -> Any:
    """A value as JSON values; what has no such value is left to the encoder, which refuses it."""
    kind = type(value)
    if kind is int or kind is str:
        return value
    if kind is Fraction:
        return fraction_text(value)
    if kind is Addend and not value.places:
        value = value[:4]  # a term without places has no list of them
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return [_plain(getattr(value, name)) for name in _names(kind)] if is_dataclass(kind) else value


def _reader(cls: Any) -> Callable[[Any], Any]:
    """What makes a value of a type of JSON values; it raises ``ValueError`` for anything else."""
    if cls not in _READERS:
        _READERS[cls] = _built(cls)
    return _READERS[cls]


def _built(cls: Any) -> Callable[[Any], Any]:
    parts = get_args(cls)
    if parts:
        each = [_reader(part) for part in parts if part is not ...]
        return _several(each[0]) if ... in parts else _record(_tuple, each, len(each))
    hints = get_type_hints(cls)
    each = [_reader(hints[name]) for name in _names(cls)]
    least = len(each) - 1 if cls is Addend else len(each)
    return _record(_affine if cls is Affine else cls, each, least)


_READERS: dict[Any, Callable[[Any], Any]] = {int: _integer, str: _text, Fraction: fraction_of}


def _several(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A tuple of any length."""

    def several(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"{value!r:.40} is no list")
        return tuple(map(read, value))

    return several


def _record(
    make: Callable[..., Any], reads: list[Callable[[Any], Any]], least: int
) -> Callable[[Any], Any]:
    """A tuple of given fields, made by ``make``; those after the first ``least`` may be missing."""

    def record(value: Any) -> Any:
        if type(value) is not list or not least <= len(value) <= len(reads):
            raise ValueError(f"{value!r:.40} is no list of {len(reads)}")
        return make(*(read(part) for read, part in zip(reads, value, strict=False)))

    return record


def _tuple(*parts: Any) -> tuple[Any, ...]:
    return parts


def dump(value: object) -> str:
    """The text of a value; raises `InvalidInput` for what is none of numbers, texts, fractions and
    what is made of these.

    Example: ``affine(4, {"tp": 8})`` is ``[4,[["tp",8]]]``.
    """
    try:
        return msgspec.json.encode(_plain(value)).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"cannot be stored: {error}", repr(value)[:80]) from error


def load(cls: type[T], text: str, where: str) -> T:
    """The value of a type that a text spells; raises `InvalidInput` with the place for any other
    spelling than `dump` gives.

    Example: of ``["exp","-1/2",7]`` as `Unary` ``exp(-1/2*n7)``; with ``"-2/4"`` it is refused.
    """
    try:
        value: T = _reader(cls)(msgspec.json.decode(text))
        if dump(value) != text:
            raise ValueError("another spelling than the one that is written")
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{text[:60]!r} is not understood: {error}", where) from error
    return value


def load_definition(kind: str, text: str, where: str) -> Expression:
    """The definition of a kind that a text spells; raises `InvalidInput` for an unknown kind.

    Example: of the kind "input" ``["w"]`` is ``input 'w'``; of "inputs", "a node of the unknown
    kind 'inputs'".
    """
    if kind not in KINDS:
        raise InvalidInput(f"a node of the unknown kind {kind!r}", where)
    return load(KINDS[kind], text, where)
