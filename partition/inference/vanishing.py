"""Sums that are zero, of what is centred, and sums that are divided by themselves.

The sum of ``x - mean(x)`` is zero, whatever it is multiplied with that does not vary along it.
That is seen where a sum is written as a sum of products: what is left of these cancels, or does
not.  Products are compared times all that some of them are divided by more often than others: with
``S = sum(e)``, ``sum(e g) / S - S sum(e g) / S^2`` is zero.  A sum of weights ``e / S`` is 1.

Like all of inference that is a claim; the obligation of the operator states it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.claims.cone import operands
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand, Unary
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.primitives import labels
from shardproof.partition.inference import classes
from shardproof.partition.inference.opened import opened
from shardproof.partition.inference.substitution import Labels, Read, TooLarge

#: Products that a sum is written as, and factors of one.
MOST_PRODUCTS, MOST_FACTORS = 32, 24
#: Sums along the labels that are opened, one under the other.
DEEPEST = 3
#: Definitions under a sum that are looked at for one that is worth opening.
MOST_LOOKED_AT = 60
#: How often labels are told apart by what is read beside them.
ROUNDS = 3


class _Product(NamedTuple):
    """``summed``: the labels that the product is summed over."""

    factor: Fraction
    leaves: tuple[Read, ...]
    summed: frozenset[int]


@dataclass(slots=True)
class _Expansion:
    """Writes sums as sums of products, in labels of its own; ``closed``: not by these."""

    table: NodeTable
    closed: frozenset[int] = frozenset()
    labels: Labels = field(default_factory=Labels)
    opened: set[int] = field(default_factory=set)

    def multiplied(
        self, leaves: Sequence[Read], over: frozenset[int], depth: int
    ) -> list[_Product]:
        """The product of some leaves; sums that run along ``over`` are opened ``depth`` times."""
        whole = [_Product(Fraction(1), (), frozenset())]
        for leaf in leaves:
            opened = self._open(leaf, over, depth)
            whole = [
                _Product(p.factor * q.factor, p.leaves + q.leaves, p.summed | q.summed)
                for p, q in product(whole, opened)
            ]
            if len(whole) > MOST_PRODUCTS or any(len(p.leaves) > MOST_FACTORS for p in whole):
                raise TooLarge
        return whole

    def _open(self, leaf: Read, over: frozenset[int], depth: int) -> list[_Product]:
        if leaf.node == self.table.one:
            return [_Product(Fraction(1), (), frozenset())]
        node = self.table[leaf.node]
        definition = node.definition
        known = not node.coordinates and not self.table.is_masked(leaf.node)
        known = known and leaf.node not in self.closed
        if known and isinstance(definition, Einsum):
            self.opened.add(leaf.node)
            inner: dict[int, int] = {}
            below = [
                self.labels.substituted(o, leaf, definition.outputs, inner, place)
                for place, o in enumerate(definition.operands)
            ]
            own = frozenset(inner.values())
            return [p._replace(summed=p.summed | own) for p in self.multiplied(below, over, depth)]
        if known and isinstance(definition, Combine) and depth and over & leaf.labels():
            self.opened.add(leaf.node)
            read = [
                self.labels.substituted(o, leaf, definition.outputs, {}, place)
                for place, o in enumerate(definition.operands)
            ]
            return [
                p._replace(factor=p.factor * factor)
                for factor, o in zip(definition.factors, read, strict=True)
                for p in self._open(o, over, depth - 1)
            ]
        return [_Product(Fraction(1), (leaf,), frozenset())]

    def divided(self, leaf: Read, outputs: frozenset[int]) -> tuple[Fraction, Read] | None:
        """What a factor is one over, and its factor; None where it is no reciprocal, or differs
        along what is summed."""
        definition = self.table[leaf.node].definition
        if not isinstance(definition, Unary) or definition.function != "inv":
            return None
        if not leaf.labels() <= outputs or not definition.factor:
            return None
        return definition.factor, leaf._replace(node=definition.node)

    def cleared(self, products: list[_Product], outputs: frozenset[int]) -> list[_Product]:
        """Products times what some of them are divided by more often than others, which is not
        zero: a sum of them is zero where that of these is."""
        products = [p._replace(leaves=_without_paths(p.leaves)) for p in products]
        done: set[Read] = set()
        while divisor := next(
            (
                (leaf, by)
                for p in products
                for leaf in p.leaves
                if leaf not in done and (by := self.divided(leaf, outputs))
            ),
            None,
        ):
            leaf, (factor, below) = divisor
            done.add(leaf)
            most = max(p.leaves.count(leaf) for p in products)
            if all(p.leaves.count(leaf) == most for p in products):
                continue
            self.opened.add(leaf.node)
            products = [q for p in products for q in self._times(p, leaf, factor, below, most)]
            if len(products) > MOST_PRODUCTS:
                raise TooLarge
        return products

    def _times(
        self, one: _Product, leaf: Read, factor: Fraction, below: Read, most: int
    ) -> list[_Product]:
        """A product times so many of what it is divided by that no such factor is left."""
        missing = most - one.leaves.count(leaf)
        kept = tuple(x for x in one.leaves if x != leaf)
        grown = [_Product(one.factor * factor**missing, kept, one.summed)]
        for _ in range(missing):
            grown = [
                _Product(
                    p.factor * q.factor, p.leaves + _without_paths(q.leaves), p.summed | q.summed
                )
                for p in grown
                for q in self.multiplied([below], below.labels(), 1)
            ]
        if any(len(p.leaves) > MOST_FACTORS for p in grown):
            raise TooLarge
        return grown

    def settled(self, one: _Product) -> _Product:
        """A product in which what is summed and nothing varies along is counted."""
        used = frozenset[int]().union(*(leaf.labels() for leaf in one.leaves))
        count = prod(self.labels.extents[label] for label in one.summed - used)
        return _Product(one.factor * count, one.leaves, one.summed & used)

    def form(self, one: _Product, outputs: Sequence[int]) -> object:
        """A product without names: equal products have equal forms.  Labels go by where they are
        read, and by what is read there beside; few unlike products are alike in that."""
        names: dict[int, Hashable] = {label: n for n, label in enumerate(outputs)}
        summed = [(label, (self.labels.extents[label],)) for label in sorted(one.summed)]
        names.update((label, extent) for label, extent in summed if label not in names)

        def read(leaf: Read) -> Hashable:
            return leaf.node, leaf.fixed, tuple((*i[:3], names[i[3]]) for i in leaf.intervals)

        for _ in range(ROUNDS):
            around: dict[int, list[int]] = {}
            for leaf in one.leaves:
                seen = hash(read(leaf))
                for a, s, n, label in leaf.intervals:
                    around.setdefault(label, []).append(hash((seen, a, s, n)))
            names.update((label, hash(tuple(sorted(around[label])))) for label, _ in summed)
        return tuple(sorted(hash(read(leaf)) for leaf in one.leaves))


def _without_paths(leaves: Sequence[Read]) -> tuple[Read, ...]:
    """Factors that are read alike, wherever they come from, are equal."""
    return tuple(leaf._replace(path=()) for leaf in leaves)


class Rest(NamedTuple):
    """What is left of a sum without what is zero in it, over all axes of its node; ``opened``: the
    definitions that show it.

    Example: of ``sum(x - mean(x))`` the lineage has no addends.
    """

    lineage: Lineage
    opened: frozenset[int]


class Zeros:
    """The sums of a table that have zeros in them; ``einsum`` and ``fold`` make products and sums
    of lineages.

    Example: of a layer norm's gradient, the sum of what comes through the variance.
    """

    def __init__(
        self,
        table: NodeTable,
        einsum: Callable[[str, Lineage], Lineage],
        fold: Callable[[Lineage], Lineage],
    ) -> None:
        self.table = table
        self._einsum = einsum
        self._fold = fold
        self._known: dict[int, Rest | None] = {}
        self._centred: dict[int, frozenset[int]] = {}

    def seems_zero(self, number: int) -> bool:
        """Whether a sum runs along what looks centred: `rest` tells whether it is,
        which costs more.

        Example: of ``sum((x - mean(x)) y)``, where y does not vary along x, it does.
        """
        definition = self.table[number].definition
        if not isinstance(definition, Einsum):
            return False
        kept = set(definition.outputs)
        if classes.has_named(self.table, definition):
            return True
        return not self._alone(definition.operands) <= kept

    def _alone(self, operands: Sequence[Operand]) -> set[int]:
        """The labels of one operand alone, which looks centred along them."""
        read = [label for o in operands for *_, label in o.intervals]
        return {x for o in operands for x in self._along(o) if read.count(x) == 1}

    def _along(self, operand: Operand) -> set[int]:
        """The labels of whole axes along which an operand looks centred."""
        extents, axes = self.table[operand.node].extents, self.centred(operand.node)
        return {x for a, s, n, x in operand.intervals if a in axes and s == 1 and n == extents[a]}

    def centred(self, number: int) -> frozenset[int]:
        """The axes along which a node looks centred: it is ``x - sum(x) / n``, or a product or a
        sum of such values.

        Example: ``(x - mean(x)) rsqrt(v)`` does along the axis of the mean.
        """
        known = self._centred.get(number)
        if known is None:
            self._centred[number] = frozenset()
            definition = self.table[number].definition
            along: set[int] = set()
            if isinstance(definition, Einsum):
                along = self._alone(definition.operands)
            elif isinstance(definition, Combine):
                along = self._added(definition.operands)
            outputs = getattr(definition, "outputs", ())
            known = frozenset(axis for axis, label in enumerate(outputs) if label in along)
            self._centred[number] = known
        return known

    def _added(self, operands: Sequence[Operand]) -> set[int]:
        """The labels along which a sum looks centred: each operand does, or is added up along them
        in another one, or is such a sum."""
        names = [{label for *_, label in o.intervals} for o in operands]
        sums = [self._of_which(o) for o in operands]
        nodes = [o.node for o in operands]

        def holds(label: int, place: int) -> bool:
            if label not in names[place]:
                return sums[place] in nodes
            return nodes[place] in sums or label in self._along(operands[place])

        every = range(len(operands))
        return {x for x in set().union(*names) if all(holds(x, place) for place in every)}

    def _of_which(self, operand: Operand) -> int:
        """The node of which an operand is a sum (-1: of none)."""
        definition = self.table[operand.node].definition
        one = isinstance(definition, Einsum) and len(definition.operands) == 1
        return definition.operands[0].node if one and isinstance(definition, Einsum) else -1

    def rest(self, number: int) -> Rest | None:
        """A node without what is zero in it; None where nothing is.

        Example: of ``sum(x + (y - mean(y)))`` it is ``sum(x)``.
        """
        if number not in self._known:
            definition = self.table[number].definition
            made = None
            if isinstance(definition, Einsum):
                made = self._without_classes(definition)
                if made is None and is_centred(self.table, definition):
                    made = self._rest(number, definition)
            self._known[number] = made
        return self._known[number]

    def _without_classes(self, definition: Einsum) -> Rest | None:
        """A sum over classes without the one-hots that add up to 1 over them."""
        made = classes.without(self.table, definition, self._einsum)
        if made is None or any(t.partials or t.places for t in made[0].addends):
            return None
        return Rest(*made)

    def _rest(self, number: int, definition: Einsum) -> Rest | None:
        by = zero(self.table, definition)
        if by is not None:
            return Rest(Lineage(self.table[number].extents, ()), by)
        operand = definition.operands[0]
        total = self.table[operand.node]
        whole = [(axis, 1, extent) for axis, extent in enumerate(total.extents)]
        read = [interval[:3] for interval in operand.intervals]
        several = len(definition.operands) > 1 or not isinstance(total.definition, Combine)
        if several or operand.fixed or read != whole:
            return None
        axes = tuple((StridedInterval(*i, ZERO, i[2]),) for i in whole)
        parts = opened(self.table, Addend(Fraction(1), operand.node, View(axes)))
        zeros = [zero(self.table, definition, [place]) for place in range(len(parts))]
        kept = tuple(part for part, by in zip(parts, zeros, strict=True) if by is None)
        if len(kept) == len(parts):
            return None
        names = labels(max(label for *_, label in operand.intervals) + 1)
        inner = "".join(names[label] for *_, label in operand.intervals)
        output = "".join(names[label] for label in definition.outputs)
        made = self._einsum(f"{inner}->{output}", self._fold(Lineage(total.extents, kept)))
        if any(t.partials or t.places for t in made.addends):
            return None
        shown = frozenset({operand.node}).union(*(by for by in zeros if by is not None))
        return Rest(made, shown)


def zero(
    table: NodeTable, definition: Einsum, factors: Sequence[int] | None = None
) -> frozenset[int] | None:
    """The nodes by whose definitions a sum of products is seen to be zero (None: it is not);
    ``factors``: over these of the operands of its one operand alone, which is a sum.

    Example: ``x - sum(x) / 4`` and ``sum(x)``, of ``sum(x - sum(x) / 4)`` over 4 entries of ``x``.
    """
    for depth in range(1, DEEPEST + 1):
        opened = _vanishes(table, definition, depth, factors)
        if opened is None:
            continue
        # A claim is the easier, the less of what is below it reads.
        closed: frozenset[int] = frozenset()
        for number in sorted(opened):
            fewer = _vanishes(table, definition, depth, factors, closed | {number})
            if fewer is not None:
                closed, opened = closed | {number}, fewer
        return opened
    return None


def _vanishes(
    table: NodeTable,
    definition: Einsum,
    depth: int,
    chosen: Sequence[int] | None,
    closed: frozenset[int] = frozenset(),
) -> frozenset[int] | None:
    expansion = _Expansion(table, closed)
    names: dict[int, int] = {}
    try:
        for operand in definition.operands:
            for *_, extent, label in operand.intervals:
                if label not in names:
                    names[label] = expansion.labels.new(extent)
        outputs = [names[label] for label in definition.outputs]
        over = frozenset(names.values()) - frozenset(outputs)
        leaves = [
            Read(o.node, tuple((a, s, n, names[x]) for a, s, n, x in o.intervals), o.fixed)
            for o in definition.operands
        ]
        totals: dict[object, Fraction] = {}
        every = list(_products(expansion, leaves, over, depth, chosen))
        for one in expansion.cleared(every, frozenset(outputs)):
            settled = expansion.settled(one._replace(summed=one.summed | over))
            form = expansion.form(settled, outputs)
            totals[form] = totals.get(form, Fraction(0)) + settled.factor
    except TooLarge:
        return None
    return None if any(totals.values()) else frozenset(expansion.opened)


def _products(
    expansion: _Expansion,
    leaves: Sequence[Read],
    over: frozenset[int],
    depth: int,
    chosen: Sequence[int] | None,
) -> Iterator[_Product]:
    if chosen is None:
        yield from expansion.multiplied(leaves, over, depth)
        return
    (leaf,) = leaves
    total = expansion.table[leaf.node].definition
    assert isinstance(total, Combine)
    for place in chosen:
        read = expansion.labels.substituted(total.operands[place], leaf, total.outputs, {}, place)
        for one in expansion.multiplied([read], over, depth - 1):
            yield one._replace(factor=one.factor * total.factors[place])


def is_centred(table: NodeTable, definition: Einsum) -> bool:
    """Whether a sum runs along a sum to which what was summed along the same is added: only then
    is it looked at whether it is zero.

    Example: ``sum(x - mean(x))`` does.
    """
    summed = {x for o in definition.operands for *_, x in o.intervals} - {*definition.outputs}
    todo = [
        (o.node, frozenset(a for a, s, n, x in o.intervals if x in summed and s == 1), DEEPEST)
        for o in definition.operands
    ]
    for _ in range(MOST_LOOKED_AT):
        if not todo:
            return False
        number, axes, depth = todo.pop()
        node = table[number]
        inner = node.definition
        if not isinstance(inner, Einsum | Combine) or not depth or not axes:
            continue
        labels = {inner.outputs[axis] for axis in axes}
        for o in operands(table, number):
            own = frozenset(a for a, s, n, x in o.intervals if x in labels and s == 1)
            if isinstance(inner, Combine) and _has_sum(table, o, labels):
                return True
            todo.append((o.node, own, depth - isinstance(inner, Combine)))
    return False


def _has_sum(table: NodeTable, operand: Operand, labels: set[int], depth: int = 3) -> bool:
    """Whether an operand has a factor that does not run along some labels and is a sum."""
    definition = table[operand.node].definition
    if not isinstance(definition, Einsum):
        return False
    names = {x for *_, x in operand.intervals}
    inner = {x for o in definition.operands for *_, x in o.intervals}
    if not labels & names and inner - {*definition.outputs}:
        return True
    if not depth:
        return False
    along = {
        definition.outputs[axis] for axis, s, n, x in operand.intervals if x in labels and s == 1
    }
    return any(_has_sum(table, o, along, depth - 1) for o in definition.operands)
