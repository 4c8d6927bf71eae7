"""Shifts of integers in NumPy, where XLA says what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def logical(how: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Zeros come in, and nothing is left behind as many places as there are bits.

    Example: -1 of ``s8`` by one place to the right is 127, by eight places 0.
    """
    x, y = np.asarray(x), np.asarray(y)
    bits = x.dtype.itemsize * 8
    own = x.view(f"uint{bits}")
    moved = how(own, np.clip(y, 0, bits - 1).astype(own.dtype))
    inside = (y >= 0) & (y < bits)
    return np.where(inside, moved, own.dtype.type(0)).astype(own.dtype).view(x.dtype)


def arithmetic(x: Any, y: Any) -> Any:
    """To the right, where the first bit comes in, also of a type without a sign.

    Example: 254 of ``u8`` by one place is 255, 126 is 63.
    """
    x, y = np.asarray(x), np.asarray(y)
    bits = x.dtype.itemsize * 8
    places = np.where((y >= 0) & (y < bits), y, bits - 1).astype(f"int{bits}")
    return np.right_shift(x.view(f"int{bits}"), places).view(x.dtype)
