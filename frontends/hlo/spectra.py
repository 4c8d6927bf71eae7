"""HLO's Fourier transforms, as products of the parts of complex numbers with tables.

Along an axis of n positions, entry k of a transform is the sum over j of x[j] times cos(2 pi j k /
n) + i s sin(2 pi j k / n), with s = -1, or 1 and over n for an inverse one.  Of the transform of
real numbers (``RFFT``) the first half of the last axis is kept, n / 2 + 1 entries, since the others
are its conjugates; ``IRFFT`` is its inverse.

Source: the operator ``Fft`` of the XLA operation semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.aten.waves import halved, waves
from shardproof.frontends.hlo import known
from shardproof.frontends.hlo.module import Type

#: Real and imaginary part; None: there is none.
Halves: TypeAlias = "tuple[Any, Any]"
#: Emits an operator of a type on operands, with attributes, and gives its result.
Emit: TypeAlias = Callable[[str, Type, Sequence[Any], Mapping[str, Any]], Any]


def transform(attrs: Mapping[str, Any], parts: Halves, type: Type, emit: Emit) -> Halves:
    """The transform of the last axes of an operand's parts, of which each is of ``type``; raises
    `Unsupported` for another kind, and `InvalidInput` for lengths that are not those of its axes.

    Example: ``fft(x), fft_type=RFFT, fft_length={8}`` of float32 [4, 8] has parts [4, 5].
    """
    kind, lengths = attrs.get("fft_type", ""), tuple(attrs.get("fft_length", ()))
    if kind not in ("FFT", "IFFT", "RFFT", "IRFFT") or not lengths:
        raise Unsupported(f"a transform {kind} of {len(lengths)} axes")
    if (parts[1] is None) != (kind == "RFFT") or len(type.shape) < len(lengths):
        raise InvalidInput(f"a transform {kind} to {type}")
    whole = (*type.shape[: len(type.shape) - len(lengths)], *lengths)
    half = (*whole[:-1], lengths[-1] // 2 + 1)
    if tuple(type.shape) != (half if kind == "RFFT" else whole):
        raise InvalidInput(f"a transform {kind} to {type} by lengths {list(lengths)}")
    shape = half if kind == "IRFFT" else whole
    last = len(shape) - 1
    axes = list(range(last - len(lengths) + 1, last + (kind in ("FFT", "IFFT"))))
    if kind == "RFFT":
        table = waves(lengths[-1], half[-1])
        parts, shape = _along(parts, shape, last, table, -1, type.dtype, emit), half
    for at in axes:
        sign, size = (1 if kind.startswith("I") else -1), whole[at]
        cosines, sines = waves(size, size)
        over = size if sign == 1 else 1
        parts = _along(parts, shape, at, (cosines / over, sines / over), sign, type.dtype, emit)
    if kind == "IRFFT":
        return _to_real(parts, shape, lengths[-1], type, emit), None
    return parts


def _times(x: Any, shape: Sequence[int], at: int, table: Any, dtype: str, emit: Emit) -> Any:
    """A part times a table [positions, entries] along an axis; None: one of them is zero."""
    if x is None or not table.any():
        return None
    of_table = Type(table.shape, dtype)
    entries = known.constant(table.astype(dtype), of_table)
    rest = (*shape[:at], *shape[at + 1 :])
    dims = {"lhs_contracting_dims": (at,), "rhs_contracting_dims": (0,)}
    made = emit("dot", Type((*rest, table.shape[1]), dtype), [x, entries], dims)
    if at == len(rest):
        return made
    order = (*range(at), len(rest), *range(at, len(rest)))
    moved = (*shape[:at], table.shape[1], *shape[at + 1 :])
    return emit("transpose", Type(moved, dtype), [made], {"dimensions": order})


def _along(
    parts: Halves,
    shape: Sequence[int],
    at: int,
    waves: tuple[Any, Any],
    sign: int,
    dtype: str,
    emit: Emit,
) -> Halves:
    """The transform along an axis."""
    cosines, sines = waves
    kept = (*shape[:at], cosines.shape[1], *shape[at + 1 :])
    made = [
        [_times(part, shape, at, table, dtype, emit) for table in (cosines, sines)]
        for part in parts
    ]
    (a, b), (c, d) = made
    own = Type(kept, dtype)
    return _added(a, d, -sign, own, emit), _added(c, b, sign, own, emit)


def _added(x: Any, y: Any, sign: int, type: Type, emit: Emit) -> Any:
    """A sum of parts, or a difference; None: zero."""
    if y is None:
        return x
    if x is None:
        return y if sign == 1 else emit("negate", type, [y], {})
    return emit("add" if sign == 1 else "subtract", type, [x, y], {})


def _to_real(parts: Halves, shape: Sequence[int], size: int, type: Type, emit: Emit) -> Any:
    """The inverse transform of the first half of a spectrum whose other half is its conjugate."""
    at = len(shape) - 1
    if shape[at] != size // 2 + 1:
        raise InvalidInput(f"{shape[at]} entries of half a spectrum of {size}")
    cosines, sines = (table / size for table in halved(size))
    real = _times(parts[0], shape, at, cosines, type.dtype, emit)
    other = _times(parts[1], shape, at, sines, type.dtype, emit)
    return _added(real, other, -1, type, emit)
