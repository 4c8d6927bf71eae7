"""A rank's number that tells what it is compared with: a program may do something else there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

#: Values that a number has on the ranks of the world, as far as they are known.
Values = Mapping[int, int]


class Splits:
    """Which ranks comparisons in the program tell from the others: the fewer of both.

    ``own``: whether a file is the program's, or that of a library which has to look at ranks.
    """

    #: Comparisons that are kept.
    MOST = 4096

    def __init__(self, own: Callable[[str], bool]) -> None:
        self.own = own
        self.minorities: dict[tuple[int, ...], None] = {}
        self._known: set[tuple[str, object, int]] = set()

    def seen(self, values: Values, kind: str, other: object, holds: Callable[[int], bool]) -> None:
        """A number with these values was compared in the frame that called a comparison."""
        key = (kind, other if isinstance(other, (int, float)) else None, id(values))
        if key in self._known or not self.own(sys._getframe(3).f_code.co_filename):
            return
        if len(self._known) >= self.MOST:
            return
        self._known.add(key)
        true = [rank for rank, value in values.items() if holds(value)]
        false = [rank for rank, value in values.items() if not holds(value)]
        fewer = min(true, false, key=len)
        if fewer:
            self.minorities.setdefault(tuple(sorted(fewer)))


class Watched(int):
    """A whole number that is another one on other ranks, with what is computed of it."""

    values: Values
    splits: Splits

    @classmethod
    def of(cls, number: int, values: Values, splits: Splits) -> Watched:
        """The number with the tables in which what is computed of it is noted."""
        made = cls(number)
        made.values, made.splits = values, splits
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def __deepcopy__(self, memo: object) -> Watched:
        return self

    __hash__ = int.__hash__

    def _compared(self, kind: str, other: object) -> Any:
        method = getattr(int, kind)
        result = method(int(self), other)
        if result is not NotImplemented:
            self.splits.seen(self.values, kind, other, lambda x: bool(method(x, other)))
        return result

    def __eq__(self, other: object) -> Any:
        return self._compared("__eq__", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("__ne__", other)

    def __lt__(self, other: object) -> Any:
        return self._compared("__lt__", other)

    def __le__(self, other: object) -> Any:
        return self._compared("__le__", other)

    def __gt__(self, other: object) -> Any:
        return self._compared("__gt__", other)

    def __ge__(self, other: object) -> Any:
        return self._compared("__ge__", other)

    def __bool__(self) -> bool:
        return bool(self._compared("__ne__", 0))

    def _computed(self, kind: str, other: object) -> Any:
        method = getattr(int, kind)
        result = method(int(self), other)
        if type(result) is not int:
            return result
        try:
            if isinstance(other, Watched):
                both = {r: other.values[r] for r in self.values if r in other.values}
                values = {r: method(self.values[r], n) for r, n in both.items()}
            else:
                values = {r: method(n, other) for r, n in self.values.items()}
        except (ArithmeticError, ValueError):
            return result
        return Watched.of(result, values, self.splits)

    def __add__(self, other: Any) -> Any:
        return self._computed("__add__", other)

    def __radd__(self, other: Any) -> Any:
        return self._computed("__radd__", other)

    def __sub__(self, other: Any) -> Any:
        return self._computed("__sub__", other)

    def __rsub__(self, other: Any) -> Any:
        return self._computed("__rsub__", other)

    def __mul__(self, other: Any) -> Any:
        return self._computed("__mul__", other)

    def __rmul__(self, other: Any) -> Any:
        return self._computed("__rmul__", other)

    def __floordiv__(self, other: Any) -> Any:
        return self._computed("__floordiv__", other)

    def __mod__(self, other: Any) -> Any:
        return self._computed("__mod__", other)
