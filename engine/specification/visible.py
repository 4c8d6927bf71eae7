"""Which entries of nodes are positive behind a causal mask: sums over what is not all hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final, Protocol

from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Combine,
    Einsum,
    Expression,
    Operand,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.boxes import Box
from shardproof.engine.specification.supports import (
    EVERYWHERE,
    Support,
    along_labels,
    both,
    of_block,
    of_rows,
)

#: The causal mask: its entries are 0 where the key is not after the query.
_MASK: Final = Support(order=((0, 1, 0),))
#: Functions that are positive of numbers, and zero of minus infinity.
_VANISHING: Final = frozenset({"exp", "sigmoid", "normal_cdf", "normal_pdf"})
#: Functions that are numbers of what is infinite, too.
_OF_ORDER: Final = frozenset({"step", "sign"})
#: Functions that are positive of positive numbers.
_OF_POSITIVE: Final = frozenset({"inv", "rsqrt", "sqrt"})


class Known(Protocol):
    """What is known of the signs of nodes as wholes (`engine.specification.definedness.Signs`)."""

    nodes: NodeTable

    def positive(self, number: int) -> bool:
        """Whether every entry of a node is positive, at every input."""

    def nonnegative(self, number: int) -> bool:
        """Whether no entry of a node is negative, at any input."""

    def finite(self, number: int) -> bool:
        """Whether no entry is minus infinity."""


class Visible:
    """Where entries of nodes are positive, and where they are numbers, wherever what they are made
    of is defined.

    Example: of exponentials of masked scores, summed over keys 4 to 7, those of queries 4 to 7 are
    positive: each has a key among them.
    """

    def __init__(self, signs: Known) -> None:
        self._signs = signs
        self._positive: list[Support | None] = []
        self._finite: list[Support | None] = []

    def positive(self, number: int, box: Box) -> bool:
        """Whether every entry of a node in a box is positive, at every input."""
        self._read(number)
        support = self._positive[number]
        return support is not None and support.has(box)

    def _read(self, number: int) -> None:
        """Definitions up to this one, in order: each names earlier ones."""
        for place in range(len(self._finite), number + 1):
            definition = self._signs.nodes[place].definition
            finite = self._is_finite(definition)
            if finite is None and self._signs.finite(place):
                below = (self._finite[child] for child in definition.children())
                finite = EVERYWHERE if all(s in (None, EVERYWHERE) for s in below) else None
            positive = EVERYWHERE if self._signs.positive(place) else self._is_positive(definition)
            self._finite.append(finite)
            self._positive.append(positive)

    def _is_finite(self, definition: Expression) -> Support | None:
        match definition:
            case Causal():
                return _MASK
            case Combine(factors=factors, operands=operands, outputs=outputs):
                return self._of_sum(factors, operands, outputs)
            case Einsum(operands=operands, outputs=outputs):
                finite = [self._finite[o.node] for o in operands]
                shown = [support and support.without_hidden() for support in finite]
                return _of_rows(operands, shown, outputs)
            case Amax(sign=1, operand=operand, outputs=outputs):
                return _of_rows([operand], [self._finite[operand.node]], outputs)
            case Restrict(node=node):
                return self._of_block(definition, self._finite[node])
            case Unary(function=function, factor=factor, node=node):
                support = self._finite[node]
                if support is None:
                    return None
                hidden = function in _OF_ORDER or (function in _VANISHING and factor > 0)
                return Support(support.least) if hidden else support.without_hidden()
        return None

    def _is_positive(self, definition: Expression) -> Support | None:
        match definition:
            case Einsum(operands=operands, outputs=outputs):
                if all(self._signs.nonnegative(o.node) for o in operands):
                    return _of_rows(operands, [self._positive[o.node] for o in operands], outputs)
            case Combine(factors=factors, operands=operands, outputs=outputs):
                if all(f > 0 for f in factors):
                    return self._of_addends(operands, outputs)
            case Restrict(node=node):
                return self._of_block(definition, self._positive[node])
            case Unary(function=function, factor=factor, node=node) if function in _VANISHING:
                support = self._finite[node]
                # Of infinity, which the negative of what is hidden is, it is no number.
                return support if factor > 0 or support is None else support.without_hidden()
            case Unary(function=function, factor=factor, node=node) if function in _OF_POSITIVE:
                support = self._positive[node] if factor > 0 else None
                return support and support.without_hidden()
        return None

    def _of_sum(
        self, factors: Sequence[Fraction], operands: Sequence[Operand], outputs: Sequence[int]
    ) -> Support | None:
        """A sum is a number where all addends are; hidden where one is that it adds, and the others
        are numbers."""
        supports = []
        for factor, operand in zip(factors, operands, strict=True):
            support = self._finite[operand.node]
            read = None if support is None else along_labels(support, operand)
            # What subtracts minus infinity is not hidden.
            read = read if read is None or factor > 0 else read.without_hidden()
            if read is None:
                return None
            supports.append(read)
        return both(supports).renamed({label: axis for axis, label in enumerate(outputs)})

    def _of_addends(self, operands: Sequence[Operand], outputs: Sequence[int]) -> Support | None:
        """A sum of what is not negative is positive where an addend is, and the others are numbers;
        of several that are, where the one is that has fewest conditions."""
        supports = []
        for operand in operands:
            support = self._positive[operand.node]
            if not self._signs.nonnegative(operand.node):
                return None
            if support is None and not self._signs.finite(operand.node):
                return None
            read = None if support is None else along_labels(support, operand)
            if support is not None and read is None:
                return None
            supports.append(read)
        some = [support for support in supports if support is not None]
        if not some:
            return None
        least = both(Support(support.least) for support in some)
        one = min(some, key=lambda support: (len(support.shown) + len(support.order), support))
        axes = {label: axis for axis, label in enumerate(outputs)}
        return both([least, one]).renamed(axes)

    def _of_block(self, block: Restrict, support: Support | None) -> Support | None:
        if support is None:
            return None
        return of_block(support, block, self._signs.nodes[block.node].extents)


def _of_rows(
    operands: Sequence[Operand], supports: Sequence[Support | None], outputs: Sequence[int]
) -> Support | None:
    """Rows in which some position is in the supports of all operands."""
    pairs = zip(operands, supports, strict=True)
    read = [None if support is None else along_labels(support, o) for o, support in pairs]
    known = [support for support in read if support is not None]
    if len(known) < len(read):
        return None
    return of_rows(both(known), outputs, _extents(operands))


def _extents(operands: Iterable[Operand]) -> dict[int, int]:
    """How far each label runs: as far as the axes that have an end."""
    extents: dict[int, int] = {}
    for _, _, extent, label in (i for operand in operands for i in operand.intervals):
        extents[label] = max(extent, extents.get(label, 0))
    return extents
