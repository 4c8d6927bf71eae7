"""Quotients of numbers in NumPy, where XLA says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported


def divided(x: Any, y: Any) -> Any:
    """A quotient; of integers towards zero.

    Example: -7 by 2 is -3; of floats it is -3.5.
    """
    if not np.issubdtype(np.asarray(x).dtype, np.integer):
        return np.true_divide(x, y)
    _defined(x, y, "division")
    down = np.floor_divide(x, y)
    return down + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))).astype(down.dtype)


def remainder(x: Any, y: Any) -> Any:
    """What a division towards zero leaves.

    Example: of -7 by 2 it is -1.
    """
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        _defined(x, y, "remainder")
    return np.fmod(x, y)


def _defined(x: Any, y: Any, what: str) -> None:
    """Raise `Unsupported` where XLA leaves to the device what a quotient of integers is."""
    least = np.iinfo(np.asarray(x).dtype).min
    if np.any(np.asarray(y) == 0):
        raise Unsupported(f"{what} of integers by zero")
    if least and np.any((np.asarray(x) == least) & (np.asarray(y) == -1)):
        raise Unsupported(f"{what} of integers that overflows")
