"""What all interpreters of arrays share: dimensions are worked out here, entries by each one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters.dims import (
    Dim,
    Extent,
    Weighted,
    adjoin,
    exact,
    is_exact,
    narrow,
    regroup,
    unit,
    weights,
)
from shardproof.engine.ops.primitives import (
    CONSTANTS,
    Selection,
    check_selection,
    known_function,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class ArrayInterpreter(ABC):
    """An `Interpreter` of `Weighted` arrays; subclasses know what an entry is.

    Example: with ``extents={8: ((3, 5),)}`` a dimension of 8 positions that an operator makes has
    two representatives, of 3 and of 5 positions.

    ``extents``: how a plain true size is represented (default: exactly); sizes taken from
    `shape` represent themselves.  ``positions``: (start, true size) -> the absolute positions of
    the representatives of a one-hot's classes or of a mask's queries and keys (``start`` 0);
    without an entry such a dimension has to be exact.  ``coordinates``: where affine attributes
    are evaluated.
    """

    extents: Mapping[int, Dim] = field(default_factory=dict, kw_only=True)
    positions: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, kw_only=True)
    coordinates: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for size, dim in self.extents.items():
            if Extent(dim) != size:
                raise ValueError(f"the weights {dim} do not represent {size} positions")

    def shape(self, x: Weighted) -> tuple[int, ...]:
        """The true shape."""
        return x.shape

    def dim(self, size: int) -> Dim:
        """How a dimension of true ``size`` is represented."""
        if isinstance(size, Extent):
            return size.dim
        return self.extents.get(size) or unit(size)

    def at(self, value: Affine) -> int:
        """The value at this reading's coordinates."""
        try:
            return value.at(self.coordinates)
        except KeyError as missing:
            raise Unsupported(f"the value {value} at an unknown coordinate {missing}") from None

    def absolute(self, start: int, size: int) -> tuple[Dim, tuple[int, ...]]:
        """A positional dimension and the absolute positions of its representatives."""
        dim = self.dim(size)
        known = self.positions.get((start, int(size)))
        if known is None:
            if not is_exact(dim):
                raise Unsupported(f"positions {start} to {start + size} of {dim} are not given")
            return dim, tuple(range(start, start + size))
        if len(known) != len(weights(dim)):
            raise Unsupported(f"positions {known} do not fit the dimension {dim}")
        return dim, known

    def einsum(self, spec: str, *xs: Weighted, sizes: Mapping[str, int] | None = None) -> Weighted:
        """A contraction entry by entry; a summed position counts as often as its weight says."""
        left, output = spec.split("->")
        operands = left.split(",")
        dims: dict[str, Dim] = {}
        for names, x in zip(operands, xs, strict=True):
            if len(names) != len(x.dims):
                raise ShapeMismatch(f"{spec} with an operand of shape {list(x.shape)} as {names}")
            for name, dim in zip(names, x.dims, strict=True):
                require_equal(dims.setdefault(name, dim), dim, f"{name} of {spec}")
        kept = "".join(name for name in output if name in dims)
        summed = {name: weights(dim) for name, dim in dims.items() if name not in output}
        data = self._contract(operands, [x.data for x in xs], kept, summed)
        if kept == output:
            return Weighted(data, tuple(dims[name] for name in output))
        target = tuple(dims[n] if n in dims else self.dim((sizes or {})[n]) for n in output)
        data = data[tuple(slice(None) if name in dims else None for name in output)]
        return Weighted(np.broadcast_to(data, [len(weights(dim)) for dim in target]), target)

    def combine(
        self, xs: Sequence[Weighted], factors: Sequence[Fraction], constant: Fraction
    ) -> Weighted:
        """A weighted sum of tensors of equal dimensions, plus a constant."""
        if len(xs) != len(factors) or not xs:
            raise ShapeMismatch(f"a combination of {len(xs)} tensors with {len(factors)} factors")
        for x in xs[1:]:
            require_equal_dims(xs[0], x)
        return Weighted(self._combine([x.data for x in xs], factors, constant), xs[0].dims)

    def unary(self, function: str, x: Weighted) -> Weighted:
        """A declared function of every entry."""
        if not known_function(function):
            raise Unsupported(f"function {function} is not declared")
        return Weighted(self._unary(function, x.data), x.dims)

    def reshape(self, x: Weighted, shape: tuple[int, ...]) -> Weighted:
        """The same entries; dimensions are split and joined only between their factors."""
        dims = regroup(x.dims, shape)
        return Weighted(x.data.reshape([len(weights(dim)) for dim in dims]), dims)

    def slice(self, x: Weighted, dim: int, start: Affine, size: int) -> Weighted:
        """The representatives of ``size`` positions from ``start`` on, at this interpreter's
        coordinates."""
        cut, kept = narrow(x.dims[dim], self.at(start), size)
        data = x.data[(slice(None),) * dim + (kept,)]
        return Weighted(data, (*x.dims[:dim], cut, *x.dims[dim + 1 :]))

    def concat(self, xs: Sequence[Weighted], dim: int) -> Weighted:
        """Tensors one after the other; the joined dimension represents what its parts do."""
        for x in xs[1:]:
            require_equal_dims(xs[0], x, but=dim)
        joined = adjoin([x.dims[dim] for x in xs])
        data = np.concatenate([x.data for x in xs], axis=dim)
        return Weighted(data, (*xs[0].dims[:dim], joined, *xs[0].dims[dim + 1 :]))

    def amax(self, x: Weighted, dim: int) -> Weighted:
        """The largest entry along a dimension, which may not be empty."""
        if not x.data.shape[dim]:
            raise Unsupported("the maximum of nothing")
        return Weighted(self._amax(x.data, dim), (*x.dims[:dim], *x.dims[dim + 1 :]))

    def onehot(self, ids: Weighted, start: Affine, size: int) -> Weighted:
        """1 where an id is the class, over ``size`` classes from ``start`` on."""
        dim, classes = self.absolute(self.at(start), size)
        return Weighted(self._onehot(ids.data, classes), (*ids.dims, dim))

    def causal(self, queries: int, keys: int) -> Weighted:
        """[queries, keys]: minus infinity where the key's true position comes after the query's."""
        rows, columns = self.absolute(0, queries), self.absolute(0, keys)
        masked = np.array(columns[1])[None, :] > np.array(rows[1])[:, None]
        return Weighted(self._mask(masked), (rows[0], columns[0]))

    def order(self, queries: int, keys: int) -> Weighted:
        """[queries, keys]: 1 where the key's true position is not after the query's, else 0."""
        rows, columns = self.absolute(0, queries), self.absolute(0, keys)
        before = np.array(columns[1])[None, :] <= np.array(rows[1])[:, None]
        return Weighted(self._integers(before.astype(int)), (rows[0], columns[0]))

    def select(self, scores: Weighted, selection: Selection) -> Weighted:
        """Which experts each row of scores chooses; all experts have to be there."""
        if len(scores.dims) != 2 or not is_exact(scores.dims[1]):
            raise Unsupported(f"a choice among {scores.dims[1:]}: every expert is needed")
        check_selection(int(scores.shape[1]), selection)
        return Weighted(
            self._select(scores.data, selection), (scores.dims[0], unit(selection.topk))
        )

    def constant(self, name: str) -> Weighted:
        """A declared table of integers by its name, every position for itself."""
        if name not in CONSTANTS:
            raise Unsupported(f"constant {name} is not declared")
        return exact(self._integers(np.array(CONSTANTS[name])))

    @abstractmethod
    def _contract(
        self,
        operands: Sequence[str],
        arrays: Sequence[Array],
        output: str,
        summed: Mapping[str, tuple[int, ...]],
    ) -> Array:
        """An einsum without broadcasting; each summed label has weights."""

    @abstractmethod
    def _combine(
        self, arrays: Sequence[Array], factors: Sequence[Fraction], constant: Fraction
    ) -> Array: ...

    @abstractmethod
    def _unary(self, function: str, x: Array) -> Array: ...

    @abstractmethod
    def _amax(self, x: Array, dim: int) -> Array: ...

    @abstractmethod
    def _onehot(self, ids: Array, classes: Sequence[int]) -> Array: ...

    @abstractmethod
    def _mask(self, masked: NDArray[np.bool_]) -> Array:
        """Minus infinity where ``masked``, else 0."""

    @abstractmethod
    def _select(self, scores: Array, selection: Selection) -> Array: ...

    @abstractmethod
    def _integers(self, values: Array) -> Array:
        """Integers as entries."""


