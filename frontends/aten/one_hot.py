"""One-hot rows of ids that are computed: 1 at the place that a function of the id gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import Lowering, Real, Shape, Unviewed
from shardproof.frontends.aten.masks import flags
from shardproof.frontends.aten.scattered import Scattered, outside
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function


@dataclass(frozen=True, slots=True)
class OneHot(Unviewed):
    """[..., size]: 1 where the id's function, less ``first``, is the place along the last
    dimension; zeros in all of a row where ``live`` is 0.

    Example: ``F.one_hot(torch.where(own, labels - 16, 0), 16)`` of labels in [0, 64) and ``own``
    those in [16, 32): place 0 for all others too, until a product with ``own`` says that these do
    not count.
    """

    about = "one-hot rows of computed ids"

    ids: Ids
    first: int
    size: int
    live: Function
    dtype: str

    @property
    def shape(self) -> Shape:
        """That of the ids, and one place for each class."""
        return (*self.ids.shape, self.size)

    def restricted(self, mask: Ids) -> OneHot | None:
        """Zeros in the rows where the mask is 0; None: the mask is of other ids.

        Example: times ``own[..., None]`` the rows of labels in [16, 32) are left.
        """
        if mask.shape != (*self.ids.shape, 1):
            return None
        own = mask.reshape(self.ids.shape)
        if own.at() != self.ids.at():
            return None
        return replace(self, live=piecewise.combine("and", self.live, own.function))

    def real(self, lo: Lowering) -> Real:
        """The rows as a value: of ids that choose no place of the row, zeros."""
        f = self.ids.function
        places = piecewise.combine("add", f, piecewise.constant(f, -self.first))
        astray = outside(places, self.size)
        # An id without a place is no place of somebody else's: the comparison is false there.
        inside = piecewise.select(astray, piecewise.constant(f, 0), places)
        live = piecewise.combine("and", self.live, piecewise.negated(astray))
        chosen = Scattered(replace(self.ids, function=inside), live, self.size, "float32")
        rows: Any = lo.real(chosen.entries(lo, Fraction(1)))
        if self.dtype == "bool":
            return flags(rows)
        whole = self.dtype.startswith(("int", "uint"))
        return lo.whole(rows, (0, 2), self.dtype) if whole else replace(rows, dtype=self.dtype)


def one_hot(index: Ids, first: int, size: int) -> OneHot:
    """Where ids [...] are the numbers from ``first`` on, of which there are ``size``.

    Example: ``ids[..., None] == torch.arange(16)`` is the one-hot rows of 16 places, from 0 on.
    """
    return OneHot(index, first, size, piecewise.constant(index.function, 1), "bool")
