"""Blocks of axes: which positions of an axis a definition is about, where that is not all of them.

A block of an axis is the positions x for which x mod ``extent`` is in [start, start + size);
``extent`` divides the axis.  A node of kind "block" is another node without the positions outside;
its axes count what is left.  ``q`` of a fused projection of 3,072 columns is the block [0, 2,048)
of its last axis.  (``k``, [2,048, 2,560), is the fifth of six equal blocks: one position of a
digit, which needs no definition of its own.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardproof.engine.lineage.lineage import ABSOLUTE


class Block(NamedTuple):
    """The positions of an axis that are left: those in [start, start + size) modulo ``extent``.

    Example: ``Block(0, 0, 3, 4)`` leaves the first three of every four positions of axis 0.

    Several blocks of one axis hold together: each takes whole periods of those of smaller
    ``extent``.  `ABSOLUTE`: the axis has no end, and the block is positions of it.
    """

    axis: int
    start: int
    size: int
    extent: int


class Digit(NamedTuple):
    """A digit of the positions of an axis of which blocks are left.

    Example: of an axis of 16 positions of which the first three of every four are left, ``Digit(3,
    4, 4, 0, 4)`` is which of the fours: 3 apart in the block, 4 apart on the axis.

    ``size`` positions of what is left and of all of the axis, at strides ``inner`` and ``outer``,
    that begin ``start`` further on in the latter, which has ``extent`` there (`ABSOLUTE`: no end).
    """

    inner: int
    outer: int
    size: int
    start: int
    extent: int


def of_axis(blocks: Iterable[Block], axis: int) -> list[Block]:
    """The blocks of one axis, innermost first.

    Example: the block [512, 768) of every 1,024 positions comes before [0, 2,048) of 3,072.
    """
    return sorted((b for b in blocks if b.axis == axis), key=lambda b: b.extent or 1 << 62)


def digits(blocks: Iterable[Block], axis: int, full: int, *, equal: bool = False) -> list[Digit]:
    """The digits, innermost first, of an axis of ``full`` positions of which ``blocks`` are left;
    raises `ValueError` for blocks that are not inside one another and, unless ``equal``, for one
    of several equal blocks, which is a position of a digit.

    Example: of 16 positions of which the first three of every four are left: three positions at
    stride 1, and four that are 3 apart in the block and 4 apart on the axis.
    """
    result: list[Digit] = []
    inner = outer = 1
    for block in of_axis(blocks, axis):
        start, rest = divmod(block.start, outer)
        size, more = divmod(block.size, outer)
        extent, cut = divmod(block.extent, outer)
        outside = extent and not 0 <= start <= extent - size
        if rest or more or cut or size < 1 or outside:
            raise ValueError(f"{block} of an axis in blocks of {outer}")
        if not equal and extent and extent % size == 0 and start % size == 0:
            raise ValueError(f"{block}, which is a fixed position of a digit")
        if not extent and full != ABSOLUTE:
            raise ValueError(f"{block} of an axis of {full}")
        result.append(Digit(inner, outer, size, start, extent))
        inner, outer = inner * size, outer * extent
    if full and (not outer or full % outer):
        raise ValueError(f"blocks of {outer} in an axis of {full}")
    if full and full > outer:
        result.append(Digit(inner, outer, full // outer, 0, full // outer))
    if not full and outer:
        raise ValueError("blocks that repeat along an axis without an end")
    return result


def extents(blocks: Sequence[Block], full: Sequence[int]) -> tuple[int, ...]:
    """The extents of a node of which ``blocks`` are left; raises `ValueError` as `digits` does.

    Example: that leaves 12 of 16.
    """
    result = []
    for axis, extent in enumerate(full):
        if not any(b.axis == axis for b in blocks):
            result.append(extent)
            continue
        size = 1
        for digit in digits(blocks, axis, extent):
            size *= digit.size
        result.append(size)
    return tuple(result)


def place(blocks: Iterable[Block], axis: int, full: int, index: int) -> int:
    """Where position ``index`` of a block's axis is on the axis that it is of.

    Example: position 4 of them is position 5 of the axis.
    """
    position = 0
    for digit in digits(blocks, axis, full):
        index, here = divmod(index, digit.size)
        position += (here + digit.start) * digit.outer
    return position


def is_shift(blocks: Iterable[Block], axis: int, full: int) -> bool:
    """Whether what is left of an axis is one interval of it.

    Example: the block [0, 2,048) of 3,072 is one, a block [0, 3) of every 4 positions of 16 is not.
    """
    return all(b.extent == full for b in blocks if b.axis == axis)
