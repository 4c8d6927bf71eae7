"""Rules for maxima over windows, and for their gradients.

A window reads the positions that its taps name.  A tap beside the tensor is one more of the nearest
position that the window has inside: a maximum does not change by an entry that counts twice, and
the first of the largest entries is at the same position, since taps stay in the order of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo import choices, tables
from shardproof.frontends.hlo.elementwise import number_of
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.opcodes import Taps
from shardproof.frontends.hlo.state import Lowering

#: A maximum over windows is one of so many tensors at most.
MOST_TAPS = 64
_PLAIN = Taps(1)


def places(taps: Taps, size: int, steps: int) -> Array:
    """Which position each tap of a window stands for, as a table [taps, steps]; raises
    `Unsupported` for a window that lies beside the tensor altogether.

    Example: three taps every two positions of four, one of them before the first: [0, 1], [0, 2]
    and [1, 3].
    """
    if taps.spread != 1 or taps.mirrored:
        raise Unsupported("maxima over windows of positions that are spread or turned round")
    read = np.arange(steps)[None] * taps.stride + np.arange(taps.size)[:, None] * taps.apart
    read = read - taps.before
    inside = (read >= 0) & (read < size)
    if not inside.any(axis=0).all():
        raise Unsupported("a window that lies beside the tensor")
    least = np.where(inside, read, size).min(axis=0)
    most = np.where(inside, read, -1).max(axis=0)
    return np.asarray(np.clip(read, least, most))


def _table(read: Array, size: int) -> Array:
    """[positions, taps, steps] of 0 and 1."""
    tables.few(size, *read.shape)
    return np.asarray(np.arange(size)[:, None, None] == read[None], dtype="float32")


def _side_by_side(taps: Taps, size: int, steps: int) -> bool:
    return taps == Taps(taps.size, taps.size) and size == taps.size * steps


class Windows:
    """The windows of a tensor's dimensions.

    Example: of ``f32[4,6]`` with ``size=1x2 stride=1x2``, `read` gives ``[4, 3, 2]``, three windows
    of two entries each, and `written` takes such a tensor back to ``[4, 6]``.
    """

    def __init__(self, low: Lowering, window: Sequence[Taps], shape: Shape, steps: Shape) -> None:
        self.low, self.shape, self.steps = low, shape, steps
        self.moving = [(d, taps) for d, taps in enumerate(window) if taps != _PLAIN]
        self.count = prod(taps.size for _, taps in self.moving)
        if self.count > MOST_TAPS:
            raise Unsupported(f"maxima over windows of {self.count} entries")

    def read(self, value: int) -> int:
        """The entries of every window, along one more dimension, the last."""
        for d, taps in self.moving:
            value = self._read(value, d, taps)
        return self.low.values.view(value, (*self.steps, self.count))

    def _read(self, value: int, d: int, taps: Taps) -> int:
        shape = self.low.recorder.shape(value)
        if _side_by_side(taps, shape[d], self.steps[d]):
            wide = (*shape[:d], self.steps[d], taps.size, *shape[d + 1 :])
            order = (*range(d + 1), *range(d + 2, len(wide)), d + 1)
            return self.low.recorder.op("permute", self.low.values.view(value, wide), dims=order)
        names = "abcdefghijklm"[: len(shape)]
        new = f"{names.replace(names[d], 'z')}y"
        table = self._constant(d, taps)
        return self.low.recorder.op("einsum", value, table, equation=f"{names},{names[d]}yz->{new}")

    def written(self, value: int) -> int:
        """The sum, at every position, of what windows have there."""
        value = self.low.values.view(value, (*self.steps, *(taps.size for _, taps in self.moving)))
        for d, taps in reversed(self.moving):
            value = self._written(value, d, taps)
        return value

    def _written(self, value: int, d: int, taps: Taps) -> int:
        shape = self.low.recorder.shape(value)
        last = len(shape) - 1
        if _side_by_side(taps, self.shape[d], self.steps[d]):
            order = (*range(d + 1), last, *range(d + 1, last))
            value = self.low.recorder.op("permute", value, dims=order)
            return self.low.values.view(value, (*shape[:d], self.shape[d], *shape[d + 1 : last]))
        names = "abcdefghijklm"[:last]
        new = names.replace(names[d], "z")
        table = self._constant(d, taps)
        equation = f"{names}y,zy{names[d]}->{new}"
        return self.low.recorder.op("einsum", value, table, equation=equation)

    def _constant(self, d: int, taps: Taps) -> int:
        read = places(taps, self.shape[d], self.steps[d])
        return self.low.recorder.constant([_table(read, self.shape[d])])


def select_and_scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What comes to each window goes to the first of its largest (smallest) entries, where it is
    added up.

    Example: of the operand [1, 5, 3, 2] with ``size=2 stride=2``, the source [7, 9] goes to
    [0, 7, 9, 0]. A computation that takes the last of the largest entries is refused.
    """
    how = node.attrs["select"]
    if node.attrs["scatter"] != "add" or number_of(xs[2]) != 0:
        raise Unsupported(f"entries of windows that are written by {node.attrs['scatter']}")
    operand, padding = _unpadded(low, node, xs[0], -inf if how == "largest" else inf)
    shape = low.recorder.shape(operand)
    window = [
        taps._replace(before=taps.before + before, after=taps.after + after)
        for taps, (before, after) in zip(node.attrs["window"], padding, strict=True)
    ]
    source = low.tensor(xs[1])
    windows = Windows(low, window, shape, low.recorder.shape(source))
    onehot = choices.first(low, windows.read(operand), how == "largest")
    names = "abcdefghijklm"[: len(shape)]
    chosen = low.recorder.op("einsum", source, onehot, equation=f"{names},{names}y->{names}y")
    value = windows.written(chosen)
    return Tensor(_framed(low, value, padding))


