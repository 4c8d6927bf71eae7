"""Many members of a family at once: each member's positions as a row of integers.

What distinguishes the members of a stage is where their intervals begin, and attributes that are
affine in a coordinate.  A batch of members is a matrix of these numbers; whether a member is a
given one, moved (`engine.claims.symmetry`), is then a question about a row, answered for all rows
together but for each by its own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.claims.cone import cone, operands
from shardproof.engine.claims.symmetry import follow, starts
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.plan.ir import Attr

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class _Equal:
    """Which members are equal in all that was required: where distances of many members have to be
    equal, those that differ are taken out of ``same``, and the others go on."""

    def __init__(self, same: Mask) -> None:
        self.same = same

    def __call__(self, left: tuple[Numbers, ...], right: tuple[Numbers, ...]) -> None:
        for mine, theirs in zip(left, right, strict=True):
            self.same &= mine == theirs


class Family:
    """The members of a claim along ``axes``, which it depends on only through affine numbers.

    Example: a column-parallel linear layer on dp 2, tp 2 with two microbatches has eight members;
    in that at ``(0, 1, 0)`` rows of the weight begin at 32, in that at ``(0, 0, 1)`` sequences of
    the batch at 4.
    """

    def __init__(self, nodes: NodeTable, claim: Claim, axes: Sequence[str]) -> None:
        self.nodes = nodes
        self.claim = claim
        self.axes = tuple(axes)
        self.sizes = tuple(claim.extents[a] for a in axes)
        given = [x for x in claim.inputs if x is not None]
        self._addends = [t for x in (*given, *claim.outputs) for t in x.addends]
        self._starts = self._matrix([s for t in self._addends for s in starts(t)])
        self._attrs = self._matrix([a for v in claim.attrs.values() for a in _affines(v)])
        self._cone = cone(nodes, given, claim.outputs, adds=claim.adds)

    def __len__(self) -> int:
        """How many members there are."""
        return int(np.prod(self.sizes, dtype=np.int64))

    @property
    def regular(self) -> bool:
        """Whether members can be compared by their numbers: no definition that the claim reads
        depends on where it is read."""
        return not any(
            fixed[3].coefficient(axis)
            for number in self._cone.defined
            for operand in operands(self.nodes, number)
            for fixed in operand.fixed
            for axis in self.axes
        )

    def coordinates(self, first: int, count: int) -> Numbers:
        """The members ``first`` and following: a row each, a column for each axis."""
        if not self.axes:
            return np.zeros((count, 0), np.int64)
        places = np.unravel_index(np.arange(first, first + count), self.sizes)
        return np.stack(places, axis=1).astype(np.int64)

    def numbers(self, coordinates: Numbers) -> tuple[Numbers, Numbers]:
        """Of each member: where its intervals begin, and its attributes; a row each."""
        numbers = []
        for constants, coefficients in (self._starts, self._attrs):
            numbers.append(constants + coordinates @ coefficients)
        return numbers[0], numbers[1]

    def translates(self, mine: tuple[Numbers, Numbers], example: tuple[Numbers, Numbers]) -> Mask:
        """Which members (rows of ``mine``) are the example (one row of each), moved."""
        steps = mine[0] - example[0]
        equal = _Equal(np.asarray((mine[1] == example[1]).all(axis=1)))
        views = []
        at = 0
        for addend in self._addends:
            count = len(starts(addend))
            views.append((addend, partial(_column, steps, at)))
            at += count
        zero = np.zeros(len(steps), np.int64)
        if not follow(self.nodes, self._cone, views, zero, equal):
            equal.same[:] = False
        return equal.same

    def _matrix(self, affine: Sequence[Affine]) -> tuple[Numbers, Numbers]:
        """Constants, and coefficients by axis, of affine numbers; a column each."""
        constants = np.array([a.const for a in affine], np.int64)
        coefficients = [[a.coefficient(axis) for a in affine] for axis in self.axes]
        shape = (len(self.axes), len(affine))
        return constants, np.array(coefficients, np.int64).reshape(shape)


def _column(steps: Numbers, first: int, n: int) -> Numbers:
    column: Numbers = steps[:, first + n]
    return column


def _affines(value: Attr) -> list[Affine]:
    if isinstance(value, Affine):
        return [value]
    if isinstance(value, tuple):
        return [a for part in value for a in _affines(part)]
    return []
