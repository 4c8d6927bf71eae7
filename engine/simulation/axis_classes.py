"""Which dimensions of a plan are the same axis: union-find over factors of dimensions.

A dimension is a row-major product of *factors*, outermost first; a factor is a class of axes and
the true extent that it has here.  Factors of a class are parts of one axis (a parameter's rows and
a shard of them), so they are all divided by the same number when the plan is evaluated at a small
size.  A view may split a class into an outer and an inner one, for all its factors at once.  Where
the structure of two dimensions does not fit together, their classes are frozen: they keep their
true extents, which is always right and only costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import NamedTuple

from shardproof.engine.errors import ShapeMismatch, Unsupported


class Factor(NamedTuple):
    """A part of a dimension: the number of its class and its true extent (more than 1).

    Example: a dimension of 32 of which a view made 4 x 8 is ``(Factor(0, 4), Factor(1, 8))``.
    """

    axis: int
    size: int


Factors = tuple[Factor, ...]


def extent(dim: Factors) -> int:
    """The true size of a dimension.

    Example: of ``(Factor(0, 4), Factor(1, 8))`` 32, of none 1.
    """
    return prod(factor.size for factor in dim)


@dataclass(slots=True)
class AxisClass:
    """What is known of one axis.

    Example: of the rows of a parameter (16) and of a shard of it (8): ``common`` and ``least`` are
    8, ``most`` is 16.

    ``common``: greatest common divisor of all extents and offsets; ``least``, ``most``: the
    smallest and the largest extent (index data of this axis is below ``most``).
    ``positional``: indexed (a mask, classes): evaluated at its small size, while every other kept
    position stands for several true ones; ``chosen``: of experts that are chosen among;
    ``ordered``: a mask tells which of its positions come before which; ``filled``: one number or
    one-hots fill it.
    ``frozen``: keeps its true extents.  ``slices``: the coordinate along which the batch is divided
    into this many slices.  ``rules``: must hold for a divisor.  ``parts``: (outer class, inner
    class, inner extent) once it is split.
    """

    common: int = 0
    least: int = 0
    most: int = 0
    positional: bool = False
    chosen: bool = False
    ordered: bool = False
    filled: bool = False
    frozen: bool = False
    slices: str = ""
    rules: list[Callable[[int], bool]] = field(default_factory=list)
    parts: tuple[int, int, int] | None = None


def _alike(dims: Sequence[Factors], sizes: Sequence[int]) -> int:
    """How many dimensions in front have these sizes."""
    count = 0
    for dim, size in zip(dims, sizes, strict=False):
        if extent(dim) != size:
            break
        count += 1
    return count


class Axes:
    """All axes of a plan, as classes of factors.  Methods that relate dimensions raise
    `ShapeMismatch` where true sizes do not fit.

    Example: ``axis = axes.new()``, then ``axes.factor(axis, 16)`` and ``axes.factor(axis, 8)``: two
    dimensions of one axis.
    """

    def __init__(self) -> None:
        #: Whether every axis keeps its true extents: a number of positions is itself a number.
        self.exact = False
        self._parent: list[int] = []
        self._classes: list[AxisClass] = []

    def find(self, axis: int) -> int:
        """The axis that represents the class of an axis, with paths made shorter on the way."""
        while self._parent[axis] != axis:
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def __getitem__(self, axis: int) -> AxisClass:
        return self._classes[self.find(axis)]

    def unsplit(self) -> list[int]:
        """All classes that are not split, one number of each."""
        roots = {self.find(axis) for axis in range(len(self._parent))}
        return sorted(root for root in roots if self._classes[root].parts is None)

    def new(self, *, slices: str = "") -> int:
        """A class without extents."""
        self._parent.append(len(self._parent))
        self._classes.append(AxisClass(slices=slices))
        return len(self._parent) - 1

    def factor(self, axis: int, size: int) -> Factors:
        """A dimension of ``size`` positions of an axis."""
        if size == 1:
            return ()
        if size < 1:
            raise Unsupported("a dimension without positions")
        axis_class = self[axis]
        axis_class.common = gcd(axis_class.common, size)
        axis_class.least = min(axis_class.least or size, size)
        axis_class.most = max(axis_class.most, size)
        return (Factor(axis, size),)

    def fresh(self, size: int) -> Factors:
        """A dimension of a class of its own."""
        return self.factor(self.new(), size)

    def fixed(self, size: int) -> Factors:
        """A dimension that keeps its true size."""
        dim = self.fresh(size)
        self.freeze(dim)
        return dim

    def resolve(self, dim: Sequence[Factor]) -> Factors:
        """The dimension in classes that are not split."""
        result: list[Factor] = []
        rest = list(reversed(dim))  # a model's layers may each split a class anew
        while rest:
            axis, size = rest.pop()
            root = self.find(axis)
            parts = self._classes[root].parts
            if parts is None:
                result.append(Factor(root, size))
                continue
            outer, inner, step = parts
            rest.append(Factor(inner, step))
            if size > step:
                rest.append(Factor(outer, size // step))
        return tuple(result)

    def freeze(self, *dims: Sequence[Factor]) -> None:
        """Keep the true sizes of dimensions."""
        for dim in dims:
            for axis, _ in self.resolve(dim):
                self[axis].frozen = True

    def fill(self, *dims: Sequence[Factor]) -> None:
        """One number, or one-hots, fill dimensions: where a mask tells their positions apart, these
        are counted by sums of the mask, and keep their true sizes."""
        for dim in dims:
            for axis, _ in self.resolve(dim):
                self[axis].filled = True

    def index(self, dim: Factors) -> int | None:
        """The class of a dimension that is indexed by position: evaluated at its small size.  None
        unless the dimension is one factor; then it keeps its true size."""
        leaves = self.resolve(dim)
        for leaf in leaves:
            self[leaf.axis].positional = True
        if len(leaves) == 1:
            return leaves[0].axis
        self.freeze(leaves)
        return None

    def bound(self, axis: int, offset: int) -> None:
        """Positions of the axis are counted from multiples of ``offset``."""
        axis_class = self[axis]
        axis_class.common = gcd(axis_class.common, offset)

    def union(self, left: int, right: int) -> None:
        """Make two unsplit classes one."""
        a, b = self.find(left), self.find(right)
        if a == b:
            return
        x, y = self._classes[a], self._classes[b]
        if x.slices or y.slices:
            x.frozen = True
        x.common = gcd(x.common, y.common)
        x.least = min(x.least or y.least, y.least or x.least)
        x.most = max(x.most, y.most)
        x.positional = x.positional or y.positional
        x.chosen = x.chosen or y.chosen
        x.ordered = x.ordered or y.ordered
        x.filled = x.filled or y.filled
        x.frozen = x.frozen or y.frozen
        x.rules += y.rules
        self._parent[b] = a

    def split(self, axis: int, inner: int) -> bool:
        """Split an unsplit class into (outer, ``inner``); False if some factor does not allow it,
        and then it is frozen."""
        axis_class = self[axis]
        if axis_class.common % inner:
            axis_class.frozen = True
            return False
        if axis_class.positional or axis_class.slices:
            axis_class.frozen = True
        parts = (self.new(), self.new())
        for part, common, least, most in (
            (
                parts[0],
                axis_class.common // inner,
                axis_class.least // inner,
                axis_class.most // inner,
            ),
            (parts[1], inner, inner, inner),
        ):
            new = self[part]
            new.common, new.least, new.most = common, least, most
            new.frozen, new.positional = axis_class.frozen, axis_class.positional
            new.ordered, new.filled = axis_class.ordered, axis_class.filled
        axis_class.parts = (*parts, inner)
        return True

    def unify(self, left: Factors, right: Factors) -> None:
        """The two dimensions are the same."""
        if left is right:
            return
        if extent(left) != extent(right):
            raise ShapeMismatch(f"sizes {extent(left)} and {extent(right)}")
        self._match(left, right, None)

    def relate(self, whole: Factors, part: Factors, offset: int) -> None:
        """``part`` is an interval of ``whole`` that starts at a multiple of ``offset``."""
        if extent(part) == 1 and offset == 0:
            return  # the first position is there at every size
        if extent(whole) == extent(part) and offset == 0:
            self.unify(whole, part)
        else:
            self._match(whole, part, offset)

    def _match(self, left: Factors, right: Factors, offset: int | None) -> None:
        """Match factors from the innermost outwards; what does not match is frozen."""
        a, b = list(self.resolve(left)), list(self.resolve(right))
        inner = 1
        while a and b:
            x, y = a[-1], b[-1]
            if offset is not None and len(a) == len(b) == 1:
                if offset % inner:
                    break
                self.union(x.axis, y.axis)
                self.bound(x.axis, offset // inner)
                return
            if x.size == y.size:
                self.union(x.axis, y.axis)
                inner *= x.size
                a.pop()
                b.pop()
            else:
                small, large = sorted((x, y), key=lambda f: f.size)
                if large.size % small.size or not self.split(large.axis, small.size):
                    break
                a, b = list(self.resolve(a)), list(self.resolve(b))
        self.freeze(a, b)
        if offset is not None and offset % inner:
            self.freeze(left, right)

    def reshape(self, dims: Sequence[Factors], sizes: Sequence[int]) -> tuple[Factors, ...]:
        """The dimensions of a row-major view; those in front and behind that stay are left."""
        if prod(map(extent, dims)) != prod(sizes):
            raise ShapeMismatch(f"view of {[extent(d) for d in dims]} as {list(sizes)}")
        lead = _alike(dims, sizes)
        last = _alike(dims[lead:][::-1], sizes[lead:][::-1])
        inside = slice(lead, len(dims) - last), slice(lead, len(sizes) - last)
        viewed = self._viewed(dims[inside[0]], sizes[inside[1]])
        return (*dims[:lead], *viewed, *dims[len(dims) - last :])

    def _viewed(self, dims: Sequence[Factors], sizes: Sequence[int]) -> tuple[Factors, ...]:
        factors = list(self.resolve([factor for dim in dims for factor in dim]))
        result: list[Factors] = []
        for size in reversed(sizes):
            inner = self._take(factors, int(size))
            if inner is None:
                self.freeze(*dims)
                return tuple(self.fixed(int(n)) for n in sizes)
            result.append(inner)
        return tuple(reversed(result))

    def _take(self, factors: list[Factor], size: int) -> Factors | None:
        """The innermost factors that make up ``size``, removed from the list."""
        inner: list[Factor] = []
        while size > 1:
            (last,) = factors[-1:]
            if size % last.size == 0:
                size //= last.size
                inner.append(factors.pop())
            elif last.size % size == 0 and self.split(last.axis, size):
                factors[:] = self.resolve(factors)
            else:
                return None
        return tuple(reversed(inner))
