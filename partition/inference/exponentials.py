"""Exponentials of sums, and what their exponents differ in from those of the single device.

``exp(x - m)`` with any ``m`` is ``exp(x - M)`` times ``exp(M)`` times ``exp(-m)``: a softmax in
blocks subtracts the largest entry so far, the single-device program the largest of all.  Written as
the single-device program's exponential times others, sums of both are parts of one sum, and what is
subtracted cancels in the quotient, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Amax, Combine, Operand, Unary
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned, constant_interval, merge
from shardproof.partition.inference.canonical import canonical
from shardproof.partition.inference.closing import composed
from shardproof.partition.inference.masks import is_mask
from shardproof.partition.inference.views import result_view
from shardproof.partition.inference.visible import shows_all
from shardproof.partition.inference.windows import Reads, Windows


class Exponential(NamedTuple):
    """An exponential of a view, as one of the single-device program's, and what else its exponent
    has: ``exp(x - M)`` and ``-M``, for ``exp(x)``.

    Example: where the single device has ``exp(x - M)`` as ``n4``,
    ``Exponential(n4[a0[4], a1[8]], (-1*n2[a0[4], _[8]],))`` for ``exp(x)``, with ``n2`` the maxima
    of rows.
    """

    power: Addend
    rest: tuple[Addend, ...]


_Exponent = list[tuple[Fraction, Operand]]


class References:
    """The exponentials of a program whose nodes are the first ``size`` of a table.

    Example: of a softmax, the one node ``exp(x - M)``; ``of`` gives it for ``x``, None for a tensor
    that it has not in its exponent.
    """

    def __init__(self, table: NodeTable, size: int) -> None:
        self.table = table
        self.size = size
        self._read: dict[int, list[tuple[int, _Exponent, int]]] = {}
        for number in range(size):
            definition = table[number].definition
            if isinstance(definition, Unary) and definition.function == "exp":
                for exponent in _exponents(table, definition):
                    for place, (_, operand) in enumerate(exponent):
                        self._read.setdefault(operand.node, []).append((number, exponent, place))

    def has(self, addend: Addend) -> bool:
        """Whether the exponential of an addend is one of them as it is."""
        number = self.table.find(Unary("exp", addend.factor, addend.node))
        return number is not None and number < self.size

    def of(self, addend: Addend) -> Exponential | None:
        """The exponential of an addend, by one of them that has it in its exponent and varies along
        nothing else; None where none has."""
        for number, read, place in self._read.get(addend.node, ()):
            factor, operand = read[place]
            if factor == addend.factor:
                made = self._by(number, addend, operand, [*read[:place], *read[place + 1 :]])
                if made is not None:
                    return made
        return None

    def _by(
        self,
        number: int,
        addend: Addend,
        operand: Operand,
        others: Sequence[tuple[Fraction, Operand]],
    ) -> Exponential | None:
        axes = _whole_axes(self.table, operand)
        if axes is None or len(axes) < len(self.table[number].extents):
            return None
        power = _along(addend, axes, number)
        rest = []
        for factor, other in others:
            own = _whole_axes(self.table, other)
            if own is None:
                return None
            there = {label: axis for axis, label in own.items()}
            inside = {axis: there[label] for axis, label in axes.items() if label in there}
            beside = _along(addend, inside, other.node)._replace(factor=factor)
            if is_mask(self.table, beside):
                if not shows_all(self.table, beside):
                    return None
            else:
                rest.append(beside)
        return Exponential(power, tuple(rest))


def _exponents(table: NodeTable, power: Unary) -> Iterator[_Exponent]:
    """What the exponent of an exponential adds up; and, where a masked sum is among that, what it
    adds up with that sum opened: the scores and the mask."""
    read = _exponent(table, power)
    yield read
    for place, (factor, operand) in enumerate(read):
        total, axes = table[operand.node].definition, _whole_axes(table, operand)
        if axes is None or not isinstance(total, Combine) or not table.is_masked(operand.node):
            continue
        labels = {label: axes[axis] for axis, label in enumerate(total.outputs)}
        inner = [
            (
                factor * f,
                o._replace(intervals=tuple((a, s, n, labels[x]) for a, s, n, x in o.intervals)),
            )
            for f, o in zip(total.factors, total.operands, strict=True)
        ]
        yield [*read[:place], *inner, *read[place + 1 :]]


def _exponent(table: NodeTable, power: Unary) -> _Exponent:
    """What the exponent of an exponential adds up: operands, whose labels are its axes."""
    node = table[power.node]
    if isinstance(node.definition, Combine):
        total = node.definition
        outputs = {label: axis for axis, label in enumerate(total.outputs)}
        return [
            (
                power.factor * factor,
                o._replace(intervals=tuple((a, s, n, outputs[x]) for a, s, n, x in o.intervals)),
            )
            for factor, o in zip(total.factors, total.operands, strict=True)
        ]
    whole = tuple((axis, 1, extent, axis) for axis, extent in enumerate(node.extents))
    return [(power.factor, Operand(power.node, whole))]


def _whole_axes(table: NodeTable, operand: Operand) -> dict[int, int] | None:
    """Which label each axis of an operand runs along; None unless it is read as a whole (a mask
    has no end: as far as the others go)."""
    extents = table[operand.node].extents
    axes = {axis: label for axis, stride, n, label in operand.intervals if stride == 1}
    whole = all(extents[axis] in (n, ABSOLUTE) for axis, _, n, _ in operand.intervals)
    if operand.fixed or not whole or len(set(axes.values())) < len(extents):
        return None
    return axes


def _along(addend: Addend, axes: dict[int, int], node: int) -> Addend:
    """The view of another node at the positions of a view, whose axes are ``axes`` there."""

    def reindexed(intervals: Sequence[StridedInterval]) -> Iterator[StridedInterval]:
        for a in intervals:
            there = axes.get(a.axis) if a.axis != BROADCAST else None
            yield constant_interval(a.size) if there is None else a._replace(axis=there)

    dims = tuple(merge(tuple(reindexed(dim))) for dim in addend.view.dims)
    fixed = tuple(a for a in reindexed(addend.view.fixed) if a.axis != BROADCAST)
    return Addend(Fraction(1), node, View(dims, fixed))


def closed_maximum(windows: Windows, addend: Addend) -> Addend:
    """The maximum over part of a range as the maximum over that block alone, over one position as
    what is there; raises `Misaligned` where it is no constant block.

    Example: of the largest of ``x[0:8]``, the part ``[0, 4)`` is the largest of a block of ``x``,
    and the part ``[3, 4)`` is ``x[3]``.
    """
    table = windows.table
    definition = table[addend.node].definition
    if not isinstance(definition, Amax) or any(p.start.terms for p in addend.partials):
        raise Misaligned
    own = {table.reductions[p.reduction].where: p for p in addend.partials}
    kinds = {table.reductions[p.reduction].kind for p in addend.partials}
    if kinds != {"max"} or len(own) < len(addend.partials):
        raise Misaligned
    operand, outputs = definition.operand, definition.outputs
    read: dict[int, StridedInterval] = {}
    for axis, stride, extent, label in operand.intervals:
        part = own.get(label)
        if label in read or (part is not None and part.extent != extent):
            raise Misaligned  # a label that runs along two axes, or every so many positions
        start, size = (ZERO, extent) if part is None else (part.start, part.size)
        read[label] = StridedInterval(axis, stride, extent, start, size)
    fixed = tuple(StridedInterval(a, s, e, start, 1) for a, s, e, start in operand.fixed)
    single = {label for label in own if read[label].size == 1}
    fixed += tuple(read.pop(label) for label in single)
    view = Addend(Fraction(1), operand.node, View(tuple((a,) for a in read.values()), fixed))
    if len(read) == len(outputs):
        whole_view = View(tuple((read[label],) for label in outputs), fixed)
        there = Addend(Fraction(definition.sign), operand.node, whole_view)
        return composed(addend._replace(partials=()), there)
    reads = Reads(windows, [view])
    intervals = {
        label: reads.label(label, [interval], [0], closed=label in own)
        for label, interval in read.items()
    }
    if any(interval.axis == BROADCAST for interval in intervals.values()):
        raise Misaligned
    (whole,), (atoms,) = reads.settled()
    extents = {label: interval.extent for label, interval in intervals.items()}
    form = canonical([(whole.node, atoms, whole.view.fixed, ())], frozenset(outputs), extents)
    axes = tuple(form.extents[x] for x in form.outputs)
    coordinates = table[whole.node].coordinates
    made = Amax(definition.sign, form.operands[0], form.outputs)
    node = table.define(made, axes, coordinates)
    result = result_view([[label] for label in outputs], form.labels, form.outputs, intervals)
    return composed(addend._replace(partials=()), Addend(Fraction(1), node, result))
