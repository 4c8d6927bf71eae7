"""Operators over a finite field, with random functions.

Identities that hold whatever the elementwise functions are hold here for every seed; a computation
that differs as a rational expression in its inputs and in function values differs here at random
inputs, but for a chance of about its degree divided by the prime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters.base import Array, ArrayInterpreter, aligned
from shardproof.engine.ops.laws import of_constant
from shardproof.engine.ops.primitives import Selection

#: Products of two residues, and sums of 2^32 residues, fit 64 bits.
PRIME = 2**31 - 1
#: The entry of a masked position; residues are not negative.
MASK = -1


@dataclass(frozen=True)
class FieldInterpreter(ArrayInterpreter):
    """Tensors over a finite field, with random functions.

    Example: with seed 0, ``exp`` of 0 is 1, as the law has it, and ``exp`` of 5 is 1146292674, a
    hash.

    Entries are int64 residues modulo ``prime``, or `MASK`.

    Elementwise functions, indicators (one-hot) and choices are keyed hashes of their arguments; at
    0 and 1 a function has the value that a law gives it (exp(0) and inv(1) are 1).
    A maximum is the entry that comes last in a random order of the field: like the real maximum
    it is one of the entries and indifferent to order, grouping and repetition.
    """

    prime: int = PRIME
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 < self.prime <= PRIME:
            raise ValueError(f"the prime {self.prime} is not between 3 and {PRIME}")

    def _contract(
        self,
        operands: Sequence[str],
        arrays: Sequence[Array],
        output: str,
        summed: Mapping[str, tuple[int, ...]],
    ) -> Array:
        masks = [array == MASK for array in arrays]
        masked = any(mask.any() for mask in masks)
        if masked and len(arrays) > 1:
            raise Unsupported("a product with a masked entry")
        total, names = np.where(masks[0], 0, arrays[0]), operands[0]
        total, names = self._sum_out(total, names, "".join(operands[1:]) + output, summed)
        for i, (array, labels) in enumerate(zip(arrays[1:], operands[1:], strict=True), 2):
            both = names + "".join(name for name in labels if name not in names)
            total = aligned(total, names, both) * aligned(array, labels, both) % self.prime
            total, names = self._sum_out(total, both, "".join(operands[i:]) + output, summed)
        result = aligned(total, names, output)
        if masked:
            gone = tuple(i for i, name in enumerate(operands[0]) if name not in output)
            result = np.where(aligned(masks[0].any(axis=gone), names, output), MASK, result)
        return result

    def _sum_out(
        self, array: Array, names: str, needed: str, summed: Mapping[str, tuple[int, ...]]
    ) -> tuple[Array, str]:
        """The array summed over its labels that are not ``needed``."""
        for name in names:
            if name not in needed:
                axis = names.index(name)
                factors = np.array([w % self.prime for w in summed[name]], dtype=np.int64)
                array = np.moveaxis(array, axis, -1) * factors % self.prime
                array = array.sum(axis=-1) % self.prime
                names = names[:axis] + names[axis + 1 :]
        return array, names

    def _combine(
        self, arrays: Sequence[Array], factors: Sequence[Fraction], constant: Fraction
    ) -> Array:
        total = np.full(arrays[0].shape, self.residue(constant), dtype=np.int64)
        masked = np.zeros(arrays[0].shape, dtype=bool)
        for array, factor in zip(arrays, factors, strict=True):
            mask = array == MASK
            if factor <= 0 and mask.any():
                raise Unsupported(f"a masked entry times {factor}")
            masked |= mask
            total = (total + array * self.residue(factor)) % self.prime
        return np.where(masked, MASK, total)

    def residue(self, value: Fraction) -> int:
        """The fraction as an element of the field; raises `Unsupported` if it is none."""
        if value.denominator % self.prime == 0:
            raise Unsupported(f"{value} modulo {self.prime}")
        return value.numerator * pow(value.denominator, -1, self.prime) % self.prime

    def _hash(self, name: str, *arguments: Array) -> Array:
        """A random function of as many arguments, elementwise."""
        digest = blake2b(f"{self.seed} {name} {len(arguments)}".encode(), digest_size=8).digest()
        state = np.full((), int.from_bytes(digest, "little"), dtype=np.uint64)
        return reduce(lambda s, x: _mix(s ^ _mix(x.astype(np.uint64))), arguments, state)

    def _apply(self, name: str, *arguments: Array) -> Array:
        return (self._hash(name, *arguments) % np.uint64(self.prime)).astype(np.int64)

    def _unary(self, function: str, x: Array) -> Array:
        masked = x == MASK
        if masked.any() and function != "exp":
            raise Unsupported(f"{function} of a masked entry")
        values = self._apply(function, x)
        for number in (0, 1):
            known = of_constant(function, Fraction(number))
            if known is not None:
                values = np.where(x == number, self.residue(known), values)
        return np.where(masked, 0, values)

    def _amax(self, x: Array, dim: int) -> Array:
        masked = x == MASK
        if masked.all(axis=dim).any():
            raise Unsupported("the maximum of masked entries only")
        order = np.where(masked, np.uint64(0), self._hash("max", x) | np.uint64(1))
        last = np.expand_dims(order.argmax(axis=dim), dim)
        return np.take_along_axis(x, last, axis=dim).squeeze(dim)

    def _onehot(self, ids: Array, classes: Sequence[int]) -> Array:
        return self._apply("is", ids[..., None], np.array(classes, dtype=np.int64))

    def _mask(self, masked: NDArray[np.bool_]) -> Array:
        return np.where(masked, MASK, 0).astype(np.int64)

    def _select(self, scores: Array, selection: Selection) -> Array:
        if (scores == MASK).any():
            raise Unsupported("a choice among masked entries")
        columns = [scores[:, e] for e in range(scores.shape[1])]
        chosen = [self._apply(f"{selection} {j}", *columns) for j in range(selection.topk)]
        return np.stack(chosen, axis=1)

    def _integers(self, values: Array) -> Array:
        return np.asarray(values % self.prime, dtype=np.int64)


def _mix(x: Array) -> Array:
    """A bijection of 64 bits in which every input bit moves every output bit (splitmix64)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
