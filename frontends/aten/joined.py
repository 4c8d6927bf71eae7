"""Ids of which some are constants (labels that were shifted and padded), kept part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Shape


@dataclass(frozen=True, slots=True)
class Joined:
    """``parts`` one after the other along dimension ``dim``, a tensor of shape ``base``, viewed as
    ``shape``.

    Example: ``F.pad(labels, (0, 1), value=-100)`` of labels [2, 3] has the parts ``labels`` and a
    constant [2, 1] of -100, joined along dimension 1.
    """

    parts: tuple[Lowered, ...]
    dim: int
    base: Shape
    shape: Shape
    dtype: str
    lo: Lowering = field(compare=False, repr=False)

    def reshape(self, shape: Shape) -> Joined:
        """The joined ids in another shape; the parts stay as they are."""
        return replace(self, shape=shape)

    def slice(self, dim: int, start: int, size: int) -> Any:
        """Positions of a dimension; along the joined one, of the parts that they meet."""
        if self.shape != self.base:
            raise Unsupported("a part of ids of which some are constants, after a view")
        if dim != self.dim:
            cut = [self.lo.slice(p, dim, start, size) for p in self.parts]
            return joined(self.lo, cut, self.dim)
        kept = []
        at = 0
        for part in self.parts:
            own = part.shape[dim]
            first, last = max(start, at), min(start + size, at + own)
            if first < last:
                kept.append(self.lo.slice(part, dim, first - at, last - first))
            at += own
        return joined(self.lo, kept, dim)

    def permute(self, order: Sequence[int]) -> Joined:
        """Refused: no rule permutes ids of which some are constants."""
        raise Unsupported("a permutation of ids of which some are constants")

    def expand(self, shape: Shape) -> Joined:
        """Refused: no rule repeats ids of which some are constants."""
        raise Unsupported("an expansion of ids of which some are constants")

    def real(self, lo: Lowering) -> Real:
        """The parts as values, one after the other, in the shape of the whole."""
        whole = lo.emit("concat", *(lo.real(p) for p in self.parts), dim=self.dim)
        return lo.real(lo.reshape(whole, self.shape))

    def cut(self, x: Lowered, number: int) -> Any:
        """The rows of ``x`` [n, ...] that belong to a part, where n is the number of all ids."""
        before = sum(p.shape[self.dim] for p in self.parts[:number])
        rest = x.shape[1:]
        whole = self.lo.reshape(x, (*self.base, *rest))
        own = self.parts[number].shape
        part = self.lo.slice(whole, self.dim, before, own[self.dim])
        return self.lo.reshape(part, (prod(own), *rest))

    def together(self, rows: Sequence[Lowered]) -> Any:
        """The inverse of `cut`: rows [n, v] of all parts."""
        width = rows[0].shape[-1]
        shaped = [
            self.lo.reshape(x, (*p.shape, width)) for x, p in zip(rows, self.parts, strict=True)
        ]
        return self.lo.reshape(self.lo.concat(shaped, self.dim), (prod(self.base), width))


def joined(lo: Lowering, parts: Sequence[Lowered], dim: int) -> Any:
    """Parts along a dimension; one alone is itself.

    Example: parts of shapes [2, 1], [2, 2], [2, 3] along dimension 1 are ids of shape [2, 6].
    """
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[dim] = sum(p.shape[dim] for p in parts)
    return Joined(tuple(parts), dim, tuple(shape), tuple(shape), parts[0].dtype, lo)


def mixed(xs: Sequence[Lowered]) -> bool:
    """Whether whole numbers of which some are constants are joined.

    Example: int64 labels and an int64 constant -100 are, two inputs of labels are not, nor are
    float32 tensors.
    """
    whole = all(x.dtype.startswith(("int", "uint")) for x in xs)
    return whole and any(isinstance(x, Const) for x in xs)
