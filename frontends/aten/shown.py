"""Scores of which constants show one stretch of positions, and hide the others of every row: a
vocabulary that is padded, of which a rank has a part.

What is computed of them is computed of the stretch, so that a rank whose part ends elsewhere
computes the same of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.frontends.aten.bits import Bits, mask_along_one, stretches
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Shape
from shardproof.frontends.aten.positions import Compared
from shardproof.frontends.aten.scores import Hidden


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions [start, stop) of a dimension.

    Example: the first 12 words of 16 are ``Stretch(1, 0, 12)`` of scores [rows, 16].
    """

    dim: int
    start: int
    stop: int

    def of(self, lo: Lowering, x: Lowered) -> Real:
        """``x`` at these positions."""
        return lo.real(lo.slice(x, self.dim, self.start, self.stop - self.start))

    def among(self, lo: Lowering, x: Lowered, number: int, shape: Shape) -> Any:
        """``x`` at these positions of a tensor of ``shape``, a number at all others."""

        def filled(size: int) -> Const:
            sizes = (*shape[: self.dim], size, *shape[self.dim + 1 :])
            return Const(Fraction(number), sizes, x.dtype)

        ends = (filled(self.start), filled(shape[self.dim] - self.stop))
        return lo.concat([ends[0], x, ends[1]], self.dim)


def known_line(mask: Compared) -> Bits | None:
    """A mask of positions that varies along one dimension, as the constants that it is; None: it
    is another one.

    Example: ``torch.arange(4) >= 3``, expanded to [2, 4], is [False, False, False, True] twice.
    """
    line = mask_along_one(mask)
    if line is None:
        return None
    shape = tuple(-1 if d == line.dim else 1 for d in range(len(mask.shape)))
    return Bits(np.asarray(line.entries).reshape(shape)).expand(mask.shape)


def line_of(shape: Shape, dim: int, xs: Sequence[Lowered], hidden: Sequence[Hidden | None]) -> Bits:
    """Which positions are hidden where tensors lie one after the other, of which each is scores
    (None) or minus infinity.

    Example: of ``z[:, 12:] = -inf``, with 16 columns, the last four.
    """
    of = zip(xs, hidden, strict=True)
    line = np.concatenate([np.full(x.shape[dim], part is not None) for x, part in of])
    return Bits(line.reshape([-1 if d == dim else 1 for d in range(len(shape))])).expand(shape)


def stretch(x: Hidden) -> Stretch | None:
    """The positions that constants show of masked scores, where these are one stretch of some that
    are hidden of every row alike; None elsewhere.

    Example: ``Stretch(1, 0, 12)`` of ``z.masked_fill(torch.arange(16) >= 12, -inf)``, None of
    scores behind a causal mask.
    """
    line = None if x.where is None else mask_along_one(x.where)
    if line is None:
        return None
    shown = [(i, j) for i, j in stretches(line.entries) if not line.entries[i]]
    return Stretch(line.dim, *shown[0]) if len(shown) == 1 else None


def has_all(mask: object, of: Bits | None) -> bool:
    """Whether a mask of positions is true wherever constants are; false where that is not known.

    Example: ``torch.arange(8) >= 5`` is wherever ``torch.arange(8) >= 6`` is, in rows of either.
    """
    if of is None or not isinstance(mask, (Compared, Bits)):
        return False
    wide = mask.expand(of.shape)
    own, other = mask_along_one(wide), mask_along_one(of)
    if own is not None and other is not None:
        return own.dim == other.dim and bool((own.entries | ~other.entries).all())
    return isinstance(wide, Bits) and bool((wide.array | ~of.array).all())
