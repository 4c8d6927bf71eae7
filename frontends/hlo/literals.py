"""Types and constants of HLO text.

A constant is the number of its element type that is nearest to what is printed: ``0.1`` of f32 is
``float32(0.1)``, read by NumPy and then exact.  bfloat16 is rounded to nearest even from it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo.module import DTYPES, UNREAD, Array, Type

#: Constants and shapes with more elements are refused.
MOST_ELEMENTS = 1 << 40
MOST_WRITTEN = 1 << 22
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](\{[^{}]*\})?")
_NUMBER = re.compile(r"[^\s{},]+")


def parse_type(text: str) -> Type:
    """``f32[2,4]{1,0}``, ``(f32[], s32[2])``, ``token[]``.

    Example: ``parse_type("f32[2,4]{1,0}")`` is float32 of shape ``(2, 4)``; the layout in braces
    says nothing of values.
    """
    type, end = _type(text, _skip(text, 0), 0)
    if _skip(text, end) != len(text):
        raise InvalidInput(f"type {text[:80]!r} is not understood")
    return type


def _skip(text: str, at: int) -> int:
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if not text.startswith("/*", at):
            return at
        end = text.find("*/", at)
        if end < 0:
            raise InvalidInput("a comment that does not end")
        at = end + 2


def _type(text: str, at: int, depth: int) -> tuple[Type, int]:
    if depth > 32:
        raise InvalidInput("types are nested deeper than 32 times")
    if text.startswith("(", at):
        parts = []
        at = _skip(text, at + 1)
        while not text.startswith(")", at):
            part, at = _type(text, at, depth + 1)
            parts.append(part)
            at = _skip(text, at)
            if text.startswith(",", at):
                at = _skip(text, at + 1)
            elif not text.startswith(")", at):
                raise InvalidInput(f"type {text[:80]!r} is not understood")
        return Type(parts=tuple(parts)), at + 1
    match = _ARRAY.match(text, at)
    if match is None:
        raise InvalidInput(f"type {text[at : at + 80]!r} is not understood")
    type = array_type(match.group(1), match.group(2))
    return replace(type, layout=match.group(3) or ""), match.end()


def array_type(element: str, dims: str) -> Type:
    """The type of an array from its element type and dimensions, as written.

    Example: ``bf16`` and ``2,4`` is bfloat16 of shape (2, 4); ``f8e5m2`` is kept as it is
    called, and refused where it is computed with.
    """
    if element == "token":
        return Type(parts=())
    if element not in DTYPES and element not in UNREAD:
        raise InvalidInput(f"element type {element} is not known")
    if dims and not re.fullmatch(r"\d{1,15}(?:,\d{1,15})*", dims):
        raise InvalidInput(f"dimensions [{dims}] are not fixed numbers")
    shape = tuple(int(n) for n in dims.split(",")) if dims else ()
    if prod(shape) > MOST_ELEMENTS or len(shape) > 24:
        raise InvalidInput(f"shape [{dims}] is too large")
    return Type(shape, DTYPES.get(element, element))


def parse_literal(text: str, type: Type) -> Array:
    """The values of a constant as HLO text prints them: ``1.5``, ``{1, 2}``,
    ``{ { 1, 2 }, { 3, 4 } }``, ``false``, ``inf``, ``-nan``.

    Example: ``{ { 1, 2 }, { 3, 4 } }`` of ``s32[2,2]`` is that matrix; ``{...}`` is refused, since
    the values were not printed.
    """
    if type.parts is not None:
        raise InvalidInput("a constant tuple is not supported")
    if "..." in text:
        raise InvalidInput("a constant is printed without its values (print large constants)")
    words = _NUMBER.findall(re.sub(r"/\*[^*]*\*/", "", text))
    count = prod(type.shape) * (2 if type.dtype.startswith("complex") else 1)
    if len(words) != count or len(words) > MOST_WRITTEN:
        raise InvalidInput(f"a constant of {type} with {len(words)} values")
    return numbers(words, type)


def numbers(words: list[str], type: Type) -> Array:
    """The values of a constant from what is printed of each.

    Example: ``0.1`` of f32 is 0.10000000149011612, of bf16 0.10009765625; ``300`` of s8 is refused.
    """
    try:
        if type.dtype == "bool":
            known = {"true": True, "false": False, "1": True, "0": False}
            values: Array = np.array([known[word] for word in words], dtype=np.bool_)
        elif type.dtype == "bfloat16":
            values = _bfloat16(np.array([_float(word, type) for word in words], dtype=np.float32))
        elif type.dtype.startswith("complex"):
            values = _complex(words, type)
        elif type.dtype.startswith("float"):
            values = np.array([_float(word, type) for word in words], dtype=type.dtype)
        else:
            values = np.array([int(word) for word in words]).astype(np.dtype(type.dtype))
            if [int(x) for x in values] != [int(word) for word in words]:
                raise InvalidInput(f"a constant of {type} is out of range")
    except (ValueError, KeyError, OverflowError):
        raise InvalidInput(f"a constant of {type} with values {words[:4]}") from None
    return values.reshape(type.shape)


def _complex(words: list[str], type: Type) -> Array:
    """``(1, 2)`` is 1 + 2i: the first word of every pair opens a bracket, the second closes it."""
    pairs = list(zip(words[::2], words[1::2], strict=True))
    if not all(a[:1] == "(" and b[-1:] == ")" for a, b in pairs):
        raise ValueError(words[:2])
    own = Type((len(pairs),), "float32" if type.dtype == "complex64" else "float64")
    real, imaginary = (
        numbers([a[1:] for a, _ in pairs], own),
        numbers([b[:-1] for _, b in pairs], own),
    )
    values: Array = np.empty(len(pairs), dtype=type.dtype)
    values.real, values.imag = real, imaginary
    return values


def _float(word: str, type: Type) -> np.floating[np.typing.NBitBase]:
    """NumPy reads a decimal of its own element type correctly rounded."""
    if not re.fullmatch(r"[-+]?(?:nan|inf|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)", word):
        raise ValueError(word)
    kind = {"float64": np.float64, "float16": np.float16}.get(type.dtype, np.float32)
    return kind(word)  # type: ignore[return-value]


def _bfloat16(x: Array) -> Array:
    """Rounded to nearest even, as a float32."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)) << (
        np.uint64(16)
    )
    result: Array = np.where(np.isfinite(x), rounded.astype(np.uint32).view(np.float32), x)
    return result
