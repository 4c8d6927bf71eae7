"""Tensors of known values: what they are, as far as it can be said without a table.

A tensor of one number, whole numbers that are an affine function of the position, and masks that
compare two positions stay symbolic.  Anything else is a table: a named input of both sides, named
by its contents.
"""

from __future__ import annotations

import hashlib
from itertools import combinations
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten.bits import Additive, Bits
from shardproof.frontends.aten.lowering import Const, Lowering, Real, Shape, fraction
from shardproof.frontends.aten.masks import flags
from shardproof.frontends.aten.positions import Compared, Positions
from shardproof.frontends.aten.scores import nothing

Array = NDArray[Any]

#: Entries of a table of the single side in which a rank's part is looked for.
MOST_SEARCHED = 1 << 14

#: Element types whose values are read.
KNOWN = {
    "float64": np.float64,
    "float32": np.float32,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}


def values(data: bytes, shape: Shape, dtype: str) -> Array:
    """The entries of a tensor of known values; raises `Unsupported` for a type that is not read, or
    another number of them.

    Example: eight bytes of zeros are [0, 0] of shape (2,) in float32; as (3,), and in float16, they
    are refused.
    """
    if dtype not in KNOWN:
        raise Unsupported(f"constants of {dtype}")
    kind = np.dtype(KNOWN[dtype])
    if len(data) != kind.itemsize * prod(shape):
        raise Unsupported(f"{len(data)} bytes for constants of shape {list(shape)}")
    return np.frombuffer(data, kind).reshape(shape)


def constant(lo: Lowering, data: bytes, shape: Shape, dtype: str) -> Any:
    """A tensor of known values.

    Example: [0.5, 0.5] is ``Const(1/2)``, [0, 1, 2, 3] are `Positions` with step 1, ``torch.ones(4,
    4, dtype=torch.bool).tril()`` is `Compared`, [0.1, 0.3] is a table.
    """
    array = values(data, shape, dtype)
    if array.size and (array == array.flat[0]).all() and isfinite(float(array.flat[0])):
        return Const(fraction(array.flat[0].item()), shape, dtype)
    if dtype == "bool":
        return _mask(array)
    if array.dtype.kind == "i":
        positions = _positions(array, dtype)
        if positions is not None:
            return positions
    elif (array == -np.inf).all():
        return nothing(lo, shape, dtype)
    elif ((array == 0) | (array == -np.inf)).all():
        return Additive(_mask(array == -np.inf), dtype)
    elif not np.isfinite(array).all():
        raise Unsupported("constants that are no numbers")
    return table(lo, array, dtype)


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


def _mask(array: Array) -> Compared | Bits:
    """A mask that compares the last two indices, or any other by its entries."""
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


def table(lo: Lowering, array: Array, dtype: str) -> Any:
    """An input by its contents: what varies along no dimension but others is one table, expanded; a
    rank's part of a table of the single side is a slice of that; any other one is an input of which
    nothing is known on the single side.

    Example: [[1, 2], [1, 2]] is one input of shape (2,) that is called "constant" and the first 32
    digits of a hash of its entries, viewed as [1, 2] and expanded to [2, 2].
    """
    alike = [d for d, n in enumerate(array.shape) if n > 1 and (array == array.take([0], d)).all()]
    least = array[tuple(slice(0, 1) if d in alike else slice(None) for d in range(array.ndim))]
    made = least.reshape(tuple(n for n in least.shape if n != 1))
    digest = hashlib.sha256(made.tobytes() + repr((made.shape, dtype)).encode()).hexdigest()[:32]
    name = f"constant {digest}"
    part = None
    if lo.shared is not None and name not in lo.shared:
        part = _part(lo, made, dtype)
    if part is None:
        part = _named_input(lo, name, made, dtype)
    return lo.expand(lo.reshape(part, least.shape), array.shape)


def _named_input(lo: Lowering, name: str, table: Array, dtype: str) -> Any:
    """The table as a named input."""
    shape = table.shape
    if name not in lo.tables:
        domain = (int(table.min()), int(table.max()) + 1) if table.dtype.kind == "i" else None
        shard = Shard(
            name, shape, shape, (ZERO,) * len(shape), dtype, False, kind="constant", domain=domain
        )
        lo.tables[name] = lo.hold(shard)
        lo.contents[name] = table
    return lo.tables[name]


def _part(lo: Lowering, table: Array, dtype: str) -> Any:
    """A part of a table that the single side has; None: it is none."""
    for name, whole in (lo.shared or {}).items():
        if whole.dtype != table.dtype or whole.size > MOST_SEARCHED:
            continue
        for one in combinations(range(whole.ndim), max(0, whole.ndim - table.ndim)):
            part = np.expand_dims(table, one)
            start = _place(whole, part)
            if start is not None:
                value = _named_input(lo, name, whole, dtype)
                for dim, (at, size) in enumerate(zip(start, part.shape, strict=True)):
                    value = lo.slice(value, dim, at, size)
                return value
    return None


def numbered(lo: Lowering, of: Positions) -> Real:
    """Positions as a table of whole numbers; raises `Unsupported` for many.

    Example: ``torch.arange(4)`` is the table [0, 1, 2, 3] with the domain [0, 4).
    """
    moving = [n if step else 1 for n, step in zip(of.shape, of.steps, strict=True)]
    if prod(moving) > MOST_SEARCHED:
        raise Unsupported("many positions as ids")
    index = np.indices(moving)
    indices = of.const + sum((s * index[d] for d, s in enumerate(of.steps)), np.zeros(moving, int))
    return lo.real(lo.expand(table(lo, indices.astype(np.int64), "int64"), of.shape))


def as_flags(lo: Lowering, mask: Compared | Bits) -> Real:
    """A mask of positions as a table of 0 and 1; raises `Unsupported` for a large one.

    Example: a causal mask of 4 by 4 positions is a table of 16 numbers, 6 of them 1; one of 256 by
    256 has more than `MOST_SEARCHED` entries.
    """
    if isinstance(mask, Bits):
        if mask.array.size > MOST_SEARCHED:
            raise Unsupported("a large mask of constants as numbers")
        return flags(lo.real(table(lo, mask.array.astype(np.float32), "float32")))
    of = mask.of
    moving = [n if step else 1 for n, step in zip(of.shape, of.steps, strict=True)]
    if prod(moving) > MOST_SEARCHED:
        raise Unsupported("a large mask of positions as numbers")
    index = np.indices(moving)
    total = of.const + sum((s * index[d] for d, s in enumerate(of.steps)), np.zeros(moving, int))
    bits = (total >= 0).astype(np.float32)
    least = lo.real(constant(lo, bits.tobytes(), tuple(moving), "float32"))
    return flags(lo.real(lo.expand(least, mask.shape)))


def _place(whole: Array, part: Array) -> tuple[int, ...] | None:
    """Where a table begins that is a box of another one; None: it is none."""
    if whole.ndim != part.ndim or any(n > m for n, m in zip(part.shape, whole.shape, strict=True)):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(whole, part.shape)
    alike = (windows == part).all(axis=tuple(range(part.ndim, 2 * part.ndim)))
    places = np.argwhere(alike)
    return tuple(int(n) for n in places[0]) if len(places) else None
