"""Operators over float64, with the true functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import gamma
from shardproof.engine.interpreters.base import Array, ArrayInterpreter
from shardproof.engine.interpreters.gamma import each
from shardproof.engine.ops.primitives import Selection

_erfc = np.frompyfunc(math.erfc, 1, 1)
_erf = np.frompyfunc(math.erf, 1, 1)

#: How near a whole number is that number, but for rounding: absolutely, and of large numbers
#: relatively.  A quotient of whole numbers is as near as one over its divisor and no whole number.
NEAR, NEAR_LARGE = 1e-9, 1e-12


def _whole(x: Array) -> Array:
    """Numbers that are whole but for rounding as whole numbers: else two orders of one sum would be
    rounded to two different ones."""
    nearest = np.rint(x)
    return np.where(np.abs(x - nearest) <= np.maximum(NEAR, NEAR_LARGE * np.abs(x)), nearest, x)


TRUE_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "inv": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "normal_cdf": lambda x: np.asarray(_erfc(-x / math.sqrt(2)), dtype=float) / 2,
    "normal_pdf": lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "erf": lambda x: np.asarray(_erf(x), dtype=float),
    "erfinv": each(gamma.erfinv),
    "lgamma": each(gamma.lgamma),
    "digamma": each(gamma.digamma),
    "trigamma": each(gamma.trigamma),
    "gaussian": lambda x: 2 * np.exp(-x * x) / math.sqrt(math.pi),
    "relu": lambda x: np.maximum(x, 0.0),
    "step": lambda x: np.where(x > 0, 1.0, 0.0),
    "abs": np.abs,
    "sign": np.sign,
    "floor": lambda x: np.floor(_whole(x)),
    "ceil": lambda x: np.ceil(_whole(x)),
    "trunc": lambda x: np.trunc(_whole(x)),
    "round": lambda x: np.rint(_whole(2 * x) / 2),
}


def _number(exact: Fraction, dtype: np.dtype[np.generic]) -> Any:
    """A number with all the digits of a type."""
    number = float(exact)
    if dtype == np.float64 or not math.isfinite(number):
        return number
    return np.longdouble(number) + np.longdouble(float(exact - Fraction(number)))


def largest_first(factors: Sequence[Fraction]) -> list[int]:
    """The order in which multiples are added to a constant: what cancels a large constant comes
    before what is small, which would be lost beside it.

    Example: [1, 0] of ``[1, 10**38]``, as in ``mask x + 10**38 mask - 10**38``, a finite mask.
    """
    return sorted(range(len(factors)), key=lambda place: -abs(factors[place]))


class _OneHot(np.ndarray[tuple[int, ...], np.dtype[np.float64]]):
    """Ones at chosen classes, which knows where they are: a product with a table is its rows then.
    What is made of it (a view, a sum) is an array that knows nothing.

    ``places``: by entry of the ids the position of its class, and -1 where it has none.
    """

    places: NDArray[np.intp] | None

    def __array_finalize__(self, made_of: object) -> None:
        self.places = None


def _one_hot(ids: Array, classes: Array) -> Array:
    """What `_OneHot` says, of classes in ascending order: nearly all of it is never touched."""
    places = np.minimum(np.searchsorted(classes, ids), len(classes) - 1)
    hits = classes[places] == ids
    made = np.zeros((ids.size, len(classes)))
    made[np.arange(ids.size), places.ravel()] = hits.ravel()
    result = made.reshape(*ids.shape, len(classes)).view(_OneHot)
    result.places = np.where(hits, places, -1)
    return result


def _rows(spec: tuple[str, str, str], chosen: _OneHot, table: Array) -> Array | None:
    """The product of a one-hot with a table, as the rows that it chooses; None where ``spec`` (the
    labels of both, and of the result) is another product."""
    if chosen.places is None:
        return None
    ids, rows, output = spec[0][:-1], spec[1].replace(spec[0][-1], ""), spec[2]
    alone = len(rows) == len(spec[1]) - 1 and sorted(ids + rows) == sorted(set(output))
    if not alone:
        return None
    picks = np.moveaxis(table, spec[1].index(spec[0][-1]), 0)[chosen.places]
    picks[chosen.places < 0] = 0.0
    return picks.transpose([(ids + rows).index(name) for name in output])


def _largest(scores: Array, count: int) -> Array:
    """Where the largest entries of each row are, in descending order; of equal ones the lowest
    index first.

    Example: of ``[[1, 3, 2, 3]]`` the largest two are at ``[[1, 3]]``.
    """
    behind = -scores
    last = np.partition(behind, count - 1, axis=1)[:, count - 1 : count]
    among = behind <= last
    if (among.sum(axis=1) != count).any():
        # Equal ones, of which not all are chosen, or what is no number: all are put in order.
        return np.argsort(behind, axis=1, kind="stable")[:, :count]
    places = np.nonzero(among)[1].reshape(-1, count)
    order = np.argsort(np.take_along_axis(behind, places, 1), axis=1, kind="stable")
    return np.take_along_axis(places, order, 1)


#: Products of this many numbers and more are left to matrix products, which take a tenth of the
#: time of a loop over them; a smaller one is done before these have begun.
LARGE_PRODUCT: Final = 1 << 15


@lru_cache(maxsize=4096)
def _order_of(spec: str, shapes: tuple[tuple[int, ...], ...]) -> bool | list[str | tuple[int, ...]]:
    """In which order operands of these shapes are contracted: as ``einsum(..., optimize=True)``
    finds it for each product anew; of one or two, False unless it is a large product."""
    if len(shapes) <= 2:
        extents = dict(zip(spec.split("->")[0].replace(",", ""), chain(*shapes), strict=True))
        large = len(shapes) == 2 and math.prod(extents.values()) >= LARGE_PRODUCT
        return ["einsum_path", (0, 1)] if large else False
    path: list[str | tuple[int, ...]]
    path, _ = np.einsum_path(
        spec, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize=True
    )
    return path


@dataclass(frozen=True)
class FloatInterpreter(ArrayInterpreter):
    """Tensors over float64, with the true functions.

    Example: ``log`` of 0, -1 and 1 is -inf, NaN and 0.

    Entries are float64; masked ones are minus infinity.  Outside a function's domain the
    result is IEEE's infinity or NaN, without a warning.
    """

    def _contract(
        self,
        operands: Sequence[str],
        arrays: Sequence[Array],
        output: str,
        summed: Mapping[str, tuple[int, ...]],
    ) -> Array:
        uneven = {name: w for name, w in summed.items() if any(n != 1 for n in w)}
        if len(arrays) == 2 and isinstance(arrays[0], _OneHot) and not uneven:
            rows = _rows((operands[0], operands[1], output), arrays[0], arrays[1])
            if rows is not None:
                return rows
        spec = ",".join([*operands, *uneven]) + "->" + output
        factors = [*arrays, *(np.array(w, dtype=float) for w in uneven.values())]
        path = _order_of(spec, tuple(f.shape for f in factors))
        return np.asarray(np.einsum(spec, *factors, optimize=path))

    def _combine(
        self, arrays: Sequence[Array], factors: Sequence[Fraction], constant: Fraction
    ) -> Array:
        dtype = np.result_type(np.float64, *arrays)
        total = np.full(arrays[0].shape, _number(constant, dtype), dtype)
        for place in largest_first(factors):
            total += _number(factors[place], dtype) * arrays[place]
        return total

    def _unary(self, function: str, x: Array) -> Array:
        with np.errstate(all="ignore"):
            if function.startswith("pow:"):
                return np.asarray(np.power(x, float(Fraction(function[4:]))))
            if function not in TRUE_FUNCTIONS:
                raise Unsupported(f"function {function} has no values")
            return np.asarray(TRUE_FUNCTIONS[function](x))

    def _amax(self, x: Array, dim: int) -> Array:
        return np.asarray(x.max(axis=dim))

    def _onehot(self, ids: Array, classes: Sequence[int]) -> Array:
        known = np.array(classes)
        if len(known) and (known[1:] > known[:-1]).all():
            return _one_hot(ids, known)
        return np.asarray(ids[..., None] == known, dtype=float)

    def _mask(self, masked: NDArray[np.bool_]) -> Array:
        return np.where(masked, -np.inf, 0.0)

    def _select(self, scores: Array, selection: Selection) -> Array:
        """The chosen in descending order; of equal ones the lowest index first."""
        rows, experts = scores.shape
        grouped = scores.reshape(rows, selection.groups, -1)
        best = -np.sort(-grouped, axis=2)
        ranks = best[:, :, :2].sum(axis=2) if selection.group_score == "top2" else best[:, :, 0]
        groups = np.argsort(-ranks, axis=1, kind="stable")[:, : selection.topk_groups]
        kept = (np.arange(selection.groups) == groups[:, :, None]).any(axis=1)
        eligible = np.where(kept[:, :, None], grouped, -np.inf).reshape(rows, experts)
        return _largest(eligible, selection.topk).astype(float)

    def _integers(self, values: Array) -> Array:
        return values.astype(float)
