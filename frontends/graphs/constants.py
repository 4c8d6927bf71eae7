"""Numbers of constants that two files have, as bytes that a bounded child hands out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def to_bytes(tables: Mapping[str, Any]) -> bytes:
    """Numbers by name as bytes.

    Example: of ``{"constant 0": [1, 2]}``, a map of "constant 0" to its shape and 16 bytes.
    """
    arrays = {name: np.asarray(x, dtype=float) for name, x in tables.items()}
    return msgspec.msgpack.encode({name: (x.shape, x.tobytes()) for name, x in arrays.items()})


def from_bytes(data: bytes) -> dict[str, Array]:
    """What `to_bytes` made bytes of.

    Example: ``{"constant 0": [1.0, 2.0]}``.
    """
    constants = msgspec.msgpack.decode(data, type=dict[str, tuple[tuple[int, ...], bytes]])
    return {name: np.frombuffer(data).reshape(shape) for name, (shape, data) in constants.items()}
