"""A text as it may be shown on a terminal, whatever names it holds."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` on one line, without what could steer a terminal.

    Example: two lines "a" and "b" are "a b"; an escape sequence that would clear the screen is
    shown by its number.
    """
    line = " ".join(text.split("\n"))
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
