"""Bounds of affine functions over the mesh, and how positions of an axis may be strided over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.lineage import ABSOLUTE


class IllFormed(Exception):
    """A definition or a view that has no meaning; says why."""


def bounds(value: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest value over all coordinates; raises `IllFormed` for a coordinate
    that does not exist.

    Example: ``8*tp + 4`` with ``tp`` of two positions is from 4 to 12.
    """
    low = high = value.const
    for axis, coefficient in value.terms:
        if axis not in extents:
            raise IllFormed(f"{value} is over the axis {axis}, which does not exist here")
        reach = coefficient * (extents[axis] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def nested(strides: Iterable[tuple[int, int]], full: int) -> None:
    """Raise `IllFormed` unless (stride, extent) pairs are digits of a number below ``full``: each
    strides over everything inside it.

    Example: (1, 4) and (4, 2) are digits of a number below 8; (1, 4) and (2, 2) are not.
    """
    inner = 1
    for stride, extent in sorted(strides):
        if stride < 1 or extent < 1 or stride % inner or stride * extent > full:
            raise IllFormed(f"stride {stride} over {extent} positions of an axis of {full}")
        inner = stride * extent


def tiled(strides: Iterable[tuple[int, int]], full: int) -> None:
    """Raise `IllFormed` unless (stride, extent) pairs, which are digits of a number below ``full``,
    are all of its digits: then strides say what extents are.

    Example: (1, 4) and (4, 2) are all digits of a number below 8, and not of one below 16.  An axis
    without an end has none.
    """
    inner = 1
    digits = sorted(strides) if full != ABSOLUTE else []
    for stride, extent in [*digits, (full, 1)] if digits else []:
        if stride != inner:
            raise IllFormed(f"{inner} positions in front of stride {stride} of an axis of {full}")
        inner = stride * extent
