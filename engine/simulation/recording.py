"""A reading of operators that records which dimensions are the same axis.

Its tensors are lists of dimensions, each a product of factors of `engine.simulation.axis_classes`.
Reading an operator's declaration (or its backward) over it relates the dimensions of inputs and
outputs; no operator is named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd
from typing import Self

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.primitives import CONSTANTS, Selection, check_selection
from shardproof.engine.simulation.axis_classes import Axes, Factors, extent


class Length(int):
    """The true size of a dimension, as an integer that remembers the dimension.

    Example: of ``(Factor(0, 4), Factor(1, 8))`` the number 32, with these as its ``dim``.
    """

    dim: Factors

    def __new__(cls, dim: Factors) -> Self:
        length = super().__new__(cls, extent(dim))
        length.dim = dim
        return length


@dataclass(frozen=True, slots=True)
class Recorded:
    """The dimensions of a tensor; ``domain``: the axis whose positions its entries are, for index
    data; ``computed``: the axes whose positions its entries are a function of that is no copy.

    Example: a tensor of shape [12, 8] is ``Recorded(((Factor(1, 12),), (Factor(2, 8),)))``.
    """

    dims: tuple[Factors, ...]
    domain: int | None = None
    computed: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """The true sizes of the dimensions."""
        return tuple(extent(dim) for dim in self.dims)


def step_of(offset: Affine) -> int:
    """The greatest number that divides the offset at every coordinate (0 for offset 0).

    Example: 2 of ``6*tp + 4``.
    """
    return gcd(offset.const, *(coefficient for _, coefficient in offset.terms))


@dataclass(slots=True)
class RecordingInterpreter:
    """Implements `engine.ops.primitives.Interpreter`.  ``indexed``: the dimensions that index data
    was compared with since the list was last emptied.  ``stretches``: sizes that attributes give
    are those of dimensions of the result, which are chosen as what reads them needs
    (`engine.simulation.small_shapes.Sizes.attrs` gives them then); else they are kept.

    Example: ``einsum("bk,nk->bn", x, w)`` makes one class of the second axes of x and w.
    """

    axes: Axes
    indexed: list[Factors] = field(default_factory=list)
    stretches: bool = False

    def shape(self, x: Recorded) -> tuple[int, ...]:
        """The sizes as lengths that remember which axes they count."""
        return tuple(Length(dim) for dim in x.dims)

    def dim(self, size: int) -> Factors:
        """The dimension that a size was taken from; a plain number is kept as it is, or new."""
        if isinstance(size, Length):
            return size.dim
        return self.axes.fresh(size) if self.stretches else self.axes.fixed(size)

    def einsum(self, spec: str, *xs: Recorded, sizes: Mapping[str, int] | None = None) -> Recorded:
        """Dimensions of one label are one class of axes."""
        left, output = spec.split("->")
        dims: dict[str, Factors] = {}
        for names, x in zip(left.split(","), xs, strict=True):
            if len(names) != len(x.dims):
                raise ShapeMismatch(f"{spec} with an operand of shape {list(x.shape)}")
            for name, dim in zip(names, x.dims, strict=True):
                if name in dims:
                    self.axes.unify(dims[name], dim)
                dims.setdefault(name, dim)
        for name in output:
            if name not in dims:
                dims[name] = self.dim((sizes or {})[name])
        domain = xs[0].domain if len(xs) == 1 else None
        return Recorded(tuple(dims[name] for name in output), domain, _functions(xs, domain))

    def combine(
        self, xs: Sequence[Recorded], factors: Sequence[Fraction], constant: Fraction
    ) -> Recorded:
        """Tensors that are added up have dimensions of the same classes."""
        for x in xs:
            self.unify(xs[0], x)
            if x.domain is not None and (len(xs) > 1 or constant or factors[0] != 1):
                # Arithmetic on indices has a meaning at true sizes only.
                self.axes[x.domain].frozen = True
        domain = xs[0].domain
        return Recorded(xs[0].dims, domain, _functions(xs, domain))

    def unify(self, x: Recorded, y: Recorded) -> None:
        """Two tensors have the same dimensions."""
        if x.shape != y.shape:
            raise ShapeMismatch(f"tensors of shapes {list(x.shape)} and {list(y.shape)}")
        for left, right in zip(x.dims, y.dims, strict=True):
            self.axes.unify(left, right)

    def unary(self, function: str, x: Recorded) -> Recorded:
        """A function of every entry: the same dimensions, no longer ids."""
        return Recorded(x.dims, None, _functions([x], None))

    def reshape(self, x: Recorded, shape: tuple[int, ...]) -> Recorded:
        """Dimensions split and joined axis by axis."""
        return Recorded(self.axes.reshape(x.dims, shape), x.domain, x.computed)

    def slice(self, x: Recorded, dim: int, start: Affine, size: int) -> Recorded:
        """A part of a dimension: it is cut where the slice begins and ends."""
        whole = x.dims[dim]
        if not start.terms and not 0 <= start.const <= extent(whole) - size:
            raise ShapeMismatch(
                f"positions {start} to {start + size} of a dimension of {extent(whole)}"
            )
        if size == extent(whole):
            return x
        return self.resized(x, dim, self.interval(whole, size, step_of(start)))

    def interval(self, whole: Factors, size: int, offset: int) -> Factors:
        """A dimension of ``size`` positions of ``whole``, from a multiple of ``offset`` on."""
        part = self.axes.fresh(size)
        self.axes.relate(whole, part, offset)
        return part

    @staticmethod
    def resized(x: Recorded, dim: int, part: Factors) -> Recorded:
        """The tensor with another dimension in the place of one."""
        return Recorded((*x.dims[:dim], part, *x.dims[dim + 1 :]), x.domain, x.computed)

    def concat(self, xs: Sequence[Recorded], dim: int) -> Recorded:
        """A dimension that has its parts one after the other."""
        if len(xs) == 1:
            return xs[0]
        for x in xs[1:]:
            self.unify(self.resized(xs[0], dim, ()), self.resized(x, dim, ()))
        whole = self.axes.fresh(sum(extent(x.dims[dim]) for x in xs))
        offset = 0
        for x in xs:
            self.axes.relate(whole, x.dims[dim], offset)
            offset += extent(x.dims[dim])
        return self.resized(xs[0], dim, whole)

    def amax(self, x: Recorded, dim: int) -> Recorded:
        """The tensor without the dimension over which the maximum is taken."""
        return Recorded((*x.dims[:dim], *x.dims[dim + 1 :]), None, _functions([x], None))

    def onehot(self, ids: Recorded, start: Affine, size: int) -> Recorded:
        """The classes that ids index: an indexed axis, which keeps enough positions for all ids."""
        dim = self.dim(size)
        self.indexed.append(dim)
        axis = self.axes.index(dim)
        if ids.domain is None:
            return self._computed_onehot(ids, dim)
        domain = self.axes[ids.domain]
        if axis is None or domain.parts is not None:
            domain.frozen = True
            self.axes.freeze(dim)
        else:
            self.axes.union(axis, ids.domain)
            domain = self.axes[axis]
        domain.positional = True
        domain.most = max(domain.most, start.const + int(size))
        self.axes.bound(ids.domain, step_of(start))
        return Recorded((*ids.dims, dim))

    def _computed_onehot(self, ids: Recorded, classes: Factors) -> Recorded:
        """The classes that a function of ids indexes: it has a meaning at true sizes only; what is
        no function of ids alone (how many there are), where all axes have theirs."""
        if not ids.computed:
            self.axes.exact = True
        self.axes.freeze(classes)
        for axis in ids.computed:
            self.axes[axis].frozen = self.axes[axis].positional = True
        return Recorded((*ids.dims, classes))

    def causal(self, queries: int, keys: int) -> Recorded:
        """A mask relates queries to keys position by position: one indexed class."""
        dims = (self.dim(queries), self.dim(keys))
        for dim in dims:
            axis = self.axes.index(dim)
            if axis is not None:
                self.axes[axis].ordered = True
        self.axes.unify(*dims)
        return Recorded(dims)

    def order(self, queries: int, keys: int) -> Recorded:
        """As `causal`; where there are more keys than queries, both keep their true sizes."""
        if int(queries) == int(keys):
            return self.causal(queries, keys)
        dims = (self.dim(queries), self.dim(keys))
        for dim in dims:
            self.axes.freeze(dim)  # compared otherwise than from one beginning
        return Recorded(dims)

    def select(self, scores: Recorded, selection: Selection) -> Recorded:
        """A choice among experts: they are an indexed axis, and chosen ids have it as domain."""
        rows, experts = scores.dims
        count = extent(experts)
        check_selection(count, selection)
        axis = self.axes.index(experts)
        if axis is None:
            axis = self.axes.new()
            self.axes[axis].frozen, self.axes[axis].most = True, count
        self.axes[axis].chosen = True
        self.axes[axis].rules.append(lambda divisor: _selectable(count // divisor, selection))
        return Recorded((rows, self.axes.fixed(selection.topk)), axis)

    def constant(self, name: str) -> Recorded:
        """A declared table, whose dimensions keep their sizes."""
        if name not in CONSTANTS:
            raise Unsupported(f"constant {name} is not declared")
        table = CONSTANTS[name]
        sizes = (len(table), len(table[0]), len(table[0][0]))
        return Recorded(tuple(self.axes.fixed(size) for size in sizes))


def _functions(xs: Sequence[Recorded], domain: int | None) -> frozenset[int]:
    """The axes whose positions a function of tensors depends on, where it is none of ``domain``."""
    if domain is not None and all(x.domain == domain for x in xs):
        return frozenset()
    return frozenset(axis for x in xs for axis in (x.computed | {x.domain}) if axis is not None)


def _selectable(experts: int, selection: Selection) -> bool:
    try:
        check_selection(experts, selection)
    except ShapeMismatch:
        return False
    return True
