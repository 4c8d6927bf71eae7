"""Windows of positions that ranks divide, read by slices side by side, one for each tap.

A table of what the taps read (`windows`) is another one for other numbers of positions, and nothing
is known of either but that both sides have it. Ranks that have some of the positions, and edges of
their neighbours', have other tables than the single device; there both sides read slices, which lie
within each other, and a gradient adds up such slices. For example, a convolution of three taps over
16 positions, and over 4 and two edges on each of four ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real
from shardproof.frontends.aten.patterns import Over, Pattern

#: Windows of more taps stay tables; those of which a table has more numbers do not.
MOST_SLICES, MOST_NUMBERS = 32, 1 << 24


class Axis(NamedTuple):
    """One dimension that taps move along: ``size`` positions, ``taps`` of them ``dilation`` apart,
    ``steps`` results ``stride`` apart, ``before``: zeros in front.

    Example: ``Axis(8, 3, 4, 2, 1, 1)`` is a convolution of 3 taps over 8 positions with stride 2
    and padding 1, which has 4 results.
    """

    size: int
    taps: int
    steps: int
    stride: int
    before: int
    dilation: int

    @property
    def blocks(self) -> bool:
        """Whether windows stand one after the other, each position in at most one of them."""
        apart = self.dilation == 1 or self.taps == 1
        beside = self.stride == self.taps or self.steps == 1
        return apart and beside and not self.before and self.steps * self.taps <= self.size


def is_sliced(lo: Lowering, axis: Axis, dim: int) -> bool:
    """Whether windows along dimension ``dim`` of those that they move along are read by slices, as
    ranks divide the positions, or there are very many; notes that there are such windows.

    Example: with three taps among ``lo.windows.sliced``, a convolution of three taps is.
    """
    pattern = Pattern(dim, axis.taps, axis.stride, axis.dilation)
    lo.windows.seen.add(Over(pattern, axis.size, axis.steps))
    large = axis.size * axis.taps * axis.steps > MOST_NUMBERS
    return axis.taps <= MOST_SLICES and (large or pattern in lo.windows.sliced)


class _Part(NamedTuple):
    """Positions [start, start + size) of a dimension that are read together."""

    start: int
    size: int


class _Run(NamedTuple):
    """What a tap reads of a part: ``steps`` results from ``first`` on, at position ``at`` of the
    part and every ``stride`` further on."""

    part: _Part
    first: int
    steps: int
    at: int


def _runs(axis: Axis, tap: int, parts: Iterable[_Part]) -> Iterator[_Run]:
    """What a tap reads, part by part."""
    base = tap * axis.dilation - axis.before
    for part in parts:
        first = max(0, -((base - part.start) // axis.stride))
        end = min(axis.steps, -((base - part.start - part.size) // axis.stride))
        if first < end:
            at = first * axis.stride + base - part.start
            yield _Run(part, first, end - first, at)


def _parts(axis: Axis, sizes: Sequence[int]) -> list[_Part]:
    """The positions of a dimension that was put together of ``sizes``; where every so many
    positions are read, as whole periods and what is left of one."""
    parts, start = [], 0
    for size in sizes:
        rest = size % axis.stride
        parts += [_Part(start, size - rest)] if size - rest else []
        parts += [_Part(start + size - rest, rest)] if rest else []
        start += size
    return parts


def joints(lo: Lowering, x: Lowered, dim: int) -> tuple[int, ...]:
    """The sizes that a dimension of a tensor was put together of.

    Example: ``(1, 8)`` of a neighbour's last position and eight of a rank's own.
    """
    whole = (x.shape[dim],)
    if not isinstance(x, Real):
        return whole
    op = next((op for op in reversed(lo.ops) if x.number in op.outputs), None)
    if op is None or op.name != "concat":
        return whole
    inputs = [Real(n, lo.values[n].shape, lo.values[n].dtype) for n in op.inputs]
    made = [joints(lo, own, dim) for own in inputs]
    if op.attrs["dim"] == dim:
        return tuple(size for own in made for size in own)
    return max(made, key=len)


def read(lo: Lowering, x: Lowered, axis: Axis, sizes: Sequence[int]) -> Any:
    """x [..., size] as [..., taps, steps]: what each tap reads, zeros where that is nothing, the
    last tap first; ``sizes``: as of `joints`.

    So what several taps read at one result is no interval of positions, and what is made of it is
    made tap by tap, for one result as for many.

    Example: two taps over [a, b, c] are [[b, c], [a, b]].
    """
    last = len(x.shape) - 1
    lead = x.shape[:-1]
    parts = _parts(axis, sizes) if axis.stride > 1 else [_Part(0, axis.size)]
    rows = []
    for tap in reversed(range(axis.taps)):
        pieces: list[Lowered] = []
        at = 0
        for run in _runs(axis, tap, parts):
            pieces += _zeros(lead, run.first - at, x.dtype)
            own = lo.slice(x, last, run.part.start, run.part.size)
            pieces += _every(lo, own, last, run.at, axis.stride, run.steps)
            at = run.first + run.steps
        pieces += _zeros(lead, axis.steps - at, x.dtype)
        rows.append(lo.reshape(lo.concat(pieces, last), (*lead, 1, axis.steps)))
    return lo.concat(rows, last)


def written(lo: Lowering, x: Lowered, axis: Axis, sizes: Sequence[int]) -> Any:
    """The transpose of `read`: [..., taps, steps] as [..., size], sums over the taps.

    Example: [[c, d], [a, b]] of two taps over three positions are [a, b + c, d].
    """
    last = len(x.shape) - 2
    lead = x.shape[:-2]
    parts = _parts(axis, sizes) if axis.stride > 1 else [_Part(0, axis.size)]
    made = []
    for part in parts:
        rows = []
        for tap in range(axis.taps):
            for run in _runs(axis, tap, [part]):
                place = axis.taps - 1 - tap
                own = lo.slice(lo.slice(x, last, place, 1), last + 1, run.first, run.steps)
                flat = lo.reshape(own, (*lead, run.steps))
                spread = _spread(lo, flat, last, run, axis.stride)
                rows.append(lo.reshape(spread, (*lead, 1, part.size)))
        if rows:
            made.append(lo.sum(lo.concat(rows, last), (last,)))
        else:
            made += _zeros(lead, part.size, x.dtype)
    return lo.concat(made, last)


def turned(lo: Lowering, x: Lowered, dim: int) -> Any:
    """The positions of a dimension, the last one first, as taps are read.

    Example: of [a, b, c], [c, b, a].
    """
    order = reversed(range(x.shape[dim]))
    return lo.concat([lo.slice(x, dim, place, 1) for place in order], dim)


def _zeros(lead: tuple[int, ...], count: int, dtype: str) -> list[Lowered]:
    return [Const(Fraction(0), (*lead, count), dtype)] if count else []


def _every(lo: Lowering, x: Lowered, dim: int, start: int, step: int, count: int) -> list[Any]:
    """Every ``step``-th position of the last dimension, ``count`` of them, from ``start`` on, in
    pieces: whole periods are a view, and one that is not whole is a position."""
    if step == 1:
        return [lo.slice(x, dim, start, count)]
    first, skip = divmod(start, step)
    whole = min(count, x.shape[dim] // step - first)
    pieces = []
    if whole:
        own = lo.slice(x, dim, first * step, whole * step)
        column = lo.slice(lo.reshape(own, (*x.shape[:dim], whole, step)), dim + 1, skip, 1)
        pieces.append(lo.reshape(column, (*x.shape[:dim], whole)))
    if whole < count:
        pieces.append(lo.slice(x, dim, start + whole * step, 1))
    return pieces


def _spread(lo: Lowering, x: Lowered, dim: int, run: _Run, step: int) -> Any:
    """[..., steps] at their positions of a part, zeros at the others."""
    size = run.part.size
    if step == 1 or size < step:
        return _placed(lo, x, dim, run.at, size)
    row, column = divmod(run.at, step)
    rows = _placed(lo, x, dim, row, size // step)
    split = lo.reshape(rows, (*rows.shape, 1))
    return lo.reshape(_placed(lo, split, dim + 1, column, step), (*x.shape[:dim], size))


def _placed(lo: Lowering, x: Lowered, dim: int, start: int, size: int) -> Any:
    """``x`` at ``start`` of ``size`` positions of a dimension, zero at the others."""
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]

    def zeros(count: int) -> list[Const]:
        return [Const(Fraction(0), (*lead, count, *rest), x.dtype)] if count else []

    return lo.concat([*zeros(start), x, *zeros(size - start - x.shape[dim])], dim)
