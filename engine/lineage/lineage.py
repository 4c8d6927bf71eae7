"""Lineages: how a parallel tensor is made of single-device values.

An `Addend` says: this local tensor is ``factor`` times a strided view of a *reference node*,
possibly of the node's sum taken over part of its range only (its parts).  A `Lineage` is a sum of
terms.  All positions are at true size and affine in the mesh coordinates, so that one lineage
stands for a family of ranks and microbatches.

The nodes are in `engine.lineage.nodes`, what they are defined as in `engine.lineage.expressions`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine

#: The axis number of an interval along which the tensor is constant.
BROADCAST = -1
#: The extent of an axis that counts absolute positions (classes of a one-hot, mask positions).
ABSOLUTE = 0


def start_text(start: Affine) -> str:
    """A position: a number, or in angle brackets what is affine in coordinates.

    Example: ``3`` or ``<8*tp + 4>``.
    """
    return f"<{start}>" if start.terms else str(start.const)


def interval_text(start: Affine, size: int, extent: int) -> str:
    """``size`` positions from ``start`` of ``extent`` (``*``: without an end).

    Example: ``<8*tp> +8 of 16``.
    """
    return f"{start_text(start)} +{size} of {extent or '*'}"


class StridedInterval(NamedTuple):
    """A strided interval of a node's axis: index = stride * (start + i), 0 <= i < size.

    ``extent`` is the number of positions at this stride in the full axis (`ABSOLUTE`: unbounded).
    For ``axis == BROADCAST`` only ``size`` counts.

    Example: ``a0[<8*tp> +8 of 16]`` is half of axis 0, which half depends on the rank; ``a0/4[4]``
    is every fourth position of 16.
    """

    axis: int
    stride: int
    extent: int
    start: Affine
    size: int

    @property
    def full(self) -> bool:
        """Whether it is all positions at its stride."""
        return self.size == self.extent and self.start == ZERO

    def __str__(self) -> str:
        if self.axis == BROADCAST:
            return f"_[{self.size}]"
        name = f"a{self.axis}" if self.stride == 1 else f"a{self.axis}/{self.stride}"
        if self.full:
            return f"{name}[{self.size}]"
        return f"{name}[{interval_text(self.start, self.size, self.extent)}]"


Dim = tuple[StridedInterval, ...]


class View(NamedTuple):
    """A view of a node: for each local dimension its intervals, outermost first (their sizes
    multiply to the dimension; none: size 1), and intervals of size 1 that belong to no dimension.

    Example: ``[a0/4[4], a0[4], a1[8]]``: a node of 16 by 8 entries, seen as [4, 4, 8].
    """

    dims: tuple[Dim, ...]
    fixed: tuple[StridedInterval, ...] = ()

    def __str__(self) -> str:
        dims = ", ".join(" x ".join(map(str, dim)) or "1" for dim in self.dims)
        return f"[{dims}]{' at ' * bool(self.fixed)}{' '.join(map(str, self.fixed))}"


class PartialRange(NamedTuple):
    """The node's sum (or maximum) named by ``reduction`` runs over the positions i for which
    i mod ``extent`` is in [start, start + size); ``extent`` divides the range.

    Several parts of one reduction hold together (`engine.lineage.positions`): each takes whole
    periods of the ones of smaller extent.

    Example: ``#3[<8*tp> +8 of 16]``: a matrix product of which rank ``tp`` has added up 8 of 16
    products.
    """

    reduction: int
    start: Affine
    size: int
    extent: int

    def __str__(self) -> str:
        return f"#{self.reduction}[{interval_text(self.start, self.size, self.extent)}]"


class Place(NamedTuple):
    """Where a view lies in a local dimension: at the positions i for which i mod ``extent`` is in
    [start, start + size); ``extent`` divides the dimension.  Elsewhere the addend is zero.

    Several places of one dimension hold together, as parts of one reduction do.

    Example: ``0[8 +8 of 16]``: in the second half of dimension 0.
    """

    dim: int
    start: int
    size: int
    extent: int

    def __str__(self) -> str:
        return f"{self.dim}[{self.start} +{self.size} of {self.extent}]"


class Addend(NamedTuple):
    """A term of a lineage: ``factor`` times a view of a node, or of part of the node's sum.

    Example: ``1/2*n5[a0[16]] part #3[0 +8 of 16]`` is half of node 5, of which half is summed.

    ``view`` is of the positions that ``places`` leave: all, if there are none.
    """

    factor: Fraction
    node: int
    view: View
    partials: tuple[PartialRange, ...] = ()
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else f"{self.factor}*"
        parts = f" part {', '.join(map(str, self.partials))}" if self.partials else ""
        places = f" in {', '.join(map(str, self.places))}" if self.places else ""
        return f"{factor}n{self.node}{self.view}{parts}{places}"


class Lineage(NamedTuple):
    """A local tensor of ``shape`` as a sum of addends (none: all zero).

    Example: ``[4, 8] = n3[a0[4], a1[8]] part #0[<8*tp> +8 of 16]``: what rank ``tp`` has of a
    row-parallel linear layer before the all-reduce.

    More than one addend at one position only while at least one of them is partial: a complete sum
    is a node.  A concatenation of different values is a sum of addends that lie side by side.
    """

    shape: tuple[int, ...]
    addends: tuple[Addend, ...]

    def __str__(self) -> str:
        return f"{list(self.shape)} = {' + '.join(map(str, self.addends)) or '0'}"


def box_view(
    node: int,
    full_shape: tuple[int, ...],
    shape: tuple[int, ...],
    offset: tuple[Affine, ...],
) -> Lineage:
    """The lineage of the box of ``shape`` at ``offset`` of a node whose axes are the dimensions of
    ``full_shape`` that exceed 1.

    Example: the box [8, 8] at (``8*tp``, 0) of node 5 [16, 8] is ``n5[a0[<8*tp> +8 of 16],
    a1[8]]``.
    """
    dims: list[Dim] = []
    axis = 0
    for full, size, start in zip(full_shape, shape, offset, strict=True):
        if full == 1:
            dims.append(())
        else:
            dims.append((StridedInterval(axis, 1, full, start, size),))
            axis += 1
    return Lineage(shape, (Addend(Fraction(1), node, View(tuple(dims))),))
