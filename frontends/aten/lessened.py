"""Entries that ids looked up, less what the same ids decide, and written back over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.ids import Ids, ids, inverse, wrapped
from shardproof.frontends.aten.lookups import Lookup, Zeroed
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    Unviewed,
)
from shardproof.frontends.aten.scattered import Scattered
from shardproof.frontends.builder import piecewise


@dataclass(frozen=True, slots=True)
class Less(Unviewed):
    """A lookup of entries, less ``factor`` times a number that ids decide: what is written back
    over them.

    Example: ``x[torch.arange(n), ids] - update``, which Megatron's vocabulary-parallel cross
    entropy writes back into ``x``: ``update`` is 1 for ids that the rank has, 0 for others; where
    labels are smoothed by a tenth, 0.9 of that.
    """

    about = "entries that are written back"

    lookup: Lookup
    number: Ids
    factor: Fraction = Fraction(1)

    @property
    def shape(self) -> Shape:
        """That of the entries."""
        return self.lookup.shape

    @property
    def dtype(self) -> str:
        """That of the entries."""
        return self.lookup.dtype

    def real(self, lo: Lowering) -> Real:
        """The entries minus the numbers, computed."""
        number = lo.scale(lo.real(self.number), self.factor)
        return lo.real(lo.sub(lo.real(self.lookup), number))

    def reshape(self, shape: Shape) -> Less:
        """The same entries, in their order, in another shape."""
        return replace(self, lookup=self.lookup.reshape(shape), number=self.number.reshape(shape))


def lessened(x: Operand, y: Operand, factor: Fraction) -> Less | None:
    """Entries that ids looked up, minus what the same ids decide; None: the difference is another
    one.

    Example: the entries that ids in [0, 64) picked, minus 1 where ``ids < 16``, are `Less`; plus
    it, None; nor are entries of which a mask has zeroed some, which are the table's no more.
    """
    if not isinstance(x, Lookup) or not x.picked or piecewise.value(x.live) != 1:
        return None
    scale = Fraction(1)
    if isinstance(y, Zeroed) and isinstance(y.entries, Const):
        scale, y = y.entries.value, replace(inverse(y.mask), dtype=x.dtype)
    if isinstance(y, Ids) and factor == -1:
        return Less(x, y, scale) if x.ids.at() == y.at() else None
    return None


def written_back(lo: Lowering, table: Lowered, chosen: Lowered, less: Less) -> Any:
    """``table`` [n, v], less a number at one entry of each row.

    Example: softmax [n, v], less 1 at each row's label, is the softmax minus the derivative of
    ``pick`` for ones: the gradient of cross entropy.
    """
    index = ids(chosen)
    real = lo.real(table)
    index = None if index is None else wrapped(index, real.shape[1])
    if (
        index is None
        or index.at() != less.lookup.ids.at()
        or real != less.lookup.table
        or index.function != less.lookup.ids.function
    ):
        raise Unsupported("entries that are written over those of other ids")
    count = less.number.function
    if any(p.slope or p.offset not in (0, 1) for p in count):
        raise Unsupported("entries that lose other numbers than 0 or 1")
    written = Scattered(index, count, real.shape[1], real.dtype)
    return lo.sub(real, written.entries(lo, less.factor))
