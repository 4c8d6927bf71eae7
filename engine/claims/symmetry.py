"""Claims that are one claim, moved.

Two members of a family, or the same operator on two shards, differ in where their intervals begin.
If every reference node that the claim reads moves as a whole, by one vector, then one claim is the
other with the entries of every node renamed, and one of them stands for both.  The vectors of what
is claimed are carried down through the definitions; a partial sum moves the range that it sums.
Whatever does not fit (a node with two vectors, a moving mask or class) makes the claims different.

Distances are integers (along one coordinate), affine (between two claims) or columns of integers
(between many claims and one of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.claims.cone import Cone, cone, operand_nodes, operands
from shardproof.engine.lineage.blocks import Block, is_shift
from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Most,
    Onehot,
    Operand,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, PartialRange
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import of_dim
from shardproof.engine.plan.ir import Attr


class Asymmetric(Exception):
    """The claims are not one claim, moved."""


#: Distances, and what is asked of two tuples of them: raises `Asymmetric` unless they are equal.
Require: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...]], None]


def require_equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    """Raise `Asymmetric` unless integers or affine distances are equal.

    Example: (0, 8) and (0, 8) pass, (0, 8) and (0, 16) do not.
    """
    if left != right:
        raise Asymmetric


class _Moves:
    """The vector of every node; ``parts``: how far the range of a partial reduction moves."""

    def __init__(self, nodes: NodeTable, here: Cone, zero: Any, require: Require) -> None:
        self.nodes = nodes
        self.here = here
        self.zero = zero
        self.require = require
        self.vectors: dict[int, tuple[Any, ...]] = {}
        self.parts: dict[tuple[int, int], Any] = {}
        self.complete: set[int] = set()

    def whole(self, views: Iterable[Addend]) -> None:
        """Note the nodes whose sums occur in full: those that a view has no part of, and operands
        of definitions but where a part is of a sum inside the operand."""
        inside: set[tuple[int, int]] = set()
        for view in views:
            if not view.partials:
                self.complete.add(view.node)
            for partial in view.partials:
                reduction = self.nodes.reductions[partial.reduction]
                while reduction.kind == "via":
                    inside.add((reduction.node, reduction.where))
                    reduction = self.nodes.reductions[reduction.inner]
        for number in self.here.defined:
            read = enumerate(operand_nodes(self.nodes, number))
            self.complete.update(n for place, n in read if (number, place) not in inside)

    def ranges(self, partials: Sequence[PartialRange], distances: Sequence[Any]) -> None:
        """The parts of an addend: a range moves as far as its digits do together."""
        reach: dict[int, Any] = {}
        for partial, distance in zip(partials, distances, strict=True):
            reach[partial.reduction] = reach.get(partial.reduction, self.zero) + distance
        for number, distance in reach.items():
            reduction = self.nodes.reductions[number]
            while reduction.kind == "via":
                reduction = self.nodes.reductions[reduction.inner]
            known = self.parts.setdefault((reduction.node, reduction.where), distance)
            self.require((known,), (distance,))

    def still(self, *distances: Any) -> None:
        """Nothing moves by these distances."""
        self.require(distances, (self.zero,) * len(distances))

    def node(self, number: int, vector: tuple[Any, ...]) -> None:
        known = self.vectors.get(number)
        if known is not None:
            self.require(known, vector)
            return
        self.vectors[number] = vector
        if number not in self.here.defined:
            return
        match self.nodes[number].definition:
            case Unary(node=operand):
                self.node(operand, vector)
            case Onehot(node=operand):
                self.still(vector[-1])  # a class is read by its number
                self.node(operand, vector[:-1])
            case Restrict(node=operand, blocks=blocks):
                self.block(operand, blocks, vector)
            case Einsum() | Combine() | Most() | Amax() as read:
                self.operands(number, read.reads(), read.outputs, vector)
            case Select() as choice:
                self.still(vector[-1])  # each of the chosen is a function of its own
                self.operands(number, choice.reads(), choice.outputs, vector[:-1])
            case _:
                self.still(*vector)

    def block(self, operand: int, blocks: Sequence[Block], vector: tuple[Any, ...]) -> None:
        """Along an axis of several digits what is left of an axis is no interval: it stays."""
        for axis in {block.axis for block in blocks}:
            full = self.nodes[operand].extents[axis]
            if not is_shift(blocks, axis, full):
                self.still(vector[axis])
        self.node(operand, vector)

    def operands(
        self, number: int, reads: Sequence[Operand], outputs: Sequence[int], vector: tuple[Any, ...]
    ) -> None:
        steps = dict(zip(outputs, vector, strict=True))
        for operand in reads:
            below = [self.zero] * len(self.nodes[operand.node].extents)
            for axis, stride, _, label in operand.intervals:
                step = steps.get(label, self.parts.get((number, label), self.zero))
                if label not in steps and number in self.complete:
                    self.still(step)
                below[axis] = below[axis] + step * stride
            self.node(operand.node, tuple(below))


def follow(
    nodes: NodeTable,
    here: Cone,
    views: Sequence[tuple[Addend, Callable[[int], Any]]],
    zero: Any,
    require: Require = require_equal,
) -> bool:
    """Whether every node moves by one vector in all views, also through the definitions that are
    read.

    Example: the columns of ``x`` and of ``w``, and the range of the partial sum of ``y = x wᵀ``,
    which all begin 8 further on with each rank: one vector for each node, True.

    Each view comes with the distance that its n-th interval moves (intervals of the dimensions,
    fixed intervals, parts).

    ``require``: what is done where distances have to be equal; one that does not raise goes on.
    """
    moves = _Moves(nodes, here, zero, require)
    moves.whole(addend for addend, _ in views)
    vectors = []
    try:
        for addend, distance in views:
            vector = [zero] * len(nodes[addend.node].extents)
            intervals = (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed)
            for n, interval in enumerate(intervals):
                if interval.axis != BROADCAST:
                    vector[interval.axis] = vector[interval.axis] + distance(n) * interval.stride
            moves.ranges(
                addend.partials, [distance(len(intervals) + n) for n in range(len(addend.partials))]
            )
            vectors.append((addend.node, tuple(vector)))
        for node, distances in vectors:
            moves.node(node, distances)
    except Asymmetric:
        return False
    return True


def starts(addend: Addend) -> list[Affine]:
    """Where the intervals of a view begin, in the order of `follow`.

    Example: of ``n3[a0[4], a1[8]] part #0[<8*tp> +8 of 16]`` 0, 0 and ``8*tp``.
    """
    intervals = (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed)
    return [a.start for a in intervals] + [p.start for p in addend.partials]


def attribute_axes(value: Attr) -> set[str]:
    """The coordinates that an attribute depends on.

    Example: of ``(<8*tp + 4>, 3)`` {"tp"}, of a number none.
    """
    if isinstance(value, Affine):
        return set(value.axes)
    if isinstance(value, tuple):
        return {axis for part in value for axis in attribute_axes(part)}
    return set()


def is_even(nodes: NodeTable, here: Cone, lineages: Sequence[Lineage], axis: str) -> bool:
    """Whether the claims along a coordinate are one claim, moved.

    Example: a linear layer of which rank ``tp`` has the columns ``<8*tp> +8 of 16`` of ``x`` and of
    ``w`` is even along ``tp``; where every rank has the columns ``0 +8 of 16`` of ``w``, it is not.
    """
    for number in here.defined:
        if any(f[3].coefficient(axis) for o in operands(nodes, number) for f in o.fixed):
            return False
    views = []
    for lineage in lineages:
        for addend in lineage.addends:
            steps = [start.coefficient(axis) for start in starts(addend)]
            views.append((addend, steps.__getitem__))
    return follow(nodes, here, views, 0)


def is_uniform(
    nodes: NodeTable,
    here: Cone,
    claim: tuple[Sequence[Lineage], Sequence[Lineage]],
    dim: int,
    axis: str,
    step: int,
) -> bool:
    """Whether the claims of the members along a joined coordinate, the ranks of a scatter, are one
    claim, moved.

    Example: of a reduce-scatter of 4 rows to two ranks, rank ``tp`` keeps ``a0[<2*tp> +2 of 4]``:
    one claim, 2 rows further on.

    Each keeps a part of dimension ``dim``, and the next member's begins ``step`` further on;
    ``claim``: (inputs, outputs).
    """
    views = []
    for lineage in claim[0]:
        for addend in lineage.addends:
            moved = _sliced(addend, dim, step, lineage.shape[dim])
            if moved is None:
                return False
            views.append((addend, moved.__getitem__))
    for lineage in claim[1]:
        for addend in lineage.addends:
            steps = [start.coefficient(axis) for start in starts(addend)]
            views.append((addend, steps.__getitem__))
    return follow(nodes, here, views, 0)


def _sliced(addend: Addend, dim: int, step: int, size: int) -> list[int] | None:
    """How far each interval of a view moves where its dimension is cut ``step`` further on (None:
    not one of them alone)."""
    if of_dim(addend, dim):
        return None  # what lies there depends on where it is cut
    moved = [0] * len(starts(addend))
    place = sum(len(d) for d in addend.view.dims[:dim])
    intervals = addend.view.dims[dim]
    if not intervals:
        return None
    outermost = intervals[0]
    inner = size // outermost.size
    if step % inner:
        return None
    moved[place] = step // inner
    return moved


def is_translated(
    nodes: NodeTable,
    mine: tuple[Sequence[Lineage], Sequence[Lineage]],
    other: tuple[Sequence[Lineage], Sequence[Lineage]],
    *,
    adds: bool,
) -> bool:
    """Whether a claim is another one of the same form, moved; each is (inputs, outputs).

    Example: the linear layer of rank 1, with the columns ``8 +8 of 16`` of ``x`` and ``w``, is that
    of rank 0, with the columns ``0 +8 of 16``; with other columns of ``w`` it is not.
    """
    views = []
    for a, b in zip((*mine[0], *mine[1]), (*other[0], *other[1]), strict=True):
        for addend, like in zip(a.addends, b.addends, strict=True):
            steps = [s - t for s, t in zip(starts(addend), starts(like), strict=True)]
            views.append((addend, steps.__getitem__))
    if all(distance(n) == ZERO for addend, distance in views for n in range(len(starts(addend)))):
        return True
    return follow(nodes, cone(nodes, *mine, adds=adds), views, ZERO)
