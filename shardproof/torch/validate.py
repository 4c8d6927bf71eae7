"""Whether the translation is right: PyTorch on recorded events against the plan, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan, Shard
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import exact
from shardproof.engine.reference_runtime.runtime import crews, execute, single_crew
from shardproof.engine.reference_runtime.values import Values
from shardproof.frontends.torch.plan import Sides
from shardproof.frontends.torch.replay import TooLarge, replay
from shardproof.frontends.torch.trace import Trace

#: A relative difference that rounding in float64 does not make.
TOLERANCE = 1e-7
#: Numbers below this part of the largest that is compared are zero but for rounding.
SMALLEST_SCALE = 1e-6
#: Ids where no domain is stated.
CLASSES = 8


class Validation(NamedTuple):
    """``compared``: tensors of all ranks; ``message``: why it was not replayed, or what differs."""

    replayed: bool
    agrees: bool
    compared: int
    message: str = ""

    def text(self) -> str:
        """What a verdict says of it."""
        if self.replayed:
            return f"the translation was replayed: {self.compared} tensors agree with PyTorch's"
        return f"translation not replayed: {self.message}"


def validate(found: Sides, plan: Plan, traces: Sequence[Trace], seed: int = 0) -> Validation:
    """Replay the traces (the single side's first) and run the plan, on the same random values."""
    if not fits(plan):
        return Validation(False, True, 0, "it is too large")
    if found.families.assumed:
        return Validation(False, True, 0, "not all ranks were captured")
    values = drawn(plan, np.random.default_rng(seed))
    values |= found.single.contents
    for name, (moved, _) in found.single.derived.items():
        values[name] = np.roll(values[moved.base], -moved.by, moved.dim)
    tensors = {
        name: torch.tensor(x, dtype=torch.int64 if x.dtype.kind == "i" else torch.float64)
        for name, x in values.items()
    }
    try:
        own = [step.made for step in (found.single_step, *found.steps)]
        expected = [
            *replay(traces[:1], tensors, own[:1]),
            *replay(traces[1:], tensors, own[1:]),
        ]
    except TooLarge as error:
        return Validation(False, True, 0, str(error))
    held = {name: x.astype(float) for name, x in values.items()}
    try:
        actual = run(plan, held)
    except (Unsupported, ShapeMismatch, Stuck) as error:
        return Validation(False, True, 0, str(error))
    count = 0
    least = SMALLEST_SCALE * max(
        (float(t.abs().max()) for side in expected for t in side if t is not None and t.numel()),
        default=0.0,
    )
    numbers = [-1, *(step.trace.rank for step in found.steps)]
    for number, side, known in zip(numbers, (found.single, *found.ranks), expected, strict=True):
        for result, tensor in zip(side.results, known, strict=True):
            c = result.compared
            if tensor is None or result.value < 0:
                continue
            count += 1
            if not bool(torch.isfinite(tensor).all()):
                message = f"{c.kind} {c.name} depends on an operator without a rule"
                return Validation(False, True, count, message)
            off = difference(actual[number][result.value], tensor.numpy(), least)
            if off > TOLERANCE:
                where = side.program.name
                return Validation(
                    True, False, count, f"{where}: {c.kind} {c.name} differs by {off:.3g}"
                )
    return Validation(True, True, count)


def drawn(plan: Plan, random: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    """Random values of every named input."""
    found: dict[str, NDArray[np.generic]] = {}
    shards: Mapping[str, Shard] = {
        s.name: s for p in (plan.single, *plan.programs) for s in p.shards
    }
    for name, shard in sorted(shards.items()):
        if shard.integer:
            low, high = shard.domain or (0, CLASSES)
            found[name] = random.integers(low, min(high, low + 4096), shard.full_shape)
        else:
            found[name] = random.standard_normal(shard.full_shape)
    return found


def run(
    plan: Plan, held: Mapping[str, NDArray[np.float64]]
) -> dict[int, Mapping[int, NDArray[np.float64]]]:
    """What the single side (-1) and every rank compare, by value of their bodies."""
    values = Values(plan, np.random.default_rng(0), lots={n: exact(x) for n, x in held.items()})
    single = single_crew(plan, values)
    many = crews(plan, values, together=False)
    with np.errstate(all="ignore"):
        execute([single])
        execute(many)
    return {
        rank: {value: found[0].data[0] for (_, value), found in crew.results.items()}
        for rank, crew in ((-1, single), *((crew.ranks[0], crew) for crew in many))
    }


def difference(
    actual: NDArray[np.float64], expected: NDArray[np.float64], least: float = 0.0
) -> float:
    """The largest difference, relative to the largest entry (``least`` at least); infinite where
    shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    off = np.abs(actual - expected)
    scale = max(float(np.abs(expected).max(initial=0.0)), least) or 1.0
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0)) / scale