def require_equal(left: Dim, right: Dim, what: str) -> None:
    """Raise `ShapeMismatch` for unequal sizes, `Unsupported` for unequal representations.

    Example: ``((3, 5),)`` and ``((4,),)`` are of sizes 8 and 4; ``((3, 5),)`` and ``((4, 4),)`` are
    one size, represented in two ways.
    """
    if left == right:
        return
    if Extent(left) != Extent(right):
        raise ShapeMismatch(f"{what}: sizes {Extent(left)} and {Extent(right)}")
    raise Unsupported(f"{what}: one dimension represented as {left} and as {right}")


def require_equal_dims(x: Weighted, y: Weighted, but: int | None = None) -> None:
    """`require_equal` for all dimensions, except possibly one.

    Example: with ``but=0`` two vectors of 8, as ``((3, 5),)`` and as ``((4, 4),)``, pass.
    """
    if len(x.dims) != len(y.dims):
        raise ShapeMismatch(f"tensors of shapes {list(x.shape)} and {list(y.shape)}")
    for i, (left, right) in enumerate(zip(x.dims, y.dims, strict=True)):
        if i != but:
            require_equal(left, right, f"dimension {i}")


def aligned(array: Array, names: str, order: str) -> Array:
    """The array with its axes in ``order``, of length 1 where ``names`` lacks them.

    Example: an array of shape (2, 3) with names "ab" in the order "bca" has shape (3, 1, 2).
    """
    moved = array.transpose([names.index(name) for name in order if name in names])
    # The leading ellipsis keeps an array an array where it has no axes.
    return moved[(..., *(slice(None) if name in names else None for name in order))]
