"""Places of a tensor at which a mask chooses rows, and what a tensor is that was written there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.chosen import Shared
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Shape, Undefined
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.routed import Chosen, Where
from shardproof.frontends.builder import piecewise


@dataclass(frozen=True, slots=True)
class Places:
    """Dimensions ``first`` and those behind it of a tensor are positions of ``columns`` of a mask.

    Example: of ``weights[rows, k]`` they are dimensions 0 and 1.
    """

    where: Where
    first: int
    columns: tuple[int, ...]

    def spread(self, lo: Lowering, x: Lowered) -> Any:
        """The entries of ``x`` at all positions of the mask, in one dimension instead of these."""
        mask = self.where.mask.shape
        lead, trail = x.shape[: self.first], x.shape[self.first + len(self.columns) :]
        order = [self.columns.index(d) for d in sorted(self.columns)]
        turned = lo.permute(x, self._order(len(x.shape), order))
        sizes = tuple(n if d in self.columns else 1 for d, n in enumerate(mask))
        wide = lo.reshape(turned, (*lead, *sizes, *trail))
        wide = lo.expand(wide, (*lead, *mask, *trail))
        return lo.reshape(wide, (*lead, prod(mask), *trail))

    def added(self, lo: Lowering, rows: Lowered, shape: Shape) -> Any:
        """Entries at all positions of the mask, added up in a tensor of a shape."""
        mask = self.where.mask.shape
        lead, trail = shape[: self.first], shape[self.first + len(self.columns) :]
        wide = lo.reshape(rows, (*lead, *mask, *trail))
        gone = [self.first + d for d in range(len(mask)) if d not in self.columns]
        total = lo.sum(wide, gone) if gone else wide
        order = [sorted(self.columns).index(d) for d in self.columns]
        return lo.permute(total, self._order(len(shape), order))

    def _order(self, rank: int, order: Sequence[int]) -> tuple[int, ...]:
        """These dimensions of a tensor in another order."""
        last = self.first + len(order)
        return (*range(self.first), *(self.first + d for d in order), *range(last, rank))

    def once(self, lo: Lowering) -> bool:
        """Whether every entry is at one position at most."""
        mask = self.where.mask
        gone = [d for d, n in enumerate(mask.shape) if d not in self.columns and n > 1]
        if not gone:
            return True
        if not isinstance(mask, Ids) or len(gone) > 1:
            return False
        many = sum(p.high - p.low for p in _true(mask) if p.offset)
        dim = lo.distinct.get(mask.origin.number)
        return many == 1 and dim is not None and _dimension_in(mask, dim) == gone[0]

    def apart(self, lo: Lowering, other: Places) -> bool:
        """Whether no place is one of the other mask's, too: of one place of ids, what both are true
        of is nothing; or one mask is the inverse of the other."""
        one, two = self.where.mask, other.where.mask
        if (self.first, self.columns) != (other.first, other.columns):
            return False
        whole = len(self.columns) == len(one.shape)
        if whole and _inverse(lo, one, two):
            return True
        if not whole or not isinstance(one, Ids) or not isinstance(two, Ids):
            return False
        if one.at() != two.at():
            return False
        return piecewise.value(piecewise.combine("and", _true(one), _true(two))) == 0


def _inverse(lo: Lowering, one: Lowered, two: Lowered) -> bool:
    """Whether one mask of numbers is written as the inverse of the other.

    Example: ``~keep``, as ``keep * -1 + 1``, of ``keep``.
    """
    if not isinstance(one, Real) or not isinstance(two, Real) or one.shape != two.shape:
        return False
    (root, turns), (other, others) = _root(lo, one.number), _root(lo, two.number)
    return root == other and turns != others


def _root(lo: Lowering, number: int) -> tuple[int, bool]:
    """The value of which a mask is another view, another type or the inverse, and whether it is the
    inverse of it."""
    made = {out: op for op in lo.ops for out in op.outputs}
    inverted = False
    while number in made:
        op = made[number]
        before = made.get(op.inputs[0]) if op.inputs else None
        if op.backward or len(op.inputs) != 1:
            break
        if op.name == "add" and before is not None and op.attrs.get("other") == 1:
            if before.name != "mul" or before.attrs.get("other") != -1 or len(before.inputs) != 1:
                break
            number, inverted = before.inputs[0], not inverted
        elif op.name in ("to", "view"):
            number = op.inputs[0]
        else:
            break
    return number, inverted


def _true(mask: Ids) -> piecewise.Function:
    """Where a mask of ids is true: 0 or 1."""
    return piecewise.compare("NE", mask.function, piecewise.constant(mask.function, 0))


def _dimension_in(mask: Ids, dim: int) -> int | None:
    """Where dimension ``dim`` of the ids is in the mask; None: it is joined with others."""
    shape, at = mask.origin.shape, dim
    for name, given in mask.moves:
        if name == "permute":
            shape, at = tuple(shape[d] for d in given), list(given).index(at)
            continue
        wide = [d for d, n in enumerate(shape) if n > 1]
        own = [d for d, n in enumerate(given) if n > 1] if name == "reshape" else []
        if at not in wide or [shape[d] for d in wide] != [given[d] for d in own]:
            return None
        shape, at = tuple(given), own[wide.index(at)]
    return at


def kept(lo: Lowering, x: Lowered, places: Places) -> Any:
    """What is left of a tensor where nothing is written.

    Example: of [6, 4] at the places of a mask [6] it is a product with 1 - mask.
    """
    shape = tuple(x.shape[places.first + n] for n in range(len(places.columns)))
    written = places.where.numbers(lo, x.dtype)
    mask = Places(places.where, 0, places.columns).added(lo, written, shape)
    rest = len(x.shape) - places.first - len(shape)
    return lo.mul(x, lo.expand(lo.reshape(inverse(lo, mask), (*shape, *[1] * rest)), x.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Share(Shared):
    """Of ``base`` what is ``left`` where entries at ``places`` are 0, or these entries alone, with
    ``more`` added to them: a gradient that goes on beside rows that were written over, and through
    them.  Both together are the base, and ``more``.

    Example: of ``y[rows] += z`` the gradient of ``y`` goes through what is not written, and through
    what is read to be written back.
    """

    places: Places
    left: bool
    more: Chosen | None = None

    def real(self, lo: Lowering) -> Real:
        """The numbers, by the mask."""
        if self.left:
            return lo.real(kept(lo, self.base, self.places))
        rows = Chosen(self.places.spread(lo, self.base), self.places.where, self.places.first)
        own = self.places.added(lo, rows.counted(lo), self.shape)
        return lo.real(own if self.more is None else lo.add(own, self.added(lo)))

    def added(self, lo: Lowering) -> Any:
        """What was added to the entries."""
        assert self.more is not None
        return self.places.added(lo, self.more.counted(lo), self.shape)

    def beside(self, lo: Lowering, other: Share) -> Any:
        """The sum with the other share; None: it is no such share."""
        one = (self.base, self.places) == (other.base, other.places)
        if not one or self.left == other.left or not self.places.once(lo):
            return None
        part = other if self.left else self
        return self.base if part.more is None else lo.add(self.base, part.added(lo))

    def under(self, lo: Lowering, places: Places) -> Lowered:
        """What rows are read of: of what is left beside other places, the tensor itself."""
        base = self.base if self.left and self.places.apart(lo, places) else self
        return base.under(lo, places) if isinstance(base, Share) and base is not self else base


@dataclass(frozen=True, slots=True, eq=False)
class Patched(Shared):
    """A tensor over which rows were written, at places of which no two are one; ``added``: what is
    there, 0 elsewhere; ``known``: the value, once it was asked for.

    Example: ``out[chosen == 0] = first(x[chosen == 0])``, then the same of 1, 2 and 3: where ids
    lie in [0, 4), nothing is left of what ``out`` was before.
    """

    places: tuple[Places, ...]
    added: tuple[Lowered, ...]
    known: list[Real] = field(default_factory=list)

    def extended(self, lo: Lowering, places: Places, added: Lowered) -> Patched | None:
        """The tensor with rows written elsewhere; None: some may be written again."""
        if not all(own.apart(lo, places) for own in self.places):
            return None
        return replace(self, places=(*self.places, places), added=(*self.added, added), known=[])

    def real(self, lo: Lowering) -> Real:
        """What was written, and what is left of the tensor."""
        if not self.known:
            total: Any = self.added[0]
            for one in self.added[1:]:
                total = lo.add(total, one)
            if not self._whole(lo):
                total = lo.add(self._left(lo), total)
            self.known.append(lo.real(total))
        return self.known[0]

    def _whole(self, lo: Lowering) -> bool:
        """Whether every entry is written; of one that is 0 it does not matter."""
        if isinstance(self.base, Const) and self.base.value == 0:
            return True
        masks = [own.where.mask for own in self.places]
        if any(_inverse(lo, one, two) for one, two in combinations(masks, 2)):
            return True
        written = _true(masks[0]) if isinstance(masks[0], Ids) else None
        for mask in masks[1:]:
            if written is None or not isinstance(mask, Ids):
                return False
            written = piecewise.combine("or", written, _true(mask))
        return written is not None and piecewise.value(written) == 1

    def _left(self, lo: Lowering) -> Any:
        """The tensor where nothing is written."""
        if isinstance(self.base, Undefined):
            raise Unsupported("rows of memory that nothing has written are left beside others")
        total: Any = self.base
        for places in self.places:
            total = kept(lo, total, places)
        return total
