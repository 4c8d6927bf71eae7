"""Parts of sums as what they are at each of their positions, where the single device has those.

The single device adds up what each expert gives, so it has one row of the router's matrix in each
product.  A rank with two experts has part of the sum over all rows.  Beside products of one row
nothing joins it; as two products of one row each it is an addend like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from string import ascii_letters
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.closing import composed

#: Positions of a part of a sum that are read one by one.
MOST_POSITIONS = 16


class _Digit(NamedTuple):
    """An axis of a node, and how it is read."""

    node: int
    axis: int
    stride: int
    extent: int


class OneByOne:
    """Parts of sums over axes that the single device reads position by position.

    Example: of the sum over four rows of ``n2[a:4, b:6] n9[a:4, c:8]``, the part over the rows 0
    and 1 is ``n2[0, b] n9[0, c]`` and ``n2[1, b] n9[1, c]``, where the single device reads rows of
    ``n2``.
    """

    def __init__(
        self, table: NodeTable, reference_size: int, einsum: Callable[..., Lineage]
    ) -> None:
        """``einsum``: products over lineages."""
        self._table = table
        self._reference_size = reference_size
        self._einsum = einsum

    @cached_property
    def _read(self) -> frozenset[_Digit]:
        """What the single device reads one position of."""
        definitions = (self._table[n].definition for n in range(self._reference_size))
        return frozenset(
            _Digit(operand.node, axis, stride, extent)
            for definition in definitions
            if isinstance(definition, Einsum | Combine)
            for operand in definition.operands
            for axis, stride, extent, _ in operand.fixed
        )

    def fit(self, addends: Sequence[Addend]) -> bool:
        """Whether all partial addends are of sums that ranks alone have, over such positions.

        Example: ``n9[a0[4]] part #3[0 +2 of 4]``, where ``#3`` are the rows of the router.
        """
        return all(self._fits(addend) for addend in addends if addend.partials)

    def _fits(self, addend: Addend) -> bool:
        (part, *more), definition = addend.partials, self._table[addend.node].definition
        if more or part.size > MOST_POSITIONS or part.start.terms:
            return False
        if addend.node < self._reference_size:
            # A part of what the single device has, too, is best kept as that.
            return False
        reduction = self._table.reductions[part.reduction]
        direct = (reduction.kind, reduction.node) == ("sum", addend.node)
        if not direct or not isinstance(definition, Einsum):
            return False
        read = [
            _Digit(operand.node, *interval[:3])
            for operand in definition.operands
            for interval in operand.intervals
            if interval[-1] == reduction.where
        ]
        whole = all(digit.extent == part.extent for digit in read)
        return whole and not self._read.isdisjoint(read)

    def of(self, addends: Sequence[Addend]) -> list[Addend]:
        """The addends, each position of partial ones by itself, where these fit.

        Example: ``n9[a0[4]] part #3[0 +2 of 4]`` as ``n20[a0[4]]`` and ``n21[a0[4]]``.
        """
        return [t for own in addends for t in (self._apart(own) if own.partials else [own])]

    def _apart(self, addend: Addend) -> Iterator[Addend]:
        (part,), definition = addend.partials, self._table[addend.node].definition
        assert isinstance(definition, Einsum)
        label = self._table.reductions[part.reduction].where
        for position in range(part.start.const, part.start.const + part.size):
            yield from self._at(addend, definition, label, position)

    def _at(self, addend: Addend, definition: Einsum, label: int, position: int) -> list[Addend]:
        """What is added at one position of a label."""
        names: list[str] = []
        operands: list[Lineage] = []
        for operand in definition.operands:
            kept = [own for own in operand.intervals if own[-1] != label]
            names.append("".join(ascii_letters[own[-1]] for own in kept))
            dims = tuple((StridedInterval(a, s, n, ZERO, n),) for a, s, n, _ in kept)
            view = View(dims, _fixed(operand, label, position))
            shape = tuple(n for _, _, n, _ in kept)
            operands.append(Lineage(shape, (Addend(Fraction(1), operand.node, view),)))
        output = "".join(ascii_letters[x] for x in definition.outputs)
        made = self._einsum(f"{','.join(names)}->{output}", *operands)
        return [composed(addend._replace(partials=()), t) for t in made.addends]


def _fixed(operand: Operand, label: int, position: int) -> tuple[StridedInterval, ...]:
    """What an operand reads one position of, where a label is at one."""
    known = [StridedInterval(a, s, n, start, 1) for a, s, n, start in operand.fixed]
    here = [
        StridedInterval(a, s, n, affine(position), 1)
        for a, s, n, own in operand.intervals
        if own == label
    ]
    return (*known, *here)
