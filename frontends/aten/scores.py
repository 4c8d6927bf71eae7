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
    dimensions along which every line is known to keep something.

    Example: scores [2, 4, 4] under ``masked_fill(ids[:, None] == 0, -inf)`` keep the columns of ids
    that are not 0; ``torch.tensor(-inf)`` is 0 of which nothing is kept.
    """

    lo: Lowering
    scores: Any
    kept: Any
    dtype: str
    shown: frozenset[int] = frozenset()

    @property
    def shape(self) -> Shape:
        """That of the scores."""
        return self.scores.shape  # type: ignore[no-any-return]

    @property
    def keeps_nothing(self) -> bool:
        """Whether all of it is known to be minus infinity."""
        return isinstance(self.kept, Const) and self.kept.value == 0

    def _both(self, move: str, *given: Any) -> Hidden:
        moved = getattr(self.lo, move)
        return Hidden(self.lo, moved(self.scores, *given), moved(self.kept, *given), self.dtype)

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
        """Refused: minus infinity is no number; a softmax reads it as a mask."""
        raise Unsupported("masked scores, with minus infinity, as numbers")


def nothing(lo: Lowering, shape: Shape, dtype: str) -> Hidden:
    """Minus infinity everywhere.

    Example: ``torch.full((4, 4), -inf)`` is ``nothing(lo, (4, 4), "float32")``.
    """
    zero = Const(Fraction(0), shape, dtype)
    return Hidden(lo, zero, zero, dtype)
