"""Affine integer functions of mesh coordinates.

Positions of shards are functions of where a program runs: replica ``dp``, tensor-parallel rank
``tp``, microbatch ``mb``.  Keeping them symbolic is what lets one claim stand for a whole family
of ranks and microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + sum(coefficient * coordinate)``; coefficients are non-zero, sorted by axis name.

    Example: ``affine(4, {"tp": 8})``, written ``8*tp + 4``, is where the shard of rank ``tp``
    begins; at ``tp`` 3 it is 28.
    """

    const: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms) if other else self
        if not other.terms:
            return self + other.const
        merged = dict(self.terms)
        for axis, coefficient in other.terms:
            merged[axis] = merged.get(axis, 0) + coefficient
        return affine(self.const + other.const, merged)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1 or (not self.terms and not self.const):
            return self
        if factor == 0:
            return ZERO
        return Affine(self.const * factor, tuple((a, c * factor) for a, c in self.terms))

    def divisible(self, divisor: int) -> bool:
        """Whether the function is a multiple of ``divisor`` at every coordinate."""
        return self.const % divisor == 0 and all(c % divisor == 0 for _, c in self.terms)

    def __floordiv__(self, divisor: int) -> Affine:
        """Exact quotient; raises ``ValueError`` unless `divisible`."""
        if not self.divisible(divisor):
            raise ValueError(f"{self} is not a multiple of {divisor}")
        return Affine(self.const // divisor, tuple((a, c // divisor) for a, c in self.terms))

    def coefficient(self, axis: str) -> int:
        """What one step along ``axis`` adds."""
        for name, coefficient in self.terms:
            if name == axis:
                return coefficient
        return 0

    def at(self, coordinates: Mapping[str, int]) -> int:
        """The value at ``coordinates``; raises ``KeyError`` for a coordinate that is not given."""
        return self.const + sum(c * coordinates[a] for a, c in self.terms)

    def fix(self, axis: str, position: int) -> Affine:
        """The function with one coordinate fixed."""
        coefficient = self.coefficient(axis)
        if not coefficient:
            return self
        rest = tuple(t for t in self.terms if t[0] != axis)
        return Affine(self.const + coefficient * position, rest)

    def span(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """The least and the largest value; raises `KeyError` for a coordinate without an extent."""
        reach = [c * (extents[a] - 1) for a, c in self.terms]
        return self.const + sum(min(r, 0) for r in reach), self.const + sum(
            max(r, 0) for r in reach
        )

    def settled(self, extents: Mapping[str, int]) -> Affine:
        """The function without coordinates that are always 0: along axes of one position."""
        if all(extents.get(axis) != 1 for axis, _ in self.terms):
            return self
        return Affine(self.const, tuple(t for t in self.terms if extents.get(t[0]) != 1))

    @property
    def axes(self) -> tuple[str, ...]:
        """The coordinates that it depends on, sorted."""
        return tuple(axis for axis, _ in self.terms)

    def __str__(self) -> str:
        parts = [f"{c}*{a}" if c != 1 else a for a, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Affine()


def affine(const: int, terms: Mapping[str, int] | None = None) -> Affine:
    """Build an `Affine`, dropping zero coefficients and sorting by axis name.

    Example: ``affine(2, {"tp": 8, "dp": 0})`` is ``8*tp + 2``.
    """
    if not terms:
        return Affine(const) if const else ZERO
    return Affine(const, tuple(sorted((a, c) for a, c in terms.items() if c)))
