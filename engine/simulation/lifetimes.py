"""How long the values of a side are needed, where only some of them are looked at in the end.

A plan at its true size is run to confirm one difference.  What no later instance reads is forgotten
then, so that the numbers held at one time are few, though all together are many.

Example: of ``y = silu(x); z = neg(y); w = exp(z)`` with ``w`` kept, x ends with the first
instance, y with the second, z with the third; two values are held at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from shardproof.engine.interpreters import Weighted
from shardproof.engine.schedule.instances import Instance


def last_uses(instances: Sequence[Instance], kept: Collection[int]) -> list[tuple[int, ...]]:
    """For each instance, the tensors that are read or written there for the last time.

    Example: of ``y = silu(x); z = neg(y); w = exp(z)`` with ``w`` kept ``[(x,), (y,), (z,)]``.
    """
    seen = set(kept)
    ends: list[tuple[int, ...]] = []
    for instance in reversed(instances):
        here = {v for v in (*instance.inputs, *instance.outputs) if v >= 0} - seen
        ends.append(tuple(sorted(here)))
        seen |= here
    return ends[::-1]


def most_at_once(
    instances: Sequence[Instance], ends: Sequence[Sequence[int]], numbers: Sequence[int]
) -> int:
    """How many numbers are held at one time; ``numbers``: how many each tensor has.

    Example: with 100 numbers in each of x (which an instance loads), y, z and w, 200.
    """
    alive = most = 0
    for instance, ended in zip(instances, ends, strict=True):
        alive += sum(numbers[v] for v in instance.outputs)
        most = max(most, alive)
        alive -= sum(numbers[v] for v in ended)
    return most


#: Numbers that results may have that ranks share, where values are forgotten.
MOST_SHARED = 5_000_000


@dataclass(slots=True)
class Evaluated:
    """Results of operators by what was applied to which objects: ranks that hold equal values hold
    one object, and the operator is evaluated once.

    Example: a norm that all ranks along ``tp`` compute of one tensor is evaluated for the first of
    them, and the others get its result.

    An entry holds its operands, so that no other object can take their place.  ``most``: numbers
    that results may have together (None: any); the oldest are forgotten then.
    """

    most: int | None = None
    _entries: dict[Hashable, tuple[list[Weighted | None], list[Weighted]]] = field(
        default_factory=dict
    )
    _numbers: int = 0

    def get(self, key: Hashable) -> list[Weighted] | None:
        """The results of an entry."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def add(
        self, key: Hashable, operands: list[Weighted | None], results: list[Weighted]
    ) -> list[Weighted]:
        """Keep the results of an operator."""
        self._entries[key] = operands, results
        if self.most is not None:
            self._numbers += sum(x.data.size for x in results)
            while self._numbers > self.most:
                _, oldest = self._entries.pop(next(iter(self._entries)))
                self._numbers -= sum(x.data.size for x in oldest)
        return results
