"""Which positions windows read, as tables of 0 and 1."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.hlo.opcodes import Taps

#: Tables have at most so many numbers.
MOST_NUMBERS: Final = 1 << 26


def few(*sizes: int) -> None:
    """Raises `Unsupported` for a table of too many numbers.

    Example: the taps of a convolution of three over 65,536 positions are 12,884,901,888 numbers.
    """
    count = 1
    for size in sizes:
        count *= size
    if count > MOST_NUMBERS:
        raise Unsupported(f"windows by a table of {count} numbers, at most {MOST_NUMBERS}")


def positions(taps: Taps, size: int, step: int) -> Any:
    """Which positions a window reads at a step, in their order.

    Example: two taps every two positions, of six: 2 and 3 at step 1.
    """
    offsets = np.arange(taps.size) * taps.apart
    at, rest = np.divmod(step * taps.stride + offsets - taps.before, taps.spread)
    return at[(rest == 0) & (at >= 0) & (at < size)]


def covers(taps: Taps, size: int, steps: int) -> Any:
    """Which positions a window reads at each step, as a table [positions, steps] of truth values.

    Example: two taps every two positions, of six: column 1 has rows 2 and 3.
    """
    few(size, steps)
    table = np.zeros((size, steps), dtype=bool)
    for step in range(steps):
        table[positions(taps, size, step), step] = True
    return table


def reads(taps: Taps, size: int, steps: int) -> Any:
    """Which position each tap of a window reads at each step, as a table [positions, taps, steps]
    of 0 and 1.

    Example: two taps every two positions, of six: step 1 reads position 2 by tap 0 and position 3
    by tap 1.
    """
    few(size, taps.size, steps)
    table = np.zeros((size, taps.size, steps))
    for tap in range(taps.size):
        offset = (taps.size - 1 - tap if taps.mirrored else tap) * taps.apart
        for step in range(steps):
            at, rest = divmod(step * taps.stride + offset - taps.before, taps.spread)
            if not rest and 0 <= at < size:
                table[at, tap, step] = 1
    return table


def up_to_each(taps: Taps, size: int, steps: int) -> bool:
    """Whether the window of each position is all up to it.

    Example: ``size=6 pad=5_0`` over six positions.
    """
    last = taps.size - 1
    return _dense(taps) and size == steps and taps.before == last and last >= size - 1


def from_each_on(taps: Taps, size: int, steps: int) -> bool:
    """Whether the window of each position is all from it on.

    Example: ``size=6 pad=0_5`` over six positions.
    """
    return _dense(taps) and size == steps and taps.before == 0 and taps.size >= size


def _dense(taps: Taps) -> bool:
    return taps.stride == taps.spread == taps.apart == 1
