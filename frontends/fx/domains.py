"""Which integers an input has: those that the relations state, or that the single side reads rows
or tells labels by.

A loss leaves out labels that are its ``ignore_index``, and a program may compare its labels with
such a number itself.  It is no class, and stands for "none": the input's mark, which the plan has
as -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption

#: One more than the largest integer of an input of which only its mark is known.
MOST: Final = 1 << 30


class Domains:
    """Domains [low, high) by the name of the input; what is learned of them is an assumption.

    Example: labels that a loss over 6 classes reads, and which may be -100: ``ranges`` has
    (-1, 6) and ``marks`` -100.
    """

    def __init__(self, of_user: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.of_user = dict(of_user or {})
        self.ranges = dict(self.of_user)
        self.marks: dict[str, int] = {}
        self.unmarked: set[str] = set()

    def get(self, name: str) -> tuple[int, int] | None:
        """The domain of an input; None: any integers."""
        return self.ranges.get(name)

    def inferred(self) -> frozenset[str]:
        """Inputs whose domain nobody states."""
        return frozenset(self.ranges.keys() - self.of_user.keys())

    def learn(self, name: str, rows: int | None, mark: int | None) -> None:
        """That an input is in [0, rows), or is ``mark``; raises `InvalidInput` where that
        contradicts what is stated.

        Example: of rows that are read by an input which had a mark, that it has none: -100 is no
        row.
        """
        low, high = self.ranges.get(name, (0, MOST))
        if mark is not None:
            self.marks[name] = mark
            self.ranges[name] = (-1, high if rows is None else min(high, rows))
        elif name not in self.ranges:
            self.ranges[name] = (0, rows or 0)
        elif name in self.marks and name not in self.of_user:
            if rows is None or rows >= high:
                del self.marks[name]
                self.unmarked.add(name)
                low = 0
            self.ranges[name] = (low, min(high, rows or high))
        else:
            raise InvalidInput(f"ids from {low} to {high - 1} choose among {rows} rows", name)

    def assumed(self) -> list[Assumption]:
        """What was learned, in words."""
        texts = {}
        for name in self.ranges:
            last = self.ranges[name][1] - 1
            if name in self.marks:
                known = last + 1 < MOST
                end = f"from 0 to {last}" if known else "not negative"
                none = f" (if none is, say so: [domains] {name} = [0, {last + 1}])" if known else ""
                texts[name] = (
                    f"integers {name} are {end}, or {self.marks[name]}, which the single side "
                    f"tells from them: -1 stands for it{none}"
                )
            elif name not in self.of_user:
                texts[name] = f"ids {name} choose rows that exist: they are from 0 to {last}"
        return [Assumption("inferred", name, "", text) for name, text in texts.items()]
