"""Tables of Fourier transforms, which readers of every kind of graph multiply with."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Entries of a table that are closer to zero than this are zero but for rounding.
ROUNDING: Final = 1e-12


def waves(size: int, kept: int) -> tuple[Array, Array]:
    """Cosines and sines [size, kept] of 2 pi j k / size.

    Example: of size 4 and 2 kept the cosines are [[1, 1], [1, 0], [1, -1], [1, 0]].
    """
    turns = np.outer(np.arange(size), np.arange(kept)) % size
    angles = 2 * np.pi * turns / size
    both = np.cos(angles), np.sin(angles)
    cosines, sines = (np.where(np.abs(x) < ROUNDING, 0.0, x) for x in both)
    return cosines, sines


def halved(size: int) -> tuple[Array, Array]:
    """Cosines and sines [size / 2 + 1, size] that make a real tensor of the first half of its
    spectrum, times ``size``: all entries but the first one, and the one in the middle, stand for
    two.

    Example: of size 2 the cosines are [[1, 1], [1, -1]].
    """
    kept = size // 2 + 1
    twice = np.array([1.0 if k == 0 or 2 * k == size else 2.0 for k in range(kept)])
    cosines, sines = waves(size, kept)
    return (cosines * twice).T, (sines * twice).T
