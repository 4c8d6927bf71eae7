"""Ids of which some are constants (labels that were shifted and padded), kept part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.hidden import concatenated
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
)


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
        """The joined ids in another shape; the parts stay as they are, but where only dimensions of
        size 1 come and go."""
        wide = [d for d, n in enumerate(shape) if n != 1]
        kept = [d for d, n in enumerate(self.base) if n != 1]
        alike = [shape[d] for d in wide] == [self.base[d] for d in kept]
        if not alike or self.dim not in kept:
            return replace(self, shape=shape)
        dim = wide[kept.index(self.dim)]
        parts = [
            self.lo.reshape(p, (*shape[:dim], p.shape[self.dim], *shape[dim + 1 :]))
            for p in self.parts
        ]
        return replace(self, parts=tuple(parts), dim=dim, base=shape, shape=shape)

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


def part_by_part(lo: Lowering, rule: Callable[..., Any], *operands: Operand) -> Joined | None:
    """An operator that computes every entry of the same entry of its operands, of each part; None:
    operands are no numbers and no ids that are joined at the same positions.

    Example: ``x == -100`` of ids x of which the first is the constant 2 is False there, and the
    comparison of the ids behind it.
    """
    like = next((x for x in operands if isinstance(x, Joined)), None)
    if like is None:
        return None
    sizes = [p.shape for p in like.parts]
    columns: list[Sequence[Operand]] = []
    for x in operands:
        if isinstance(x, Joined):
            if (x.dim, x.shape, [p.shape for p in x.parts]) != (like.dim, like.shape, sizes):
                return None
            columns.append(x.parts)
        elif isinstance(x, (int, float)) or (isinstance(x, Const) and x.shape == ()):
            columns.append([x] * len(sizes))
        else:
            return None
    expected, results = lo.expected, []
    for size, own in zip(sizes, zip(*columns, strict=True), strict=True):
        lo.expected = [(size, expected[0][1])]
        results.append(rule(lo, *own))
    lo.expected = expected
    return replace(like, parts=tuple(results), dtype=results[0].dtype)


def mixed(xs: Sequence[Lowered]) -> bool:
    """Whether whole numbers of which some are constants are joined.

    Example: int64 labels and an int64 constant -100 are, two inputs of labels are not, nor are
    float32 tensors.
    """
    whole = all(x.dtype.startswith(("int", "uint")) for x in xs)
    return whole and any(isinstance(x, Const) for x in xs)


def catenation(lo: Lowering, xs: Sequence[Lowered], dim: int) -> Any:
    """Tensors one after the other: whole numbers with constants among them stay apart.

    Example: of [2, 1] and [2, 3] along dimension 1, numbers of shape [2, 4].
    """
    return joined(lo, xs, dim) if mixed(xs) else concatenated(lo, xs, dim)
