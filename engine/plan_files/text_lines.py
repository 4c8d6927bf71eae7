"""One line of a plan's text, taken token by token from the left.

Example: of ``call 0(3) -> 4`` first `Line.has` takes ``call``, then `Line.number` the 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from shardproof.engine.errors import InvalidInput

MOST_DIGITS: Final = 18

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d+)|(?P<word>[A-Za-z_][\w.]*)|(?P<mark>->|\.\.|[^\s\w"]))""",
    re.ASCII,
)


@dataclass(slots=True)
class Line:
    """The tokens of one line, taken from the left; every error names the line.

    Example: on ``call 0(3) => 4`` at line 7, "text:7: expected '->', found '='".
    """

    tokens: list[tuple[str, str]]
    where: str
    at: int = 0

    def fail(self, expected: str) -> NoReturn:
        """Raise `InvalidInput`: what was expected here, and what stands here."""
        here = (
            repr(self.tokens[self.at][1]) if self.at < len(self.tokens) else "the end of the line"
        )
        raise InvalidInput(f"expected {expected}, found {here}", self.where)

    def has(self, token: str) -> bool:
        """Take ``token`` if it is next."""
        hit = self.at < len(self.tokens) and self.tokens[self.at][1] == token
        self.at += hit
        return hit

    def need(self, *tokens: str) -> None:
        """Take these tokens, one after the other; else `fail`."""
        for token in tokens:
            if not self.has(token):
                self.fail(repr(token))

    def take(self, kind: str, expected: str) -> str:
        """Take a token of a kind; else `fail`."""
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != kind:
            self.fail(expected)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def number(self, expected: str = "a number") -> int:
        """Take a number."""
        digits = self.take("number", expected)
        if len(digits) > MOST_DIGITS:
            self.fail(f"a number of at most {MOST_DIGITS} digits")
        return int(digits)

    def word(self, expected: str = "a word") -> str:
        """Take a word."""
        return self.take("word", expected)

    def text(self, expected: str = "a name in quotes") -> str:
        """Take a name in quotes, without them."""
        try:
            return str(json.loads(self.take("text", expected)))
        except ValueError:
            self.at -= 1
            self.fail(expected)

    def value(self) -> int:
        """Take a value of a body: its number, -1 for an absent one."""
        if self.has("absent"):
            return -1
        self.need("%")
        return self.number("the number of a value")

    def items(
        self, opening: str, closing: str, item: Callable[[], Any], comma: bool = True
    ) -> tuple[Any, ...]:
        """What stands between brackets; a last comma is allowed."""
        self.need(opening)
        items = []
        while not self.has(closing):
            items.append(item())
            if comma and not self.has(","):
                self.need(closing)
                break
        return tuple(items)

    def sizes(self) -> tuple[int, ...]:
        """Take the sizes of a shape."""
        return self.items("[", "]", lambda: self.number("a size"))

    def end(self) -> None:
        """Nothing may be left."""
        if self.at < len(self.tokens):
            self.fail("the end of the line")


def tokens(source: str, where: str) -> list[tuple[str, str]]:
    """The tokens of a line, each with its kind; raises `InvalidInput` for what is none.

    Example: ``%2: float32[8]`` is a mark, a number, a mark, a word, a mark, a number and a mark.
    """
    result, at = [], 0
    stripped = source.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise InvalidInput(f"expected a token, found {stripped[at : at + 20]!r}", where)
        result.append((str(match.lastgroup), match.group(str(match.lastgroup))))
        at = match.end()
    return result
