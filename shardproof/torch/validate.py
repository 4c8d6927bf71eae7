"""Whether the translation is right: PyTorch on recorded events against the plan, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.frontends.graphs.replayed import (
    SMALLEST_SCALE,
    TOLERANCE,
    Validation,
    difference,
    drawn,
    run,
)
from shardproof.frontends.torch.joined import TooLarge
from shardproof.frontends.torch.replay import replay
from shardproof.frontends.torch.sides import Sides
from shardproof.frontends.torch.trace import Trace


def validate(sides: Sides, plan: Plan, traces: Sequence[Trace], seed: int = 0) -> Validation:
    """Replay the traces (the single side's first) and run the plan, on the same random values.

    Example: ``Validation(True, False, 3, "ranks: gradient w differs by 0.5")`` where the plan reads
    an operator in another way than PyTorch runs it.
    """
    if not fits(plan):
        return Validation(False, True, 0, "it is too large")
    if sides.families.assumed:
        return Validation(False, True, 0, "not all ranks were captured")
    values = drawn(plan, np.random.default_rng(seed))
    for side in (*sides.ranks, sides.single):
        values |= side.contents
    for name, (moved, _) in sides.single.derived.items():
        values[name] = np.roll(values[moved.base], -moved.by, moved.dim)
    tensors = {
        # PyTorch takes no views that step backwards, as tables of windows are.
        name: torch.tensor(x.copy(), dtype=torch.int64 if x.dtype.kind == "i" else torch.float64)
        for name, x in values.items()
    }
    try:
        own = [sides.single_step, *sides.steps]
        parts = [side.parts or {} for side in (sides.single, *sides.ranks)]
        expected = [
            *replay(traces[:1], tensors, own[:1], parts[:1]),
            *replay(traces[1:], tensors, own[1:], parts[1:]),
        ]
    except TooLarge as error:
        return Validation(False, True, 0, str(error))
    inputs = {name: x.astype(float) for name, x in values.items()}
    try:
        actual = run(plan, inputs)
    except (Unsupported, ShapeMismatch, Stuck) as error:
        return Validation(False, True, 0, str(error))
    count = 0
    least = SMALLEST_SCALE * max(
        (float(t.abs().max()) for side in expected for t in side if t is not None and t.numel()),
        default=0.0,
    )
    numbers = [-1, *(step.trace.rank for step in sides.steps)]
    for number, side, known in zip(numbers, (sides.single, *sides.ranks), expected, strict=True):
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
