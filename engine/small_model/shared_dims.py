"""Which local dimensions an operator takes for one another, and how it splits and joins them.

An operator identifies dimensions: both operands of a sum have the same ones, a product sums a label
of several, a view joins two into one.  Where one of them is represented in two digits, the others
have to be.  `Relating` is a reading of the declarations that keeps nothing of a tensor but where
its dimensions come from; what it takes for one another, it notes as relations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, prod
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.primitives import CONSTANTS, Selection

#: In place of a number of positions: one index runs along two axes, but not along digits of both.
ALIKE = -1


class Digit(NamedTuple):
    """``size`` positions, ``stride`` apart, of the dimension ``root``.

    Example: of dimension 2 of 48 positions, as [8, 6], the digits ``Digit(2, 6, 8)`` and
    ``Digit(2, 1, 6)``.
    """

    root: int
    stride: int
    size: int


#: A dimension as digits, outermost first (none: size 1).
Dim = tuple[Digit, ...]
Tensor = tuple[Dim, ...]


class Relation(NamedTuple):
    """Digits of two dimensions that an operator takes for one another.

    Example: ``Relation(Digit(1, 1, 6), Digit(2, 1, 6))`` of a view ``[8, 6] -> [48]``.
    """

    one: Digit
    other: Digit


class Relating:
    """A `engine.ops.primitives.Interpreter` of dimensions; raises `Unsupported` where digits do not
    fit.

    Example: ``reshape(tensor((8, 6)), (48,))`` is one dimension of two digits, (root 0, size 8) and
    (root 1, size 6); where it is added to another one of 48, that one is split at 6.

    ``coarse``: parts of a dimension are related as wholes, not digit by digit.
    """

    def __init__(self, coarse: bool = False) -> None:
        self.coarse = coarse
        self.relations: list[Relation] = []
        self.splits: list[tuple[int, int]] = []
        self.count = 0

    def tensor(self, shape: Sequence[int]) -> Tensor:
        """A tensor all of whose dimensions are new."""
        return tuple(self._root(n) for n in shape)

    def _root(self, size: int) -> Dim:
        self.count += 1
        return (Digit(self.count - 1, 1, int(size)),) if size != 1 else ()

    def _split(self, digit: Digit, inner: int) -> tuple[Digit, Digit]:
        if digit.size % inner:
            raise Unsupported(f"{digit.size} positions in blocks of {inner}")
        self.splits.append((digit.root, digit.stride * inner))
        outer = Digit(digit.root, digit.stride * inner, digit.size // inner)
        return outer, digit._replace(size=inner)

    def same(self, a: Dim, b: Dim) -> Dim:
        """The dimension that two are taken for."""
        mine, other = list(a), list(b)
        common: list[Digit] = []
        while mine and other:
            x, y = mine.pop(), other.pop()
            if x.size > y.size:
                outer, x = self._split(x, y.size)
                mine.append(outer)
            elif y.size > x.size:
                outer, y = self._split(y, x.size)
                other.append(outer)
            if x != y:
                self.relations.append(Relation(x, y))
            common.append(x)
        if mine or other:
            raise ShapeMismatch("dimensions of different sizes")
        return tuple(reversed(common))

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """The sizes of the dimensions, each the product of its digits."""
        return tuple(prod(digit.size for digit in dim) for dim in x)

    def combine(
        self, xs: Sequence[Tensor], factors: Sequence[Fraction], constant: Fraction
    ) -> Tensor:
        """Dimensions of tensors that are added up are the same, position by position."""
        first, *rest = xs
        for x in rest:
            first = tuple(self.same(a, b) for a, b in zip(first, x, strict=True))
        return first

    def unary(self, function: str, x: Tensor) -> Tensor:
        """A function of every entry relates no dimensions."""
        return x

    def einsum(self, spec: str, *xs: Tensor, sizes: Mapping[str, int] | None = None) -> Tensor:
        """Dimensions of one label are the same, position by position."""
        left, output = spec.split("->")
        dims: dict[str, Dim] = {}
        for names, x in zip(left.split(","), xs, strict=True):
            for name, dim in zip(names, x, strict=True):
                dims[name] = self.same(dims[name], dim) if name in dims else dim
        for name, size in (sizes or {}).items():
            if name not in dims:
                dims[name] = self._root(size)
        return tuple(dims[name] for name in output)

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Digits regrouped into other dimensions, split where a size asks for it."""
        digits = [digit for dim in x for digit in dim]
        result: list[Dim] = []
        for size in reversed(shape):
            inner: list[Digit] = []
            need = int(size)
            while need > 1:
                if not digits:
                    raise ShapeMismatch(f"{list(shape)} elements of {list(self.shape(x))}")
                digit = digits.pop()
                if digit.size > need:
                    outer, digit = self._split(digit, need)
                    digits.append(outer)
                if need % digit.size:
                    raise Unsupported(f"a view of {list(self.shape(x))} as {list(shape)}")
                inner.append(digit)
                need //= digit.size
            result.append(tuple(reversed(inner)))
        return tuple(reversed(result))

    def slice(self, x: Tensor, dim: int, start: Affine, size: int) -> Tensor:
        """A part of a dimension, with a root of its own where it is cut."""
        return (*x[:dim], self._cut(x[dim], start, int(size)), *x[dim + 1 :])

    def _cut(self, dim: Dim, start: Affine, size: int) -> Dim:
        kept: list[Digit] = []
        inner = 1
        for digit in reversed(dim):
            if size == 1:
                break
            if size > digit.size and size % digit.size:
                raise Unsupported(f"{size} positions of a dimension in blocks of {digit.size}")
            equal = digit.size % size == 0 and start.divisible(inner * size)
            if size < digit.size and not equal:
                kept.append(self._part(digit, start, inner, size))
            else:
                kept.append(digit._replace(size=min(size, digit.size)))
            inner *= digit.size
            size = max(1, size // digit.size)
        return tuple(reversed(kept))

    def _part(self, digit: Digit, start: Affine, inner: int, size: int) -> Digit:
        """``size`` positions of a digit, ``inner`` positions of the dimension apart, that are none
        of several equal blocks: a dimension of its own, related as far as it is not cut through."""
        (part,) = self._root(size)
        steps = (start.const, *(c for _, c in start.terms))
        cut = not start.divisible(inner)
        fits = 1 if cut else gcd(size, digit.size, *(n // inner for n in steps))
        self.relations.append(Relation(part._replace(size=ALIKE), digit))
        self.relations.append(Relation(part._replace(size=fits), digit._replace(size=fits)))
        return part

    def concat(self, xs: Sequence[Tensor], dim: int) -> Tensor:
        """A new dimension, whose intervals are the parts."""
        whole = self._root(sum(self.shape(x)[dim] for x in xs))
        first: list[Dim] = list(xs[0])
        start = 0
        for x in xs:
            for i, (a, b) in enumerate(zip(first, x, strict=True)):
                if i != dim:
                    first[i] = self.same(a, b)
            self.inside(whole, x[dim], start)
            start += self.shape(x)[dim]
        first[dim] = whole
        return tuple(first)

    def inside(self, whole: Dim, part: Dim, start: int = 0) -> None:
        """``part`` is an interval of ``whole``, which is one digit, from ``start`` on.  A digit
        that the interval cuts through is related as far as it does not."""
        inner = 1
        for digit in reversed(part):
            if whole and digit.size > 1:
                root, size = whole[0].root, whole[0].size
                cut = start % inner or size % inner
                apart = cut or self.coarse
                fits = 0 if apart else gcd(digit.size, start // inner, size // inner)
                if fits != digit.size:
                    self.relations.append(Relation(digit._replace(size=ALIKE), whole[0]))
                if fits:
                    self.relations.append(
                        Relation(digit._replace(size=fits), Digit(root, inner, fits))
                    )
            inner *= digit.size

    def amax(self, x: Tensor, dim: int) -> Tensor:
        """The dimensions but for the one that the maximum is taken over."""
        return (*x[:dim], *x[dim + 1 :])

    def onehot(self, ids: Tensor, start: Affine, size: int) -> Tensor:
        """The dimensions of the ids, and a new one of classes."""
        return (*ids, self._root(size))

    def causal(self, queries: int, keys: int) -> Tensor:
        """Two new dimensions, queries and keys."""
        return (self._root(queries), self._root(keys))

    def order(self, queries: int, keys: int) -> Tensor:
        """Two new dimensions, queries and keys."""
        return self.causal(queries, keys)

    def select(self, scores: Tensor, selection: Selection) -> Tensor:
        """A new dimension of choices in the place of the experts."""
        return (*scores[:-1], self._root(selection.topk))

    def constant(self, name: str) -> Tensor:
        """New dimensions, of the table's sizes."""
        array = CONSTANTS[name]
        return self.tensor((len(array), len(array[0]), len(array[0][0])))
