"""Functions of entries: as nodes of their own, or as what laws say that they are."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Unary
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Lineage,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.ops.laws import size_apart
from shardproof.engine.ops.primitives import is_partial, labels
from shardproof.partition.inference.closing import closed_parts, composed
from shardproof.partition.inference.laws import Factor, factors_of, rewritten
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.products import Products
from shardproof.partition.inference.values import tried


class Functions(Products):
    """Functions over lineages.

    Example: ``inv`` of ``n18[a0[4]]``, where ``n18`` is ``n1[a] n5[a]``, is the product of
    ``inv(n1)`` and ``inv(n5)``.
    """

    def summed(self, x: Lineage) -> Lineage:
        """The sum over the first dimension."""
        names = labels(len(x.shape))
        return self.einsum(f"{names}->{names[1:]}", x)

    def summed_up(self, x: Lineage) -> Lineage:
        """Parts of several sums, each of a block, as the one value that they add up to, where the
        single-device program has that; ``x`` where it has none.

        Example: the gradient of a bias behind a fused projection, to which queries, keys and values
        have come by different ways.
        """
        if has_places(x):
            try:
                return each([x], lambda own: self.summed_up(own[0]))
            except Misaligned:
                return x
        whole = self.closed(x) if len(x.addends) > 1 else None
        size = self.reference_size
        if whole is None or (size is not None and whole.addends[0].node >= size):
            return x
        return whole

    def _block(self, x: Lineage) -> Lineage:
        """Parts of a sum over constant blocks as the sum over these blocks alone; as they are where
        they are none."""
        if has_places(x) or not (x.addends and all(t.partials for t in x.addends)):
            return x
        made = tried(lambda t: closed_parts(self.table, t, self._closed_product, self.fold), x)
        return x if made is None else Lineage(x.shape, (made,))

    def _reciprocals(self, addend: Addend) -> Addend | None:
        """1 / (a b) as 1 / a times 1 / b; None if the addend is no product."""
        if addend.view.fixed:
            return self._reciprocals_at(addend)
        flat = [interval for dim in addend.view.dims for interval in dim]
        numbers = iter(range(len(flat)))
        dims: list[list[int | StridedInterval]] = [
            [a if a.axis == BROADCAST else n for a, n in zip(dim, numbers, strict=False)]
            for dim in addend.view.dims
        ]
        real = {n: a for n, a in enumerate(flat) if a.axis != BROADCAST}
        whole = Factor(addend, tuple((interval, n) for n, interval in real.items()))
        factors = factors_of(self.table, whole)
        if len(factors) < 2 or not addend.factor:
            return None
        factor = 1 / addend.factor
        inverse: list[Addend] = []
        for one in factors:
            own = View(tuple((interval,) for interval, _ in one.intervals), one.addend.view.fixed)
            made = self._function("inv", one.addend._replace(view=own))
            factor *= made.factor
            inverse.append(made)
        self.rewrote = True
        extents = {n: interval.extent for n, interval in real.items()}
        intervals = [one.intervals for one in factors]
        return self._product_addend(
            factor, inverse, intervals, dims, frozenset(real), extents, real
        )

    def _reciprocals_at(self, addend: Addend) -> Addend | None:
        """`_reciprocals` of a view that has one position of some axis: of the whole node, there.

        Example: of ``a b`` at head ``<tp>`` of 2, ``1 / a`` times ``1 / b`` at that head.
        """
        extents = self.table[addend.node].extents
        if addend.partials or ABSOLUTE in extents:
            return None
        axes = tuple((StridedInterval(k, 1, n, ZERO, n),) for k, n in enumerate(extents))
        whole = self._reciprocals(Addend(addend.factor, addend.node, View(axes)))
        try:
            return whole and composed(addend._replace(factor=Fraction(1)), whole)
        except Misaligned:
            return None

    def has_zeros(self, number: int) -> bool:
        """Whether a node is a sum of what is centred, as far as that is seen at once.

        Example: ``sum(x - mean(x))`` is.
        """
        return self._zeros.seems_zero(number) and self._zeros.rest(number) is not None

    def _function(self, function: str, addend: Addend) -> Addend:
        known = rewritten(self.table, function, addend)
        if known is not None:
            self.rewrote = True
            self._note_powers(known)
            return known
        if is_partial(function):
            self.partial.append((function, addend))
        factor, inner = size_apart(function, addend.factor)
        if function == "inv" and inner:
            # A constant is not part of what is divided by: 1 / (n / 2) is 2 / n.
            inner, factor = factor, 1 / inner
        operand = self.table[addend.node]
        node = self.table.define(
            Unary(function, inner, addend.node), operand.extents, operand.coordinates
        )
        return Addend(factor, node, addend.view)

    def _note_powers(self, addend: Addend) -> None:
        """A power of a power is defined where the inner one is and the power that both are."""
        match self.table[addend.node].definition:
            case Unary(function=function, factor=factor, node=node) if is_partial(function):
                self.partial.append((function, addend._replace(factor=factor, node=node)))
