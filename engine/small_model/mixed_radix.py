"""How a claim reads axes: at which strides, and so in which digits.

An axis of a reference node is read at several strides (a view splits it, a shard strides over it).
Its positions are written in mixed radix, one digit per stride that anything in the claim uses: a
view, a definition, the operator, a family that moves along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.blocks import Block, Digit, digits
from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Most,
    Onehot,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Lineage,
    PartialRange,
    StridedInterval,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import of_dim

#: Node and axis; axis -1 - l: reduced label l of the node's definition.  Node -1 - i: dimension of
#: the claim's lineage i.
Axis = tuple[int, int]
#: An axis and a stride along it, the same of another one, and how many positions they have in
#: common from there (`ABSOLUTE`: all).
Relation = tuple[Axis, int, Axis, int, int]


class Shift(NamedTuple):
    """A digit of a block's axis ``inside`` and of the axis ``around`` that it is of.

    Example: the digit of axis 0 of a node that is the block [0, 2,048) of axis 0, of 3,072, of
    another.
    """

    inside: Axis
    around: Axis
    digit: Digit


class MixedRadix:
    """The digits of every axis that a claim reads.  Raises `Unsupported` for definitions that this
    representation does not cover.

    Example: where ``n1`` is read as ``a1[<8*tp> +8 of 16]``, its axis 1 is in digits of 8 and of 2,
    at strides 1 and 8.

    ``extents``: of the mesh coordinates.  ``related``: local dimensions that the operator takes for
    one another (None: local dimensions are not split as others are).  ``coarse``: local dimensions
    are not split as what lies side by side in them.
    """

    def __init__(
        self,
        nodes: NodeTable,
        lineages: Sequence[Lineage],
        defined: Sequence[int],
        extents: Mapping[str, int],
        related: Sequence[Relation] | None,
        coarse: bool = False,
    ) -> None:
        self.nodes = nodes
        self.strides: dict[Axis, set[int]] = {}
        self.full: dict[Axis, int] = {}
        self.radix: dict[Axis, tuple[tuple[int, int], ...]] = {}
        self.places: dict[int, int] = {}
        local: list[Relation] = []
        if related is not None:
            self.places = {id(lineage): -1 - i for i, lineage in enumerate(lineages)}
            local = [*related, *self.views(lineages, whole=False)]
        self._note_strides(lineages, extents)
        sides = [] if related is None or coarse else list(self.sides(lineages))
        self._relate(defined, local, sides)

    def _note_strides(self, lineages: Sequence[Lineage], extents: Mapping[str, int]) -> None:
        for lineage in lineages:
            for key, stride, extent, start in self.intervals(lineage):
                self._stride(key, stride, extent)
                self._family_strides(key, stride, start, extents)

    def intervals(self, lineage: Lineage) -> Iterator[tuple[Axis, int, int, Affine]]:
        """(axis, stride, extent, start) of what a lineage's addends read of axes and of ranges."""
        for addend in lineage.addends:
            for interval in (*(a for d in addend.view.dims for a in d), *addend.view.fixed):
                if interval.axis != BROADCAST:
                    yield (
                        (addend.node, interval.axis),
                        interval.stride,
                        interval.extent,
                        interval.start,
                    )
            for partial in addend.partials:
                yield self._range(partial), 1, partial.extent, partial.start

    def _range(self, partial: PartialRange) -> Axis:
        """The reduced label that a part is of."""
        reduction = self.nodes.reductions[partial.reduction]
        while reduction.kind == "via":
            reduction = self.nodes.reductions[reduction.inner]
        return reduction.node, -1 - reduction.where

    def _stride(self, key: Axis, stride: int, extent: int) -> None:
        strides = self.strides.setdefault(key, {1})
        strides.add(stride)
        if extent != ABSOLUTE:
            strides.add(stride * extent)
            self.full[key] = max(self.full.get(key, 0), stride * extent)

    def _family_strides(
        self, key: Axis, stride: int, start: Affine, extents: Mapping[str, int]
    ) -> None:
        for axis, coefficient in start.terms:
            self.strides[key].add(stride * abs(coefficient))
            self.strides[key].add(stride * abs(coefficient) * extents[axis])

    @staticmethod
    def views(lineages: Sequence[Lineage], *, whole: bool = True) -> Iterator[Relation]:
        """Local dimensions and the axes that they are views of; unless ``whole``, of an interval
        that is none of several equal ones only the digits that do not cut through it."""
        for i, lineage in enumerate(lineages):
            for k, addend in enumerate(lineage.addends):
                for d, dim in enumerate(addend.view.dims):
                    local = _left(i, k, d) if of_dim(addend, d) else (-1 - i, d)
                    inner = 1
                    for interval in reversed(dim):
                        if interval.axis != BROADCAST and interval.size > 1:
                            axis = (addend.node, interval.axis)
                            size = interval.size if whole else _uncut(interval)
                            yield local, inner, axis, interval.stride, size
                        inner *= interval.size

    @staticmethod
    def sides(lineages: Sequence[Lineage]) -> Iterator[Shift]:
        """The digits of local dimensions in which addends have places."""
        for i, lineage in enumerate(lineages):
            for k, addend in enumerate(lineage.addends):
                for d in sorted({place.dim for place in addend.places}):
                    blocks = [Block(*place) for place in of_dim(addend, d)]
                    for digit in digits(blocks, d, lineage.shape[d], equal=True):
                        yield Shift(_left(i, k, d), (-1 - i, d), digit)

    def _relate(
        self, numbers: Sequence[int], local: Sequence[Relation], sides: Sequence[Shift]
    ) -> None:
        """Carry strides between axes that a definition or the operator identifies, until nothing
        changes."""
        relations: list[Relation] = []
        for number in sorted(numbers):
            relations += self.relations(number)
        self._check(relations)
        for label, _, axis, stride, extent in relations:
            self._stride(axis, stride, extent)
            self._stride(label, 1, extent)
        shifts = [shift for number in sorted(numbers) for shift in self.shifts(number)]
        shifts += sides
        for inside, around, digit in shifts:
            self._stride(inside, digit.inner, digit.size)
            self._stride(around, digit.outer, digit.extent)
        relations += local
        for one, stride, other, _, extent in local:
            if one == other and extent == 1:
                self.strides.setdefault(one, {1}).add(stride)
        changed = True
        while changed:
            changed = False
            for one, a, other, b, extent in relations:
                changed |= self._carry(one, a, other, b, extent)
                changed |= self._carry(other, b, one, a, extent)
            for shift in shifts:
                changed |= self._carry_shifted(shift)

    def _carry(self, source: Axis, a: int, target: Axis, b: int, extent: int) -> bool:
        """Strides of one axis from ``a`` on, as strides of another from ``b`` on."""
        carried = {
            s // a * b
            for s in self.strides.get(source, ())
            if s % a == 0 and (extent == ABSOLUTE or s <= a * extent)
        }
        known = self.strides.setdefault(target, {1})
        if carried <= known:
            return False
        known |= carried
        return True

    def _carry_shifted(self, shift: Shift) -> bool:
        """Strides of a block's digit, and of the digit around it, that do not cut through it."""
        inside, around, (inner, outer, size, start, extent) = shift
        steps = {s // inner for s in self.strides[inside] if s % inner == 0 and s <= inner * size}
        steps |= {
            s // outer
            for s in self.strides[around]
            if s % outer == 0 and (not extent or s < outer * extent)
        }
        fit = [c for c in steps if size % c == 0 and start % c == 0 and extent % c == 0]
        before = len(self.strides[inside]) + len(self.strides[around])
        self.strides[inside].update(inner * c for c in fit)
        self.strides[around].update(outer * c for c in fit)
        return len(self.strides[inside]) + len(self.strides[around]) > before

    @staticmethod
    def _check(relations: Sequence[Relation]) -> None:
        """Refuse definitions that this representation does not cover: a label with two ranges."""
        ranges: dict[Axis, int] = {}
        for label, _, _, _, extent in relations:
            if ranges.setdefault(label, extent) != extent:
                raise Unsupported("a definition that reads two ranges as one")

    def relations(self, number: int) -> list[Relation]:
        """Which axes of a node and of its operands one label indexes: ((node, axis), stride,
        (operand, axis), stride, extent)."""
        match self.nodes[number].definition:
            case Unary(node=operand) | Onehot(node=operand):
                axes = self.nodes[operand].extents
                return [((number, i), 1, (operand, i), 1, n) for i, n in enumerate(axes)]
            case Restrict(node=operand, blocks=blocks):
                cut = {block.axis for block in blocks}
                axes = self.nodes[operand].extents
                return [
                    ((number, i), 1, (operand, i), 1, n) for i, n in enumerate(axes) if i not in cut
                ]
            case Einsum() | Combine() | Most() | Amax() | Select() as read:
                place = {label: i for i, label in enumerate(read.outputs)}
                return [
                    ((number, place.get(label, -1 - label)), 1, (o.node, axis), stride, extent)
                    for o in read.reads()
                    for axis, stride, extent, label in o.intervals
                ]
        return []

    def shifts(self, number: int) -> list[Shift]:
        """The digits of the axes that a block cuts."""
        definition = self.nodes[number].definition
        if not isinstance(definition, Restrict):
            return []
        operand, blocks = definition.node, definition.blocks
        axes = self.nodes[operand].extents
        try:
            return [
                Shift((number, axis), (operand, axis), digit)
                for axis in sorted({block.axis for block in blocks})
                for digit in digits(blocks, axis, axes[axis])
            ]
        except ValueError as error:
            raise Unsupported(str(error)) from None

    def _digits(self, key: Axis) -> tuple[tuple[int, int], ...]:
        """(stride, extent) of the digits of an axis, innermost first; extent 0: unbounded."""
        if key not in self.radix:
            bounds = sorted(self.strides.get(key, {1}))
            full = self.full.get(key, 0)
            result = []
            for low, high in pairwise(bounds):
                if high % low:
                    raise Unsupported(f"an axis read at strides {low} and {high}")
                result.append((low, high // low))
            if not full:
                result.append((bounds[-1], 0))
            self.radix[key] = tuple(result)
        return self.radix[key]

    def within(self, key: Axis, stride: int, extent: int) -> list[tuple[int, int]]:
        """The digits of an axis from ``stride`` up to ``stride * extent``."""
        return [
            (s, e)
            for s, e in self._digits(key)
            if s >= stride and (extent == ABSOLUTE or s < stride * extent)
        ]


#: Lineages of a claim, and addends of a lineage, are fewer.
_MANY = 1 << 20


def _left(lineage: int, term: int, dim: int) -> Axis:
    """What the places of an addend leave of a local dimension, as an axis."""
    return -1 - lineage - _MANY * (term + 1), dim


def _uncut(interval: StridedInterval) -> int:
    """The largest digit of an interval's axis that its interval takes wholly."""
    if interval.extent == ABSOLUTE or (
        interval.extent % interval.size == 0 and interval.start.divisible(interval.size)
    ):
        return interval.size
    steps = (interval.start.const, *(c for _, c in interval.start.terms))
    return gcd(interval.size, interval.extent, *steps)
