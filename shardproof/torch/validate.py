"""Whether the translation is right: PyTorch on recorded events against the plan, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import ShapeMismatch, Unsupported
from engine.ir import Plan, Program, Shard
from frontends.torch.plan import Sides
from frontends.torch.replay import TooLarge, replay
from frontends.torch.trace import Trace
from shardproof.mutation.runtime import Given, Rank, Stuck, World, execute, fits

#: A relative difference that rounding in float64 does not make.
TOLERANCE = 1e-7
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
    values = drawn(plan, np.random.default_rng(seed))
    tensors = {
        name: torch.tensor(x, dtype=torch.int64 if x.dtype.kind == "i" else torch.float64)
        for name, x in values.items()
    }
    try:
        own = [
            frozenset(n for n, box in step.boxes.items() if box.said == "computed")
            for step in (found.single_step, *found.steps)
        ]
        expected = [
            *replay(traces[:1], tensors, own[:1]),
            *replay(traces[1:], tensors, own[1:]),
        ]
    except TooLarge as error:
        return Validation(False, True, 0, str(error))
    held = {name: x.astype(float) for name, x in values.items()}
    try:
        actual = [*run(plan, (plan.single,), held), *run(plan, plan.programs, held)]
    except (Unsupported, ShapeMismatch, Stuck) as error:
        return Validation(False, True, 0, str(error))
    count = 0
    for side, known, rank in zip((found.single, *found.ranks), expected, actual, strict=True):
        for result, tensor in zip(side.results, known, strict=True):
            c = result.compared
            if tensor is None or result.value < 0:
                continue
            count += 1
            if not bool(torch.isfinite(tensor).all()):
                message = f"{c.kind} {c.name} depends on an operator without a rule"
                return Validation(False, True, count, message)
            off = difference(rank[result.value], tensor.numpy())
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
    plan: Plan, programs: Sequence[Program], held: Mapping[str, NDArray[np.float64]]
) -> list[Mapping[int, NDArray[np.float64]]]:
    """The values of every rank's body."""
    given = Given(plan, np.random.default_rng(0), CLASSES, held=dict(held))
    world = World()
    ranks = [Rank(plan, program, {}, program.base, given, world) for program in programs]
    with np.errstate(all="ignore"):
        execute(ranks)
    return [rank.contexts[0][0] for rank in ranks]


def difference(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """The largest difference, relative to the largest entry; infinite where shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    off = np.abs(actual - expected)
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0)) / scale
