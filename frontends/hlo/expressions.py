"""Expressions of random bits by their numbers, and between which whole numbers their values lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

#: From, to (exclusive).
Interval: TypeAlias = tuple[int, int]
#: Operators whose values may lie in less than their type has.
NARROWING: Final = frozenset({"remainder", "and", "shift-right-logical", "add", "convert"})
#: How deep an expression is looked into for the interval of its values.
DEPTH: Final = 12


class Expressions:
    """Expressions of bits by their numbers: (operator, attributes, operands), each once.

    Example: ``many("add", (), [[1, 2], [3, 3]])`` gives the numbers of 1 + 3 and of 2 + 3. Operands
    of ``input`` and ``number`` are what they are, all others' are numbers of expressions.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._all: list[tuple[str, Any, tuple[int, ...]]] = []

    def many(self, name: str, attrs: Any, operands: Sequence[Any]) -> Any:
        """Numbers of one operator's expressions, element by element of its operands."""
        rows = np.stack(operands, axis=1)
        kinds, places = np.unique(rows, axis=0, return_inverse=True)
        own = np.array([self._number((name, attrs, tuple(map(int, k)))) for k in kinds], dtype="i8")
        return own[places.reshape(-1)]

    def _number(self, key: tuple[str, Any, tuple[int, ...]]) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._all)
            self._all.append(key)
        return self._numbers[key]

    def at(self, number: int) -> tuple[str, Any, tuple[int, ...]]:
        """An expression by its number: kind, key, and the numbers of its operands."""
        return self._all[number]

    def interval(self, number: int, depth: int = DEPTH) -> Interval | None:
        """Whole numbers between which the values of an expression lie, for every key: as its type
        and its last operators say; None: it is no whole number.

        For example, ``remainder(bits, 12)`` of unsigned bits lies in [0, 12).
        """
        name, about, operands = self.at(number)
        if name == "number":
            return operands[0], operands[0] + 1
        whole = interval_of(about[1]) if name != "input" else None
        if whole is None or depth == 0 or name not in NARROWING:
            return whole
        inner = [self.interval(n, depth - 1) for n in operands]
        if None in inner:
            return whole
        interval = _interval(name, [i for i in inner if i is not None], whole)
        return interval if whole[0] <= interval[0] and interval[1] <= whole[1] else whole


def _interval(name: str, of: Sequence[Interval], whole: Interval) -> Interval:
    """Of an operator of numbers in these intervals; ``whole``: of its type."""
    match name, of:
        case "remainder", [(low, high), (divisor, end)] if divisor > 0 and end == divisor + 1:
            return (0 if low >= 0 else 1 - divisor, min(high, divisor) if high > 0 else 1)
        case "and", [(low, high), (least, end)] if low >= 0 and least >= 0:
            return 0, min(high, end)
        case "shift-right-logical", [_, (by, end)] if end == by + 1 and 0 <= by < 64:
            return 0, max(1, (whole[1] - whole[0]) >> by)
        case "add", [(a, b), (c, d)]:
            return a + c, b + d - 1
        case "convert", [inside]:
            return inside
    return whole


def interval_of(dtype: str) -> Interval | None:
    """From and to (exclusive) of the whole numbers that an element type has; None: it has others.

    Example: (-128, 128) for ``int8``, (0, 2) for ``bool``, None for ``float32``.
    """
    if dtype == "bool":
        return 0, 2
    if not dtype.startswith(("int", "uint")):
        return None
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max) + 1
