"""Operators over *lots*: one tensor of every rank of a crew, as one array with ranks in front.

`LotInterpreter` reads an operator's declaration once for all ranks of a crew.  Every rank has its
own numbers; what depends on where a rank is (an affine position) is looked up for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import FloatInterpreter
from shardproof.engine.interpreters.dims import (
    Dim,
    Extent,
    adjoin,
    is_exact,
    narrow,
    regroup,
    unit,
    weights,
)
from shardproof.engine.interpreters.numeric import largest_first
from shardproof.engine.ops.primitives import CONSTANTS, Selection, known_function

Array = NDArray[Any]
#: Terms of a sum of products from which on the order of factors matters.
LARGE: Final = 1 << 16
#: Numbers that one array may hold (512 MiB).
MOST_HELD: Final = 1 << 26

_narrow: Final = lru_cache(maxsize=1 << 14)(narrow)
_unit: Final = lru_cache(maxsize=1 << 12)(unit)
_weights: Final = lru_cache(maxsize=1 << 14)(weights)


@lru_cache(maxsize=1 << 14)
def _regrouped(dims: tuple[Dim, ...], sizes: tuple[int, ...]) -> tuple[Dim, ...]:
    return regroup(dims, sizes)


@lru_cache(maxsize=1 << 14)
def _extents(dims: tuple[Dim, ...]) -> tuple[Extent, ...]:
    return tuple(Extent(dim) for dim in dims)


def require_held(shape: Sequence[int]) -> None:
    """Raise `Unsupported` for an array that is too large to be held.

    Example: the one-hot of 32 sequences of 1,024 ids of a vocabulary of 98,304, which has 24 GiB.
    """
    if prod(shape) > MOST_HELD:
        raise Unsupported(f"an array of {' x '.join(map(str, shape))} is too large to be run")


@dataclass(frozen=True, eq=False, slots=True)
class Lot:
    """One tensor of every rank of a crew.

    Example: two ranks' vectors of 8 entries are one array of shape (2, 8); a parameter that both
    have, one of shape (1, 8).

    ``data``: one array of representatives per rank (one for all, where all have the same);
    ``dims``: what they represent, as in `engine.interpreters.dims`.
    """

    data: Array
    dims: tuple[Dim, ...]

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The true shape of one rank's tensor."""
        return _extents(self.dims)

    def of(self, position: int) -> Lot:
        """The tensor of one rank."""
        if len(self.data) == 1:
            return self
        return Lot(self.data[position : position + 1], self.dims)


def exact(data: Array) -> Lot:
    """A tensor that all ranks have, every position representing itself.

    Example: [1, 2] is the array [[1, 2]].
    """
    return Lot(data[None], tuple(_unit(n) for n in data.shape))


def together(lots: Sequence[Lot]) -> Lot:
    """The lots of single ranks as one lot.

    Example: those of [1, 2] and of [3, 4] are [[1, 2], [3, 4]].
    """
    first = lots[0]
    if all(lot is first for lot in lots):
        return first
    for lot in lots:
        _same(first.dims, lot.dims, "ranks of one program")
    return Lot(np.concatenate([lot.data for lot in lots]), first.dims)


def _same(left: tuple[Dim, ...], right: tuple[Dim, ...], what: str) -> None:
    """Raise `ShapeMismatch` for unequal sizes, `Unsupported` for unequal representations."""
    if left == right:
        return
    if _extents(left) != _extents(right):
        raise ShapeMismatch(
            f"{what}: shapes {list(map(int, _extents(left)))} and {list(map(int, _extents(right)))}"
        )
    raise Unsupported(f"{what}: one dimension is represented in two ways")