def _unpadded(
    low: Lowering, node: Node, item: Item, least: float
) -> tuple[int, list[tuple[int, int]]]:
    """The operand without the entries that are never chosen, and how many these are before and
    after it: JAX pads it with minus infinity first."""
    shape = low.graph.values[node.operands[0]].shape
    maker = low.maker(node.operands[0])
    if maker is not None and maker.target == "pad":
        padding = maker.attrs["padding"]
        number = number_of(low.items[maker.operands[1]])
        if number == least and all(not i and min(a, b) >= 0 for a, b, i in padding):
            return low.tensor(low.items[maker.operands[0]]), [(a, b) for a, b, _ in padding]
    return low.tensor(item), [(0, 0)] * len(shape)


def _framed(low: Lowering, value: int, padding: Sequence[tuple[int, int]]) -> int:
    """The tensor with zeros before and after."""
    for d, sizes in enumerate(padding):
        shape = low.recorder.shape(value)
        sides = [
            low.values.full((*shape[:d], n, *shape[d + 1 :]), Fraction(0)) if n else None
            for n in sizes
        ]
        parts = [p for p in (sides[0], value, sides[1]) if p is not None]
        if len(parts) > 1:
            value = low.recorder.op("concat", *parts, dim=d)
    return value


def largest(low: Lowering, value: int, dim: int, taps: Taps, steps: int, least: bool) -> int:
    """The maximum (minimum) over windows of one dimension.

    Example: over ``size=3 stride=2 pad=1_1`` of [4, 1, 2, 9], of one tap that is 4 twice, the
    maxima are 4 and 9.
    """
    shape = low.recorder.shape(value)
    window = [taps if d == dim else _PLAIN for d in range(len(shape))]
    windows = Windows(low, window, shape, (*shape[:dim], steps, *shape[dim + 1 :]))
    if least:
        value = low.recorder.op("mul", value, other=Fraction(-1))
    most = low.recorder.op("amax", windows.read(value), dim=(len(shape),))
    return low.recorder.op("mul", most, other=Fraction(-1)) if least else most
