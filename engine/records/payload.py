"""Definitions of reference nodes as text: one spelling per definition, and no other is accepted.

The text is JSON: numbers are integers, fractions are ``"p/q"`` in lowest terms, everything else is
a list of its parts in the order of its fields.  What a definition is made of follows from the kind
of its node (`DEFINITIONS`); nothing in the text chooses a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.lineage import Atom, Layout, Operand, Part, Place, Term
from shardproof.engine.ops.primitives import Selection

_FRACTION = re.compile(r"(-?(?:0|[1-9][0-9]{0,400}))/([1-9][0-9]{0,400})", re.ASCII)
#: Numbers beyond this are no size of anything.
MOST_NUMBER = 1 << 62


class Codec(NamedTuple):
    """``encode``: to JSON values; ``decode``: back, raises ``ValueError`` for anything else."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_NUMBER:
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.40} is no text")
    return value


def fraction_text(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def fraction_of(value: Any) -> Fraction:
    """The fraction in lowest terms that a text spells; raises ``ValueError``."""
    found = _FRACTION.fullmatch(_text(value))
    if found is not None:
        result = Fraction(int(found[1]), int(found[2]))
        if fraction_text(result) == value:
            return result
    raise ValueError(f"{value!r:.40} is no fraction in lowest terms")


def _same(value: Any) -> Any:
    return value


INTEGER = Codec(_same, _integer)
TEXT = Codec(_same, _text)
FRACTION = Codec(fraction_text, fraction_of)


def several(part: Codec) -> Codec:
    """A tuple of any length."""

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"{value!r:.40} is no list")
        return tuple(part.decode(x) for x in value)

    return Codec(lambda value: [part.encode(x) for x in value], decode)


def record(make: Callable[..., Any], *parts: Codec) -> Codec:
    """A tuple of given fields, made by ``make``."""

    def encode(value: Any) -> list[Any]:
        return [p.encode(x) for p, x in zip(parts, value, strict=True)]

    def decode(value: Any) -> Any:
        if type(value) is not list or len(value) != len(parts):
            raise ValueError(f"{value!r:.40} is no list of {len(parts)}")
        return make(*(p.decode(x) for p, x in zip(parts, value, strict=True)))

    return Codec(encode, decode)


def _tuple(*parts: Any) -> tuple[Any, ...]:
    return parts


def _made_affine(const: int, terms: tuple[tuple[str, int], ...]) -> Affine:
    result = affine(const, dict(terms))
    if result.terms != terms:
        raise ValueError("an affine function whose terms are not sorted, distinct and non-zero")
    return result


_AFFINE = record(_made_affine, INTEGER, several(record(_tuple, TEXT, INTEGER)))
AFFINE = Codec(lambda value: _AFFINE.encode((value.const, value.terms)), _AFFINE.decode)
ATOM = record(Atom, INTEGER, INTEGER, INTEGER, AFFINE, INTEGER)
PART = record(Part, INTEGER, AFFINE, INTEGER, INTEGER)
LAYOUT = record(Layout, several(several(ATOM)), several(ATOM))
PLACE = record(Place, INTEGER, INTEGER, INTEGER, INTEGER)
_ALL = record(Term, FRACTION, INTEGER, LAYOUT, several(PART))
_PLACED = record(Term, FRACTION, INTEGER, LAYOUT, several(PART), several(PLACE))
#: A term without places has no list of them.
TERM = Codec(
    lambda term: _PLACED.encode(term) if term.places else _ALL.encode(term[:4]),
    lambda value: (_ALL if type(value) is list and len(value) == 4 else _PLACED).decode(value),
)
OPERAND = record(
    Operand,
    INTEGER,
    several(record(_tuple, INTEGER, INTEGER, INTEGER, INTEGER)),
    several(record(_tuple, INTEGER, INTEGER, INTEGER, AFFINE)),
)
_SELECTION = record(Selection, INTEGER, INTEGER, INTEGER, TEXT)
SELECTION = Codec(
    lambda s: _SELECTION.encode((s.topk, s.groups, s.topk_groups, s.group_score)),
    _SELECTION.decode,
)
_LABELS = several(INTEGER)
_TERMS = several(TERM)

#: What the payload of each kind of node is made of; see `engine.lineage.lineage.Node`.
DEFINITIONS: Mapping[str, Codec] = {
    kind: record(_tuple, *parts)
    for kind, parts in {
        "input": (TEXT,),
        "one": (),
        "constant": (TEXT,),
        "causal": (),
        "order": (),
        "einsum": (several(OPERAND), _LABELS),
        "combine": (several(FRACTION), several(OPERAND), _LABELS),
        "most": (several(FRACTION), several(OPERAND), _LABELS),
        "unary": (TEXT, FRACTION, INTEGER),
        "amax": (INTEGER, OPERAND, _LABELS),
        "onehot": (FRACTION, INTEGER),
        "block": (INTEGER, several(record(Block, INTEGER, INTEGER, INTEGER, INTEGER))),
        "select": (FRACTION, OPERAND, INTEGER, SELECTION, _LABELS),
        "stack": (INTEGER, _TERMS),
        "piece": (_TERMS,),
        "maximum": (_TERMS,),
        "over": (TEXT, INTEGER, TEXT, INTEGER),
        "at": (TEXT, INTEGER, INTEGER),
    }.items()
}


def dump(codec: Codec, value: object) -> str:
    """The text of a value; raises `InvalidInput` for what the codec does not spell."""
    try:
        return msgspec.json.encode(codec.encode(value)).decode()
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"cannot be stored: {error}", repr(value)[:80]) from error


def load(codec: Codec, text: str, where: str) -> Any:
    """The value that a text spells; raises `InvalidInput` with the place for any other spelling
    than `dump` gives."""
    try:
        value = codec.decode(msgspec.json.decode(text))
        if msgspec.json.encode(codec.encode(value)).decode() != text:
            raise ValueError("another spelling than the one that is written")
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{text[:60]!r} is not understood: {error}", where) from error
    return value


def dump_node(kind: str, payload: tuple[object, ...]) -> str:
    """The text of a node's definition; raises `InvalidInput` for an unknown kind."""
    codec = DEFINITIONS.get(kind)
    if codec is None:
        raise InvalidInput(f"a node of the unknown kind {kind!r}")
    return dump(codec, payload)


def load_node(kind: str, text: str, where: str) -> tuple[object, ...]:
    codec = DEFINITIONS.get(kind)
    if codec is None:
        raise InvalidInput(f"a node of the unknown kind {kind!r}", where)
    result: tuple[object, ...] = load(codec, text, where)
    return result
