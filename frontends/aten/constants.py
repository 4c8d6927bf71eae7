"""Tensors of known values: what they are, as far as it can be said without a table.

A tensor of one number, whole numbers that are an affine function of the position, and masks that
compare two positions stay symbolic.  Anything else is a table: a named input of both sides, named
by its contents.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite, prod
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.bits import Additive, Bits
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    Shape,
    Undefined,
    fraction,
)
from shardproof.frontends.aten.masks import flags
from shardproof.frontends.aten.positions import Compared, Positions, whole
from shardproof.frontends.aten.scores import nothing
from shardproof.frontends.aten.singles import meant
from shardproof.frontends.aten.tables import MOST_SEARCHED, Array, table

#: Element types whose values are read.
KNOWN = {
    "float64": np.float64,
    "float32": np.float32,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}
#: Element types of half precision, of which numbers that nothing was rounded to are read: whole
#: ones below the bound, and those of at most so many significant bits.
_HALVES = ("bfloat16", "float16")
_WHOLE, _BITS = 256, 4


def values(data: bytes, shape: Shape, dtype: str) -> Array:
    """The entries of a tensor of known values; raises `Unsupported` for a type that is not read, or
    another number of them.

    Example: eight bytes of zeros are [0, 0] of shape (2,) in float32; as (3,) they are refused. In
    bfloat16 four bytes of zeros are that, while 0.1, which that type rounds, is refused.
    """
    if dtype in _HALVES:
        data, dtype = _widened(data, dtype), "float32"
    if dtype not in KNOWN:
        raise Unsupported(f"constants of {dtype}")
    kind = np.dtype(KNOWN[dtype])
    if len(data) != kind.itemsize * prod(shape):
        raise Unsupported(f"{len(data)} bytes for constants of shape {list(shape)}")
    return np.frombuffer(data, kind).reshape(shape)


def _widened(data: bytes, dtype: str) -> bytes:
    """Numbers of half precision as those of single precision.  What was rounded to so few bits is
    not told from what was not, so only short ones are read."""
    if len(data) % 2:
        raise Unsupported(f"{len(data)} bytes for constants of {dtype}")
    if dtype == "bfloat16":
        wide = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        wide = np.frombuffer(data, np.float16).astype(np.float32)
    numbers = wide[np.isfinite(wide)]
    leading = np.frexp(numbers)[0] * 2**_BITS
    whole = (numbers == np.round(numbers)) & (np.abs(numbers) < _WHOLE)
    if not (whole | (leading == np.round(leading))).all():
        raise Unsupported(f"constants of {dtype} that may be rounded")
    return wide.tobytes()


def constant(lo: Lowering, data: bytes, shape: Shape, dtype: str) -> Any:
    """A tensor of known values.

    Example: [0.5, 0.5] is ``Const(1/2)``, [0, 1, 2, 3] are `Positions` with step 1, ``torch.ones(4,
    4, dtype=torch.bool).tril()`` is `Compared`, [0.1, 0.3] is a table, [0.1, -inf] is what is added
    to scores of which the second one is hidden.
    """
    array = values(data, shape, dtype)
    if array.size and array.dtype.kind == "f" and (array == np.inf).all():
        return Undefined(shape, dtype, "infinity")
    if array.size and (array == array.flat[0]).all() and isfinite(float(array.flat[0])):
        return Const(number_of(array.flat[0]), shape, dtype)
    if dtype == "bool":
        return mask(array)
    if array.dtype.kind == "i":
        positions = _positions(array, dtype)
        if positions is not None:
            return positions
    elif (array == -np.inf).all():
        return nothing(lo, shape, dtype)
    elif ((array == 0) | (array == -np.inf)).all():
        return Additive(mask(array == -np.inf), dtype)
    elif not np.isfinite(array).all():
        hidden = array == -np.inf
        if not (np.isfinite(array) | hidden).all():
            raise Unsupported("constants that are no numbers")
        return Additive(mask(hidden), dtype, np.where(hidden, 0, array).astype(array.dtype))
    return table(lo, array, dtype)


def number_of(entry: Any) -> Fraction:
    """An entry of known values as an exact number: of single precision as what is rounded to it.

    Example: the float32 next to 0.9, 0.8999999761581421, is 9/10.
    """
    number = entry.item()
    single = meant(number) if isinstance(entry, np.float32) else Fraction(number)
    return fraction(number) if single == Fraction(number) else single


def _positions(array: Array, dtype: str) -> Positions | None:
    """Whole numbers as an affine function of the index, if they are one."""
    first = int(array.flat[0])
    steps = []
    for dim, size in enumerate(array.shape):
        start = (0,) * array.ndim
        second = (*start[:dim], 1, *start[dim + 1 :])
        steps.append(int(array[second]) - first if size > 1 else 0)
    index = np.indices(array.shape)
    fit = first + sum((s * index[d] for d, s in enumerate(steps)), np.zeros(array.shape, dtype=int))
    return Positions(first, tuple(steps), array.shape, dtype) if (fit == array).all() else None


def mask(array: Array) -> Compared | Bits:
    """A mask that compares the last two indices, or any other by its entries.

    Example: ``torch.ones(4, 4, dtype=torch.bool).tril()`` is `Compared`, a window of keys `Bits`.
    """
    if array.ndim >= 2 and array.any():
        rows, columns = array.shape[-2:]
        i, j = np.indices((rows, columns))
        lead = (0,) * (array.ndim - 2)
        kept = (j - i)[array.reshape(-1, rows, columns)[0]]
        below, above = int(kept.max(initial=-rows)), int(kept.min(initial=columns))
        if (array == (i - j + below >= 0)).all():
            return Compared(Positions(below, (*lead, 1, -1), array.shape, "int64"))
        if (array == (j - i - above >= 0)).all():
            return Compared(Positions(-above, (*lead, -1, 1), array.shape, "int64"))
    return Bits(array)


def numbered(lo: Lowering, of: Positions) -> Real:
    """Positions as a table of whole numbers; raises `Unsupported` for many.

    Example: ``torch.arange(4)`` is the table [0, 1, 2, 3] with the domain [0, 4).
    """
    return lo.real(lo.expand(table(lo, of.moving(), "int64"), of.shape))


def in_turn(lo: Lowering, ids: Lowered, rows: int) -> Lowered:
    """Ids of rows of a table: positions, where they rise by 1 along one dimension; other positions
    as a table of whole numbers; raises `Unsupported` for ids of no row.

    Example: the distances ``i - j + 1`` of two positions, [[1, 0], [2, 1]], are a table.
    """
    at = whole(ids) if isinstance(ids, Const) else ids
    if not isinstance(at, Positions) or at.dtype == "bool":
        return ids
    moving = [s for n, s in zip(at.shape, at.steps, strict=True) if n > 1 and s]
    if moving in ([], [1]):
        return at
    numbers = at.moving()
    if numbers.min() < 0 or numbers.max() >= rows:
        raise Unsupported("rows by positions beyond those of a table")
    return numbered(lo, at)


def as_flags(lo: Lowering, mask: Compared | Bits) -> Real:
    """A mask of positions as a table of 0 and 1; raises `Unsupported` for a large one.

    Example: a causal mask of 4 by 4 positions is a table of 16 numbers, 6 of them 1; one of 256 by
    256 has more than `MOST_SEARCHED` entries.
    """
    if isinstance(mask, Bits):
        if mask.array.size > MOST_SEARCHED:
            raise Unsupported("a large mask of constants as numbers")
        return flags(lo.real(table(lo, mask.array.astype(np.float32), "float32")))
    bits = (mask.of.moving() >= 0).astype(np.float32)
    least = lo.real(constant(lo, bits.tobytes(), bits.shape, "float32"))
    return flags(lo.real(lo.expand(least, mask.shape)))
