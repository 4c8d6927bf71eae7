"""Operators over terms, for the solvers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import product
from math import prod
from operator import mul
from typing import Any, Final, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters.base import Array, ArrayInterpreter, aligned
from shardproof.engine.ops.laws import of_constant
from shardproof.engine.ops.primitives import Selection


@final
class Masked:
    """Minus infinity, as far as a mask needs it; anything else with it raises `Unsupported`.

    Example: ``MASKED + 1`` is ``MASKED``, and so is ``2 * MASKED``; ``-1 * MASKED`` is refused.

    It absorbs what is added to it and positive constant factors.
    """

    __slots__ = ()

    def __add__(self, other: object) -> Masked:
        return self

    __radd__ = __add__

    def __sub__(self, other: object) -> Masked:
        if other is self:
            raise Unsupported("the difference of two masked entries")
        return self

    def __mul__(self, other: object) -> Masked:
        value = other.value if isinstance(other, Term) else other
        if isinstance(value, int | Fraction) and value > 0:
            return self
        raise Unsupported(f"a masked entry times {other!r}")

    __rmul__ = __mul__

    def __neg__(self) -> NoReturn:
        raise Unsupported("the negative of a masked entry")

    def __rsub__(self, other: object) -> NoReturn:
        raise Unsupported("the negative of a masked entry")

    def __repr__(self) -> str:
        return "MASKED"


#: The entry of a masked position.
MASKED: Final = Masked()

Entry = Term | Masked


@dataclass(frozen=True)
class TermInterpreter(ArrayInterpreter):
    """Tensors of terms, for the solvers.

    Example: ``linear`` of [[x0, x1]] and [[w0, w1]] is [[x0 * w0 + x1 * w1]], and the maximum of x0
    and x1, in either order, is ``max2(x0, x1)``.

    Entries are terms of ``table``, or `MASKED`.

    Functions are uninterpreted: elementwise ones by name, "max<n>" of n distinct entries ordered
    by uid (a maximum of maxima is the maximum of all), "is" of an id and an absolute position,
    "select:<selection>:<j>" of a row.
    """

    table: TermTable

    def _contract(
        self,
        operands: Sequence[str],
        arrays: Sequence[Array],
        output: str,
        summed: Mapping[str, tuple[int, ...]],
    ) -> Array:
        """One flat sum of products per entry, in the order of operands and positions."""
        if len(arrays) == 1 and not summed:
            return aligned(arrays[0], operands[0], output)
        sizes = {
            name: size
            for names, array in zip(operands, arrays, strict=True)
            for name, size in zip(names, array.shape, strict=True)
        }
        order = output + "".join(summed)
        full = [sizes[name] for name in order]
        outer = full[: len(output)]
        multiplicities = [prod(w) for w in product(*summed.values())]
        columns = [
            np.broadcast_to(aligned(array, names, order), full).reshape(
                prod(outer), len(multiplicities)
            )
            for names, array in zip(operands, arrays, strict=True)
        ]
        entries = [
            self.total_of(
                self.product_of([w, *(row[i] for row in rows)])
                for i, w in enumerate(multiplicities)
            )
            for rows in zip(*columns, strict=True)
        ]
        return _array(entries, outer)

    def total_of(self, entries: Iterable[Entry]) -> Entry:
        """A sum over positions."""
        return self.sum_of(entries)

    def sum_of(self, entries: Iterable[Entry]) -> Entry:
        """The sum of entries."""
        parts = list(entries)
        terms = [part for part in parts if isinstance(part, Term)]
        return self.table.add(*terms) if len(terms) == len(parts) else MASKED

    def product_of(self, factors: Sequence[Any]) -> Any:
        """The product of entries."""
        if any(factor is MASKED for factor in factors):
            return reduce(mul, factors)
        return self.table.mul(*factors)

    def _combine(
        self, arrays: Sequence[Array], factors: Sequence[Fraction], constant: Fraction
    ) -> Array:
        last = self.table.const(constant)
        flat = [array.ravel() for array in arrays]
        entries = [
            self.sum_of(
                [*(self.product_of(pair) for pair in zip(factors, entry, strict=True)), last]
            )
            for entry in zip(*flat, strict=True)
        ]
        return _array(entries, arrays[0].shape)

    def _unary(self, function: str, x: Array) -> Array:
        def apply(entry: Entry) -> Term:
            if isinstance(entry, Term):
                return self.applied_to(function, entry)
            if function == "exp":
                return self.table.zero
            raise Unsupported(f"{function} of a masked entry")

        return _map(apply, x)

    def applied_to(self, function: str, entry: Term) -> Term:
        """A function of an entry, computed where that is a constant with an exact value.

        Example: of numbers that are all x a softmax takes ``exp`` of x - x, which is 1.
        """
        constant = Fraction(0) if _is_nothing(entry) else entry.value
        value = None if constant is None else of_constant(function, constant)
        return self.table.app(function, entry) if value is None else self.table.const(value)

    def _amax(self, x: Array, dim: int) -> Array:
        rows = np.moveaxis(x, dim, -1)
        flat = rows.reshape(prod(rows.shape[:-1]), rows.shape[-1])
        return _array([self.maximum_of(list(row)) for row in flat], rows.shape[:-1])

    def maximum_of(self, row: Sequence[Entry]) -> Term:
        """The maximum of entries."""
        leaves: set[Term] = set()
        for entry in row:
            if isinstance(entry, Term):
                leaves.update(entry.args if is_maximum(entry) else (entry,))
        if not leaves:
            raise Unsupported("the maximum of masked entries only")
        ordered = sorted(leaves, key=lambda term: term.uid)
        return ordered[0] if len(ordered) == 1 else self.table.app(f"max{len(ordered)}", *ordered)

    def _onehot(self, ids: Array, classes: Sequence[int]) -> Array:
        entries = [self.table.app("is", i, self.table.const(c)) for i in ids.flat for c in classes]
        return _array(entries, (*ids.shape, len(classes)))

    def _mask(self, masked: NDArray[np.bool_]) -> Array:
        return _map(lambda entry: MASKED if entry else self.table.zero, masked)

    def _select(self, scores: Array, selection: Selection) -> Array:
        if any(entry is MASKED for entry in scores.flat):
            raise Unsupported("a choice among masked entries")
        entries = [
            self.table.app(f"select:{selection}:{j}", *row)
            for row in scores
            for j in range(selection.topk)
        ]
        return _array(entries, (len(scores), selection.topk))

    def _integers(self, values: Array) -> Array:
        return _map(lambda value: self.table.const(int(value)), values)


def _is_nothing(entry: Term) -> bool:
    """Whether a term is so many times one less as many times the same."""
    _, gap = _scaled(entry)
    if gap.kind != "add" or len(gap.args) != 2:
        return False
    (first, one), (second, other) = map(_scaled, gap.args)
    return one is other and first == -second


def _scaled(term: Term) -> tuple[Fraction, Term]:
    """A term as a number times another."""
    number = term.args[0].value if term.kind == "mul" else None
    return (Fraction(1), term) if number is None else (number, term.args[1])


def is_maximum(term: Term) -> bool:
    """Whether a term is the maximum of its arguments.

    Example: ``max2(v0, v1)`` is, twice that is not.
    """
    return term.kind == "app" and term.name == f"max{len(term.args)}"


def _array(entries: Sequence[Entry], shape: Sequence[int]) -> Array:
    result = np.empty(len(entries), dtype=object)
    result[:] = entries
    return result.reshape(tuple(shape))


def _map(function: Callable[[Any], Entry], x: Array) -> Array:
    return _array([function(entry) for entry in x.flat], x.shape)