@dataclass(frozen=True)
class LotInterpreter:
    """Implements `engine.ops.primitives.Interpreter` over float64; ``coordinates``: of every
    rank.

    Example: with coordinates ``{"tp": 0}`` and ``{"tp": 1}`` a slice from ``8*tp`` on begins at 0
    and at 8.
    """

    coordinates: Sequence[Mapping[str, int]]

    @cached_property
    def floats(self) -> FloatInterpreter:
        """What the functions are, and how experts are chosen."""
        return FloatInterpreter()

    def shape(self, x: Lot) -> tuple[int, ...]:
        """The shape of one rank's tensor, the same for the whole lot."""
        return x.shape

    @staticmethod
    def dim(size: int) -> Dim:
        """A dimension whose every position stands for itself, or the known dimension of an
        extent."""
        return size.dim if isinstance(size, Extent) else _unit(size)

    def places(self, value: Affine) -> list[int]:
        """A position at every rank; one for all where it is the same."""
        try:
            positions = [value.at(at) for at in self.coordinates] if value.terms else [value.const]
        except KeyError as missing:
            raise Unsupported(f"the value {value} at an unknown coordinate {missing}") from None
        return positions[:1] if len(set(positions)) == 1 else positions

    def einsum(self, spec: str, *xs: Lot, sizes: Mapping[str, int] | None = None) -> Lot:
        """The contraction on every rank of the lot, summed positions counted by their weights."""
        left, output = spec.split("->")
        operands = left.split(",")
        dims: dict[str, Dim] = {}
        for names, x in zip(operands, xs, strict=True):
            if len(names) != len(x.dims):
                raise ShapeMismatch(f"{spec} with an operand of {len(x.dims)} dimensions")
            for name, dim in zip(names, x.dims, strict=True):
                _same((dims.setdefault(name, dim),), (dim,), f"{name} of {spec}")
        data = self._contracted(operands, output, dims, [x.data for x in xs])
        target = tuple(dims[n] if n in dims else self.dim((sizes or {})[n]) for n in output)
        if any(name not in dims for name in output):
            data = data[(slice(None), *(slice(None) if n in dims else None for n in output))]
            data = np.broadcast_to(data, [len(data), *(len(_weights(d)) for d in target)])
        return Lot(data, target)

    @staticmethod
    def _contracted(
        operands: Sequence[str], output: str, dims: Mapping[str, Dim], arrays: Sequence[Array]
    ) -> Array:
        """The sum of products for every rank, each position counted as often as it stands for."""
        kept = "".join(name for name in output if name in dims)
        if list(operands) == [kept] * len(operands):
            return np.asarray(arrays[0] if len(arrays) == 1 else _product(arrays))
        if len(operands) == 1 and len(kept) == len(operands[0]):
            order = [operands[0].index(name) + 1 for name in kept]
            return arrays[0].transpose([0, *order])
        summed = {n: _weights(d) for n, d in dims.items() if n not in output}
        uneven = {n: w for n, w in summed.items() if any(k != 1 for k in w)}
        left = [f"...{names}" for names in operands] + list(uneven)
        factors = [*arrays, *(np.array(w, dtype=float) for w in uneven.values())]
        spec = f"{','.join(left)}->...{kept}"
        return np.asarray(np.einsum(spec, *factors, optimize=_large(dims)))

    def combine(self, xs: Sequence[Lot], factors: Sequence[Fraction], constant: Fraction) -> Lot:
        """The weighted sum plus a constant, on every rank of the lot."""
        if len(xs) != len(factors) or not xs:
            raise ShapeMismatch(f"a combination of {len(xs)} tensors with {len(factors)} factors")
        total: Any = float(constant) if constant else None
        for place in largest_first(factors):
            x, factor = xs[place], factors[place]
            _same(xs[0].dims, x.dims, "addends")
            part = x.data if factor == 1 else float(factor) * x.data
            total = part if total is None else total + part
        return Lot(total, xs[0].dims)

    def unary(self, function: str, x: Lot) -> Lot:
        """A declared function of every entry, in float64."""
        if not known_function(function):
            raise Unsupported(f"function {function} is not declared")
        return Lot(self.floats._unary(function, x.data), x.dims)

    def reshape(self, x: Lot, shape: tuple[int, ...]) -> Lot:
        """Every rank's entries in another shape; weighted positions are split and joined by factors
        only."""
        dims = _regrouped(x.dims, tuple(int(n) for n in shape))
        counts = [len(_weights(dim)) for dim in dims]
        return Lot(x.data.reshape([len(x.data), *counts]), dims)

    def slice(self, x: Lot, dim: int, start: Affine, size: int) -> Lot:
        """Of every rank's tensor the positions from its own ``start`` on: the ranks may begin at
        different ones."""
        cuts = [_narrow(x.dims[dim], place, int(size)) for place in self.places(start)]
        dims = (*x.dims[:dim], cuts[0][0], *x.dims[dim + 1 :])
        if len(cuts) == 1:
            return Lot(x.data[(slice(None),) * (dim + 1) + (cuts[0][1],)], dims)
        for cut, _ in cuts:
            _same((cuts[0][0],), (cut,), "slices of several ranks")
        index = (slice(None),) * dim
        parts = [x.of(i).data[0][(*index, kept)] for i, (_, kept) in enumerate(cuts)]
        return Lot(np.stack(parts), dims)

    def concat(self, xs: Sequence[Lot], dim: int) -> Lot:
        """Every rank's tensors one after the other; a tensor that all ranks share is repeated."""
        first = xs[0].dims
        for x in xs[1:]:
            _same((*first[:dim], *first[dim + 1 :]), (*x.dims[:dim], *x.dims[dim + 1 :]), "parts")
        ranks = max(len(x.data) for x in xs)
        arrays = [np.broadcast_to(x.data, (ranks, *x.data.shape[1:])) for x in xs]
        joined = adjoin([x.dims[dim] for x in xs])
        return Lot(np.concatenate(arrays, axis=dim + 1), (*first[:dim], joined, *first[dim + 1 :]))

    def amax(self, x: Lot, dim: int) -> Lot:
        """The largest entry along a dimension, rank by rank."""
        if not x.data.shape[dim + 1]:
            raise Unsupported("the maximum of nothing")
        return Lot(x.data.max(axis=dim + 1), (*x.dims[:dim], *x.dims[dim + 1 :]))

    def onehot(self, ids: Lot, start: Affine, size: int) -> Lot:
        """1 where an id is the class; every rank's classes begin at its own ``start``."""
        dim = self.dim(size)
        if not is_exact(dim):
            raise Unsupported("classes that stand for several")
        places = self.places(start)
        require_held([max(len(places), len(ids.data)), *ids.data.shape[1:], int(size)])
        first = np.array(places).reshape([-1, *(1 for _ in ids.dims), 1])
        matches = ids.data[..., None] == first + np.arange(int(size))
        return Lot(matches.astype(float), (*ids.dims, dim))

    def causal(self, queries: int, keys: int) -> Lot:
        """[queries, keys]: minus infinity where the key comes after the query, for every rank."""
        rows, columns = self.dim(queries), self.dim(keys)
        if not (is_exact(rows) and is_exact(columns)):
            raise Unsupported("a mask over positions that stand for several")
        masked = np.arange(int(keys))[None, :] > np.arange(int(queries))[:, None]
        return Lot(np.where(masked, -np.inf, 0.0)[None], (rows, columns))

    def order(self, queries: int, keys: int) -> Lot:
        """[queries, keys]: 1 where the key is not after the query, else 0, for every rank."""
        masked = self.causal(queries, keys)
        return Lot(np.where(masked.data < 0, 0.0, 1.0), masked.dims)

    def select(self, scores: Lot, selection: Selection) -> Lot:
        """Which experts each row of scores chooses, rank by rank."""
        chosen = []
        for rank in range(len(scores.data)):
            one = self.floats.select(_weighted(scores.of(rank)), selection)
            chosen.append(Lot(one.data[None], one.dims))
        return together(chosen)

    def constant(self, name: str) -> Lot:
        """A declared table of integers, one for all ranks."""
        if name not in CONSTANTS:
            raise Unsupported(f"constant {name} is not declared")
        return exact(np.array(CONSTANTS[name], dtype=float))


def _large(dims: Mapping[str, Dim]) -> bool:
    """Whether it is worth while to look for the best order of a product."""
    return prod(len(_weights(dim)) for dim in dims.values()) > LARGE


def _product(arrays: Sequence[Array]) -> Array:
    total = arrays[0]
    for array in arrays[1:]:
        total = total * array
    return total


def _weighted(lot: Lot) -> Any:
    from shardproof.engine.interpreters import Weighted

    return Weighted(lot.data[0], lot.dims)
