"""A rank's number that tells what it is compared with: a program may do something else there."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

#: Values that a number has on the ranks of the world, as far as they are known.
Values = Mapping[int, int]


class Splits:
    """Which ranks comparisons in the program tell from the others: the fewer of both.

    Example: ``rank == 0`` and ``rank > 0`` on four ranks both give (0,).

    ``own``: whether a file is the program's, or that of a library which has to look at ranks.
    """

    #: Comparisons that are kept.
    MOST = 4096

    def __init__(self, own: Callable[[str], bool]) -> None:
        self.own = own
        self.minorities: dict[tuple[int, ...], None] = {}
        #: Comparisons that were seen, and what was compared, which keeps its identity so.
        self._known: dict[tuple[str, object, int], object] = {}

    def seen(
        self, values: Values, kind: str, other: float, holds: Callable[[int, float], bool]
    ) -> None:
        """A number with these values was compared in the frame that called a comparison."""
        theirs = other.values if isinstance(other, Watched) else None
        key = (kind, other if theirs is None else id(theirs), id(values))
        if key in self._known or not self.own(sys._getframe(3).f_code.co_filename):
            return
        if len(self._known) >= self.MOST:
            return
        self._known[key] = values, theirs
        sides: tuple[list[int], list[int]] = [], []
        for rank, value in values.items():
            if theirs is None or rank in theirs:
                sides[holds(value, other if theirs is None else theirs[rank])].append(rank)
        fewer = min(*sides[::-1], key=len)
        if fewer:
            self.minorities.setdefault(tuple(sorted(fewer)))


class Watched(int):
    """A whole number that is another one on other ranks, with what is computed of it.

    Example: on rank 1 of four, ``rank % 2`` is 1, with the values 0, 1, 0, 1 of ranks 0 to 3.
    """

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
        if not isinstance(other, (int, float)):
            return getattr(int, kind)(int(self), other)
        method = getattr(operator, kind)
        self.splits.seen(self.values, kind, other, lambda x, y: bool(method(x, y)))
        return method(int(self), int(other) if isinstance(other, Watched) else other)

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

    def _computed(self, kind: str, *others: object) -> Any:
        method = getattr(int, kind)
        result = method(int(self), *others)
        if type(result) is not int:
            return result
        values: dict[int, int] = {}
        for rank, number in self.values.items():
            # What a rank does not know of another number, or fails at, is no value of it.
            with suppress(ArithmeticError, ValueError, KeyError):
                values[rank] = method(number, *(_on(rank, x) for x in others))
        return Watched.of(result, values, self.splits)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other


#: What is computed of a rank's number and watched.  (Not ``1 << rank``: numbers as long as there
#: are ranks, for each of them, nor ``2**rank``.)
COMPUTED = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod"),
    *("and", "rand", "or", "ror", "xor", "rxor", "lshift", "rshift", "rrshift"),
    *("neg", "pos", "abs", "invert", "pow", "round", "floor", "ceil", "trunc"),
)


def _on(rank: int, x: object) -> object:
    return x.values[rank] if isinstance(x, Watched) else x


def _watching(kind: str) -> Callable[..., Any]:
    def method(self: Watched, *others: object) -> Any:
        return self._computed(kind, *others)

    return method


for _name in COMPUTED:
    setattr(Watched, f"__{_name}__", _watching(f"__{_name}__"))
