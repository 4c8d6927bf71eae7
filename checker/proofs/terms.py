"""Terms of CPC proofs and of the texts that they prove: read, and kept once per form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

_TOKEN = re.compile(r'\s+|(\(|\)|\|[^|]*\||"[^"]*"|;[^\n]*|[^\s()|";]+)')
_NUMBER = re.compile(r"(-?\d+)(?:/(\d+)|\.(\d+))?")

#: Digits of a number, as it is written or worked out; beyond, time grows with their square.
MOST_DIGITS = 4000

Form: TypeAlias = Any  # a token, or a list of forms


class Rejected(Exception):
    """The proof does not prove the text."""


class NotCovered(Exception):
    """The proof uses what this checker does not know."""


def forms_of(text: str) -> list[Form]:
    """The forms of a text; raises `Rejected` unless parentheses match.

    Example: ``(assert (= x 1.0))`` is ``[["assert", ["=", "x", "1.0"]]]``; ``(a`` is rejected.
    """
    stack: list[list[Form]] = [[]]
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        token = match[1]
        if token is None or token[0] == ";":
            continue
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            if not stack:
                raise Rejected("more parentheses are closed than opened")
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if end != len(text) or len(stack) != 1:
        raise Rejected("it is not a list of forms: it ends early, or has other characters")
    return stack[0]


class Terms:
    """The terms of proofs and texts, each once, by number. A key is a rational, a name, or (head,
    operands).

    Example: ``x`` read twice has one number; ``app("+", x, y)`` and ``app("+", y, x)`` have two.
    """

    def __init__(self) -> None:
        self.keys: list[Fraction | str | tuple[str, tuple[int, ...]]] = []
        self._numbers: dict[object, int] = {}
        self.true = self.of("true")
        self.false = self.of("false")

    def of(self, key: Fraction | str | tuple[str, tuple[int, ...]]) -> int:
        """The number of a term, a new one for a new term."""
        number = self._numbers.get((type(key), key))
        if number is None:
            number = self._numbers[type(key), key] = len(self.keys)
            self.keys.append(key)
        return number

    def app(self, head: str, *operands: int) -> int:
        """The number of ``head`` applied to operands."""
        return self.of((head, operands))

    def split(self, term: int) -> tuple[str, tuple[int, ...]]:
        """Head and operands; a constant or a symbol has no head."""
        key = self.keys[term]
        return key if isinstance(key, tuple) else ("", ())

    def equality(self, term: int) -> tuple[int, int]:
        """The two sides of an equality; raises `Rejected` for any other term."""
        head, operands = self.split(term)
        if head != "=" or len(operands) != 2:
            raise Rejected("a premise or an argument is no equality")
        return operands[0], operands[1]

    def read(self, form: Form, names: Mapping[str, int]) -> int:
        """The term that a form says, names replaced."""
        if isinstance(form, str):
            if form in names:
                return names[form]
            number = _NUMBER.fullmatch(form)
            if number is None:
                return self.of(_name(form))
            return self.of(_rational(number))
        if not form or not isinstance(form[0], str):
            raise NotCovered("a function that is no name")
        head, *operands = form
        if head == "let":
            inner = {**names, **self.bound(operands, names)}
            return self.read(operands[1], inner)
        if head in ("forall", "exists", "lambda", "@list", "!", "_"):
            raise NotCovered(f"the form {head}")
        return self.operation(_name(head), [self.read(o, names) for o in operands])

    def bound(self, operands: Sequence[Form], names: Mapping[str, int]) -> dict[str, int]:
        """What the names of a ``let`` stand for."""
        match operands:
            case [list(bindings), _]:
                pairs = [b for b in bindings if isinstance(b, list) and len(b) == 2]
                if len(pairs) == len(bindings) and all(isinstance(n, str) for n, _ in pairs):
                    return {n: self.read(body, names) for n, body in pairs}
        raise Rejected("a let without names and a body")

    def operation(self, head: str, operands: Sequence[int]) -> int:
        """An application; the negative of a number is a number."""
        if head == "-" and len(operands) == 1:
            value = self.keys[operands[0]]
            if isinstance(value, Fraction):
                return self.of(-value)
        return self.app(head, *operands)


def bounded(value: Fraction) -> Fraction:
    """The value, if it is no longer than numbers may be; raises `NotCovered`.

    Example: 1/3 is; 10 to the power of 5000 is not.
    """
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4 * MOST_DIGITS:
        raise NotCovered(f"a number of more than {MOST_DIGITS} digits")
    return value


def _name(token: str) -> str:
    return token[1:-1] if token[0] == "|" else token


def _rational(match: re.Match[str]) -> Fraction:
    whole, under, after = match.groups()
    if len(match[0]) > MOST_DIGITS:
        raise NotCovered(f"a number of more than {MOST_DIGITS} digits")
    if under is not None:
        if int(under) == 0:
            raise Rejected("a number over 0")
        return Fraction(int(whole), int(under))
    return Fraction(f"{whole}.{after}" if after is not None else whole)
