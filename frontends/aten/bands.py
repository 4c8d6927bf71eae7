"""Windows of attention that are too large to compare positions in: tables of ones and zeros.

A window is two comparisons of positions, which are proved where every position stands for itself
(`attention.hide`). A larger one is a named input, called by its window and its size, of which a
rank with some of the rows has a part; nothing is known of its entries.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.bits import Bits, everywhere, runs, shown_columns
from shardproof.frontends.aten.lowering import Lowering
from shardproof.frontends.aten.positions import Compared
from shardproof.frontends.aten.tables import TABLES, named_input

#: Scores up to which every position of a window stands for itself: no more than the small model
#: has of a tensor (`engine.small_model.representatives`).
MOST_COMPARED: Final = 4096
_NAME: Final = f"{TABLES}window "


class Window(NamedTuple):
    """Which of ``columns`` keys j a query i of ``rows`` sees: those from i + least to i + last.

    Example: of a causal window of two keys over 4 positions, ``Window(0, -1, 4, 4)``; of a causal
    mask alone, which sees all earlier keys, ``Window(0, -4, 4, 4)``.
    """

    last: int
    least: int
    rows: int
    columns: int

    @property
    def name(self) -> str:
        """That of the table, such as "constant window 0 -1 4 4"."""
        return _NAME + " ".join(map(str, self))

    @property
    def ends_twice(self) -> bool:
        """Whether keys before and behind those that a query sees are hidden."""
        return self.least > -self.rows and self.last < self.columns

    def entries(self) -> NDArray[np.bool_]:
        """Whether a query sees a key, as a view of one line: [rows, columns]."""
        apart = np.arange(1 - self.rows, self.columns)
        line = (apart >= self.least) & (apart <= self.last)
        return np.lib.stride_tricks.sliding_window_view(line, self.columns)[::-1]

    def shown(self, start: int, rows: int) -> tuple[list[int], list[int]]:
        """The first key that each of some rows sees, and the one behind the last."""
        places = range(start, start + rows)
        return (
            [max(0, i + self.least) for i in places],
            [min(self.columns, i + self.last + 1) for i in places],
        )


def window(hidden: NDArray[np.bool_]) -> Window | None:
    """The window that a mask is of the columns that it shows to any row; None: it is another mask.
    Raises as `bits.runs`.

    Example: of a mask of 4 positions that shows ``(j <= i) & (i - j < 2)`` it is ``Window(0, -1, 4,
    4)``.
    """
    start, stop = shown_columns(hidden)
    alike = runs(hidden[:, start:stop])
    if len(alike) != 1:
        return None
    (run,) = alike
    last = stop - start if run.last is None else run.last
    return Window(last, -run.rows if run.least is None else run.least, run.rows, stop - start)


def both(x: Compared, y: Compared) -> Compared | Bits | None:
    """Where two masks of positions are true, if that is a window: one hides keys behind those that
    a query sees, the other those before; or if one of them is true everywhere. None: they are other
    masks, or of other shapes.

    Example: ``(j <= i) & (i - j < 2)`` of 4 positions is true at the entries of ``Window(0, -1, 4,
    4)``.
    """
    if x.shape != y.shape:
        return None
    for one, other in ((x, y), (y, x)):
        if everywhere(one):
            return other
    behind, before = sorted((x.of, y.of), key=lambda of: of.steps[-1:])
    lead = (0,) * (len(x.shape) - 2)
    if (behind.steps, before.steps) != ((*lead, 1, -1), (*lead, -1, 1)):
        return None
    own = Window(behind.const, -before.const, *x.shape[-2:])
    return Bits(own.entries()).expand(x.shape) if own.ends_twice else None


def as_table(lo: Lowering, own: Window, scores: int = 0) -> Any:
    """1 where a query sees a key, else 0, as a table: on the single side of a window that hides
    some of many scores, on a rank of rows of such a one, or of another window of as many keys.
    None: its positions are compared.

    Example: of 2 heads and 64 positions, which are 8192 scores, a table [64, 64]; on the second of
    two ranks that divide the queries, its rows from 32 on.
    """
    if own.name in lo.tables:
        return lo.tables[own.name]
    if lo.shared is None:
        many = own.ends_twice and scores > MOST_COMPARED
        return named_input(lo, own.name, own.entries(), "float32") if many else None
    others = _windows(lo)
    for whole in others:
        start = _row(whole, own)
        if start is not None:
            table = named_input(lo, whole.name, whole.entries(), "float32")
            return lo.slice(table, 0, start, own.rows)
    if not any(own.ends_twice and w.last - w.least == own.last - own.least for w in others):
        return None
    return named_input(lo, own.name, own.entries(), "float32")


def _row(whole: Window, part: Window) -> int | None:
    """From which row on a window is another one; None: it is none of its rows."""
    if whole.columns != part.columns:
        return None
    shown = part.shown(0, part.rows)
    for start in (part.last - whole.last, part.least - whole.least):
        inside = 0 <= start <= whole.rows - part.rows
        if inside and whole.shown(start, part.rows) == shown:
            return start
    return None


def _windows(lo: Lowering) -> list[Window]:
    """Those that the single side has as tables."""
    names = (name for name in lo.shared or () if name.startswith(_NAME))
    return [Window(*map(int, name.removeprefix(_NAME).split())) for name in names]
