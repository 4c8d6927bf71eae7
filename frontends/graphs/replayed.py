"""Whether a plan computes what a program is said to compute, on small random values of its inputs.

A frontend evaluates the program as it was read, by other means than its translation; here the
translated plan is run rank by rank, and both are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardproof.engine.plan.ir import Plan, Shard
from shardproof.engine.reference_runtime.lots import exact
from shardproof.engine.reference_runtime.runtime import crews, execute, single_crew
from shardproof.engine.reference_runtime.values import Values

#: A relative difference that rounding in float64 does not make.
TOLERANCE: Final = 1e-7
#: Numbers below this part of the largest that is compared are zero but for rounding.
SMALLEST_SCALE: Final = 1e-6
#: Ids where no domain is stated.
CLASSES: Final = 8
#: What a verdict says of a graph that was not replayed.
NOT_REPLAYED: Final = "translation not replayed"

Array = NDArray[Any]


class Validation(NamedTuple):
    """What a replay of a translation showed. ``compared``: tensors of all ranks; ``message``: why
    it was not replayed, or what differs; ``judge``: who evaluated the program.

    Example: ``Validation(True, True, 12).text()`` is "the translation was replayed: 12 tensors
    agree with PyTorch's".
    """

    replayed: bool
    agrees: bool
    compared: int
    message: str = ""
    judge: str = "PyTorch"

    def text(self) -> str:
        """What a verdict says of it."""
        if self.replayed:
            return (
                f"the translation was replayed: {self.compared} tensors agree with {self.judge}'s"
            )
        return f"{NOT_REPLAYED}: {self.message}"


def to_bytes(validation: Validation) -> bytes:
    """A validation as bytes, for a bounded child to hand out.

    Example: ``[true,true,12,"","PyTorch"]``.
    """
    return msgspec.json.encode(validation)


def from_bytes(data: bytes) -> Validation:
    """The validation that `to_bytes` wrote.

    Example: ``[true,true,12,"","PyTorch"]`` is ``Validation(True, True, 12)``.
    """
    return msgspec.json.decode(data, type=Validation)


def drawn(plan: Plan, random: np.random.Generator) -> dict[str, Array]:
    """Random values of every named input.

    Example: normal numbers for a weight, whole numbers in [0, 32) for ids with that domain.
    """
    values: dict[str, Array] = {}
    shards: Mapping[str, Shard] = {
        s.name: s for p in (plan.single, *plan.programs) for s in p.shards
    }
    for name, shard in sorted(shards.items()):
        if shard.integer:
            low, high = shard.domain or (0, CLASSES)
            values[name] = random.integers(low, min(high, low + 4096), shard.full_shape)
        else:
            values[name] = random.standard_normal(shard.full_shape)
    return values


def run(plan: Plan, arrays: Mapping[str, Array]) -> dict[int, Mapping[int, NDArray[np.float64]]]:
    """The values that are compared, by rank (-1: the single side) and by their numbers in the
    bodies.

    Example: of a plan on two ranks, the keys -1, 0 and 1, each with the loss by its value's number.
    """
    lots = {n: exact(np.asarray(x, dtype=float)) for n, x in arrays.items()}
    values = Values(plan, np.random.default_rng(0), lots=lots)
    single = single_crew(plan, values)
    many = crews(plan, values, together=False)
    with np.errstate(all="ignore"):
        execute([single])
        execute(many)
    return {
        rank: {value: results[0].data[0] for (_, value), results in crew.results.items()}
        for rank, crew in ((-1, single), *((crew.ranks[0], crew) for crew in many))
    }


def difference(actual: Array, expected: Array, least: float = 0.0) -> float:
    """The largest difference, relative to the largest entry (``least`` at least); infinite where
    shapes differ.

    Example: [1, 2] beside [1, 4] is 0.5.
    """
    if actual.shape != expected.shape:
        return float("inf")
    off = np.abs(actual - expected)
    scale = max(float(np.abs(expected).max(initial=0.0)), least) or 1.0
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0)) / scale


def agreed(pairs: Iterable[tuple[str, Array, Array]], judge: str) -> Validation:
    """Whether tensors of the plan are what the program gives, from triples of which, actual and
    expected.

    Example: 2 beside 1 for "loss on rank 1": "loss on rank 1 differs by 1".
    """
    count, every = 0, [(n, a, np.asarray(e, dtype=float)) for n, a, e in pairs]
    largest = max((float(np.abs(e).max(initial=0.0)) for _, _, e in every), default=0.0)
    for name, actual, expected in every:
        count += 1
        if not np.isfinite(expected).all():
            return Validation(False, True, count, f"{name} is no finite number", judge)
        least = SMALLEST_SCALE * largest if np.isfinite(largest) else 0.0
        off = difference(actual, expected, least)
        if off > TOLERANCE:
            return Validation(True, False, count, f"{name} differs by {off:.3g}", judge)
    return Validation(True, True, count, judge=judge)
