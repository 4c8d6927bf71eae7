"""What a step prints of numbers that nobody knows, held against what it is to print.

The step's own code may not compare such texts; what Python's libraries do with them is their own.
"""

from __future__ import annotations

from unittest import TestCase


def require_printed(text: str, expected: str) -> None:
    """Fails where a text is another one.

    Example: of ``f"{loss.item():.2f}"`` it is "n/a".
    """
    TestCase().assertEqual(text, expected)  # noqa: PT009 - by a library
