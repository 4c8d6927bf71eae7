"""Scores of which some are minus infinity, kept apart as numbers and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowering, Real, Shape


@dataclass(frozen=True, slots=True)
class Hidden:
    """Scores where ``kept`` is 1, minus infinity where it is 0; both of one shape.  ``shown``:
    dimensions along which every line is known to keep something; ``where``: the mask of constants
    (`bits.Bits`) that hides them, if it is one.

    Example: scores [2, 4, 4] under ``masked_fill(ids[:, None] == 0, -inf)`` keep the columns of ids
    that are not 0; ``torch.tensor(-inf)`` is 0 of which nothing is kept.
    """

    lo: Lowering
    scores: Any
    kept: Any
    dtype: str
    shown: frozenset[int] = frozenset()
    where: Any = None

    @property
    def shape(self) -> Shape:
        """That of the scores."""
        return self.scores.shape  # type: ignore[no-any-return]

    @property
    def keeps_nothing(self) -> bool:
        """Whether all of it is known to be minus infinity."""
        return isinstance(self.kept, Const) and self.kept.value == 0

    def may_hide(self, domain: tuple[int, int] | None) -> bool:
        """Whether some of the scores may be minus infinity that ids of this domain choose along the
        last dimension (None: any ids).

        Example: where a vocabulary of 12 words is padded to 16, none of those in [0, 12).
        """
        if self.where is None or domain is None or domain[0] < 0:
            return True
        return bool(self.where.array[..., slice(*domain)].any())

    def _both(self, move: str, *given: Any) -> Hidden:
        moved = getattr(self.lo, move)
        scores, kept = moved(self.scores, *given), moved(self.kept, *given)
        try:
            where = None if self.where is None else moved(self.where, *given)
        except Unsupported:
            where = None
        return Hidden(self.lo, scores, kept, self.dtype, where=where)

    def reshape(self, shape: Shape) -> Hidden:
        """The same scores in another shape."""
        return self._both("reshape", shape)

    def expand(self, shape: Shape) -> Hidden:
        """The scores repeated along dimensions of size 1 and new leading ones."""
        return self._both("expand", shape)

    def permute(self, order: Sequence[int]) -> Hidden:
        """The scores with their dimensions in another order."""
        return self._both("permute", order)

    def slice(self, dim: int, start: int, size: int) -> Hidden:
        """The scores at ``size`` positions of a dimension, from ``start`` on."""
        return self._both("slice", dim, start, size)

    def real(self, lo: Lowering) -> Real:
        """The scores, where the mask is known to hide none of these; refused elsewhere: minus
        infinity is no number, and a softmax reads it as a mask."""
        if self.where is None or self.where.array.any():
            raise Unsupported("masked scores, with minus infinity, as numbers")
        return lo.real(self.scores)


def nothing(lo: Lowering, shape: Shape, dtype: str) -> Hidden:
    """Minus infinity everywhere.

    Example: ``torch.full((4, 4), -inf)`` is ``nothing(lo, (4, 4), "float32")``.
    """
    zero = Const(Fraction(0), shape, dtype)
    return Hidden(lo, zero, zero, dtype)
