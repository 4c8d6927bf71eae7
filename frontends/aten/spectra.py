"""Fourier transforms of ATen, as products with tables of cosines and sines.

Along a dimension of n positions, entry k of a transform of x is

    sum over j of x[j] (cos(2 pi j k / n) + i s sin(2 pi j k / n)),   s = -1 forward, 1 inverse.

Tables are named inputs of both sides, by their contents: a proof holds whatever they are, and both
sides have the same ones where they transform the same number of positions.  Complex tensors are
pairs (`aten.complexes`).

Source: the signatures and docstrings of `torch.fft` and of ``aten::_fft_r2c``, ``_fft_c2r`` and
``_fft_c2c`` (PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod, sqrt
from typing import Any, Final

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.complexes import halves, pair
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, dimensions, fraction
from shardproof.frontends.aten.rules import TABLE, Rule, lowers
from shardproof.frontends.aten.tables import Array
from shardproof.frontends.aten.waves import halved, waves
from shardproof.frontends.aten.windows import matrix, through

#: What ATen's numbers of a normalization say that a transform is divided by.
NONE, BY_ROOT, BY_COUNT = 0, 1, 2
_FORWARD: Final = {None: NONE, "backward": NONE, "ortho": BY_ROOT, "forward": BY_COUNT}
_INVERSE: Final = {None: BY_COUNT, "backward": BY_COUNT, "ortho": BY_ROOT, "forward": NONE}

#: Real and imaginary part; None: there is none.
Halves = tuple[Any, Any]


def _times(lo: Lowering, x: Any, dim: int, table: Array) -> Any:
    """A half times a table along a dimension; None: one of the two is zero."""
    return None if x is None or not table.any() else through(lo, x, dim, matrix(lo, table))


def _plus(lo: Lowering, x: Any, y: Any, sign: int = 1) -> Any:
    """A sum of halves, or a difference; None: zero."""
    if y is None:
        return x
    return lo.scale(y, Fraction(sign)) if x is None else lo.add(x, y, Fraction(sign))


def _along(lo: Lowering, x: Halves, dim: int, sign: int, kept: int | None = None) -> Halves:
    """The transform along a dimension, or its first ``kept`` entries."""
    size = next(half.shape[dim] for half in x if half is not None)
    cosines, sines = waves(size, size if kept is None else kept)
    real = _plus(lo, _times(lo, x[0], dim, cosines), _times(lo, x[1], dim, sines), -sign)
    turned = _times(lo, x[0], dim, sines)
    other = _plus(lo, _times(lo, x[1], dim, cosines), turned, sign)
    return real, other


def _to_real(lo: Lowering, x: Halves, dim: int, size: int) -> Any:
    """The inverse transform of the first half of a spectrum whose other half is its conjugate."""
    cosines, sines = halved(size)
    real = _times(lo, x[0], dim, cosines)
    return _plus(lo, real, _times(lo, x[1], dim, sines), -1)


def _scaled(lo: Lowering, x: Halves, count: int, normalization: int) -> Halves:
    divisor = {NONE: 1.0, BY_ROOT: sqrt(count), BY_COUNT: count}[normalization]
    factor = Fraction(1, count) if normalization == BY_COUNT else fraction(1 / divisor)
    first, second = (None if half is None else lo.scale(half, factor) for half in x)
    return first, second


def _paired(lo: Lowering, x: Halves) -> Any:
    real, other = x
    zero = Const(Fraction(0), (real if other is None else other).shape, lo.expected[0][1])
    return pair(lo, zero if real is None else real, zero if other is None else other)


def _given(lo: Lowering, x: Lowered, is_pair: bool) -> Halves:
    first, second = halves(lo, x, is_pair)
    return first, second if is_pair else None


@lowers("complex._fft_c2c.default")
def _c2c(
    lo: Lowering,
    x: Lowered,
    dim: Sequence[int],
    normalization: int,
    forward: bool,
    *,
    pairs: Sequence[bool],
) -> Any:
    dims = dimensions(x.shape[:-1], dim) if dim else ()
    made = _given(lo, x, True)
    for at in dims:
        made = _along(lo, made, at, -1 if forward else 1)
    return _paired(lo, _scaled(lo, made, prod(x.shape[d] for d in dims), normalization))


@lowers("complex._fft_r2c.default")
def _r2c(
    lo: Lowering,
    x: Lowered,
    dim: Sequence[int],
    normalization: int,
    onesided: bool,
    *,
    pairs: Sequence[bool],
) -> Any:
    """Onesided: of the last dimension that is named the first half."""
    dims = dimensions(x.shape, dim)
    last = x.shape[dims[-1]]
    made = _along(lo, (x, None), dims[-1], -1, last // 2 + 1 if onesided else None)
    for at in dims[:-1]:
        made = _along(lo, made, at, -1)
    return _paired(lo, _scaled(lo, made, prod(x.shape[d] for d in dims), normalization))


@lowers("complex._fft_c2r.default")
def _c2r(
    lo: Lowering,
    x: Lowered,
    dim: Sequence[int],
    normalization: int,
    last_dim_size: int,
    *,
    pairs: Sequence[bool],
) -> Any:
    dims = dimensions(x.shape[:-1], dim)
    if x.shape[dims[-1]] != last_dim_size // 2 + 1:
        raise Unsupported(f"{x.shape[dims[-1]]} entries of half a spectrum of {last_dim_size}")
    made = _given(lo, x, True)
    for at in dims[:-1]:
        made = _along(lo, made, at, 1)
    count = prod(x.shape[d] for d in dims[:-1]) * last_dim_size
    real = _to_real(lo, made, dims[-1], last_dim_size)
    if real is None:
        return Const(Fraction(0), *lo.expected[0])
    return _scaled(lo, (real, None), count, normalization)[0]


# -- what `torch.fft` has ------------------------------------------------------------------------


def _resized(lo: Lowering, x: Lowered, at: int, size: int) -> Any:
    """The first ``size`` positions of a dimension, zeros behind them where it has fewer."""
    own = x.shape[at]
    if own >= size:
        return x if own == size else lo.slice(x, at, 0, size)
    shape = (*x.shape[:at], size - own, *x.shape[at + 1 :])
    return lo.concat([x, Const(Fraction(0), shape, x.dtype)], at)


def _cut(lo: Lowering, x: Any, dims: Sequence[int], sizes: Sequence[int | None]) -> Any:
    """A tensor, brought to sizes along dimensions (None: its own)."""
    for at, size in zip(dims, sizes, strict=True):
        x = x if size is None else _resized(lo, x, at, size)
    return x


def _places(shape: Sequence[int], sizes: Any, dim: Any) -> tuple[tuple[int, ...], list[int | None]]:
    """The dimensions of a transform, and to which size each is brought first (None: its own)."""
    if isinstance(sizes, int):
        sizes = [sizes]
    if dim is None:
        count = len(shape) if sizes is None else len(sizes)
        dim = list(range(len(shape) - count, len(shape)))
    dims = dimensions(tuple(shape), [dim] if isinstance(dim, int) else list(dim))
    given = [None] * len(dims) if sizes is None else list(sizes)
    if len(given) != len(dims):
        raise Unsupported(f"{len(given)} sizes of {len(dims)} dimensions")
    return dims, [None if n is None or n < 0 else n for n in given]


#: What a transform of `torch.fft` gives, of a tensor, sizes, dimensions, norm and flags of pairs.
Transform = Callable[[Lowering, Any, Any, Any, "str | None", Sequence[bool]], Any]


def _transform(forward: bool) -> Transform:
    """``fft`` and ``ifft``, of complex or real tensors."""

    def made(
        lo: Lowering, x: Any, sizes: Any, dim: Any, norm: str | None, pairs: Sequence[bool]
    ) -> Any:
        dims, given = _places(x.shape[:-1] if pairs[0] else x.shape, sizes, dim)
        x = _cut(lo, x, dims, given)
        parts = _given(lo, x, pairs[0])
        for at in dims:
            parts = _along(lo, parts, at, -1 if forward else 1)
        kind = (_FORWARD if forward else _INVERSE)[norm]
        return _paired(lo, _scaled(lo, parts, prod(x.shape[d] for d in dims), kind))

    return made


def _of_reals(
    lo: Lowering, x: Any, sizes: Any, dim: Any, norm: str | None, pairs: Sequence[bool]
) -> Any:
    """``rfft``."""
    dims, given = _places(x.shape, sizes, dim)
    return _r2c(lo, _cut(lo, x, dims, given), dims, _FORWARD[norm], True, pairs=pairs)


def _to_reals(
    lo: Lowering, x: Any, sizes: Any, dim: Any, norm: str | None, pairs: Sequence[bool]
) -> Any:
    """``irfft``."""
    dims, given = _places(x.shape[:-1], sizes, dim)
    last = given[-1]
    last = 2 * (x.shape[dims[-1]] - 1) if last is None else last
    x = _cut(lo, x, dims, [*given[:-1], last // 2 + 1])
    return _c2r(lo, x, dims, _INVERSE[norm], last, pairs=pairs)


def _registered(name: str, made: Transform) -> None:
    """A transform of one dimension, of two, and of several."""

    @lowers(f"complex.{name}.default")
    def one(
        lo: Lowering,
        x: Lowered,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        pairs: Sequence[bool],
    ) -> Any:
        return made(lo, x, n, dim, norm, pairs)

    @lowers(f"complex.{name}2.default")
    def two(
        lo: Lowering,
        x: Lowered,
        s: Sequence[int] | None = None,
        dim: Sequence[int] = (-2, -1),
        norm: str | None = None,
        *,
        pairs: Sequence[bool],
    ) -> Any:
        return made(lo, x, s, dim, norm, pairs)

    @lowers(f"complex.{name}n.default")
    def several(
        lo: Lowering,
        x: Lowered,
        s: Sequence[int] | None = None,
        dim: Sequence[int] | None = None,
        norm: str | None = None,
        *,
        pairs: Sequence[bool],
    ) -> Any:
        return made(lo, x, s, dim, norm, pairs)


_registered("fft_fft", _transform(forward=True))
_registered("fft_ifft", _transform(forward=False))
_registered("fft_rfft", _of_reals)
_registered("fft_irfft", _to_reals)


def _shifted(name: str, forth: bool) -> None:
    """Half of every dimension, moved to its other end."""

    def rolled(lo: Lowering, x: Lowered, shape: Sequence[int], dim: Any) -> Any:
        dims = dimensions(tuple(shape), None if dim is None else dim)
        by = [shape[d] // 2 if forth else (shape[d] + 1) // 2 for d in dims]
        return TABLE["aten.roll.default"](lo, x, by, dims)

    @lowers(f"aten.{name}.default")
    def of_reals(lo: Lowering, x: Lowered, dim: Any = None) -> Any:
        return rolled(lo, x, x.shape, dim)

    @lowers(f"complex.{name}.default")
    def of_pairs(lo: Lowering, x: Lowered, dim: Any = None, *, pairs: Sequence[bool]) -> Any:
        return rolled(lo, x, x.shape[:-1], dim)


_shifted("fft_fftshift", True)
_shifted("fft_ifftshift", False)


@lowers("complex.stft.default")
def _stft(
    lo: Lowering,
    x: Lowered,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Lowered | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
    *,
    pairs: Sequence[bool],
) -> Any:
    """[..., time] as [..., frequencies, frames]: transforms of windows, which a shorter ``window``
    weighs in their middle."""
    if pairs[0] or return_complex is False or align_to_window:
        raise Unsupported("a transform of windows of complex numbers, or to pairs, or aligned")
    hop = n_fft // 4 if hop_length is None else hop_length
    frames = TABLE["aten.unfold_copy.default"](lo, x, -1, n_fft, hop)
    if window is not None:
        before = (n_fft - window.shape[0]) // 2
        behind = n_fft - window.shape[0] - before
        zeros = [Const(Fraction(0), (n,), window.dtype) for n in (before, behind)]
        frames = lo.mul(frames, lo.concat([zeros[0], window, zeros[1]], 0))
    elif win_length not in (None, n_fft):
        raise Unsupported("a window of ones that is shorter than its frame")
    last = len(frames.shape) - 1
    half = n_fft // 2 + 1 if onesided is not False else None
    made = _along(lo, (frames, None), last, -1, half)
    whole = _paired(lo, _scaled(lo, made, n_fft, BY_ROOT if normalized else NONE))
    return lo.transpose(whole, last - 1, last)


# -- products ------------------------------------------------------------------------------------


def _multiplied(lo: Lowering, rule: Rule, x: Halves, y: Halves) -> Any:
    """A product of complex tensors, or of one with a real one, by four products of halves."""

    def of(a: Any, b: Any) -> Any:
        return None if a is None or b is None else rule(lo, a, b)

    real = _plus(lo, of(x[0], y[0]), of(x[1], y[1]), -1)
    return _paired(lo, (real, _plus(lo, of(x[0], y[1]), of(x[1], y[0]))))


def _product(name: str) -> None:
    @lowers(f"complex.{name}")
    def rule(lo: Lowering, x: Lowered, y: Lowered, *, pairs: Sequence[bool]) -> Any:
        own = _given(lo, x, pairs[0]), _given(lo, y, pairs[1])
        return _multiplied(lo, TABLE[f"aten.{name}"], *own)


for _name in ("mm.default", "bmm.default", "matmul.default"):
    _product(_name)


@lowers("complex.einsum.default")
def _einsum(
    lo: Lowering, equation: str, xs: Sequence[Lowered], path: Any = None, *, pairs: Sequence[bool]
) -> Any:
    """Of two tensors, each complex if it has one dimension more than the equation gives it."""
    letters = equation.replace(" ", "").partition("->")[0].split(",")
    if len(xs) != 2 or "." in equation:
        raise Unsupported(f"einsum {equation} of complex tensors")
    own = (
        _given(lo, x, len(x.shape) == len(named) + 1) for x, named in zip(xs, letters, strict=True)
    )

    def multiplied(_: Lowering, x: Lowered, y: Lowered) -> Any:
        return TABLE["aten.einsum.default"](lo, equation, [x, y])

    return _multiplied(lo, multiplied, *own)
