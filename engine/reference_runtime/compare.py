"""Both sides of a plan, run on the same inputs: the largest difference of a loss or a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.lots import Lot, LotInterpreter, exact
from shardproof.engine.reference_runtime.runtime import Crew, crews, execute, single_crew
from shardproof.engine.reference_runtime.table import Ended, differences
from shardproof.engine.reference_runtime.values import Values

#: Numbers that all ranks and microbatches together may write.
MOST_NUMBERS: Final = 3_000_000
#: Operators over all ranks and microbatches.
MOST_STEPS: Final = 20_000
#: Gradients below this part of the largest are zero but for rounding.
SMALLEST_SCALE: Final = 1e-6


class Undefined(Exception):
    """The single-device program has no finite result at these inputs."""


def steps_of(plan: Plan) -> int:
    """How many operators a plan runs, over all ranks and microbatches; a deliberate twin of
    `engine.schedule.unroll.count_instances`, of which this room knows nothing.

    Example: two replicas that each issue 26 operators are 52.
    """
    return sum(
        program.ranks * len(program.bodies[call.body].ops)
        for program in plan.programs
        for call in program.calls
    )


def fits(plan: Plan) -> bool:
    """Whether a plan is small enough for all of its ranks to be run, each by itself.

    Example: a network of 16 x 8 on two ranks does, Llama-3 8B does not.
    """
    numbers = sum(
        program.ranks * sum(prod(v.shape) for v in program.bodies[call.body].values)
        for program in plan.programs
        for call in program.calls
    )
    largest = max((prod(s.full_shape) for s in plan.single.shards), default=0)
    return max(numbers, largest) <= MOST_NUMBERS and steps_of(plan) <= MOST_STEPS


def worst(plan: Plan, seed: int) -> tuple[float, str]:
    """The largest relative difference of the two sides of a plan, every rank by itself at the sizes
    of the plan, and where it is.

    Example: (4e-16, "gradient of w2 on rank 1") of two replicas, (0.99, "gradient of w2 on rank 1")
    without their all-reduce.

    Raises `Stuck`, `ShapeMismatch` or `Unsupported` for what cannot be run, `Undefined`.
    """
    return compared(plan, plan, Values(plan, np.random.default_rng(seed)), together=False)


def compared(plan: Plan, original: Plan, values: Values, *, together: bool) -> tuple[float, str]:
    """The largest relative difference of the two sides, with inputs and sizes by ``values``, and
    where it is; ``original``: the plan that ``plan`` is a smaller one of.

    Example: of 2 of 64 replicas, with ``original`` the plan of 64, a mean divides by 64.
    """
    return max(errors(plan, original, values, together=together), default=(np.inf, "none"))


def errors(
    plan: Plan, original: Plan, values: Values, *, together: bool
) -> list[tuple[float, str]]:
    """The relative difference of every result, and which one it is; see `compared`.

    Example: of a loss and a gradient of two replicas without their all-reduce, 0.0 and 0.99.
    """
    single = single_crew(plan, values)
    many = crews(plan, values, together=together, original=original)
    with np.errstate(all="ignore"):
        execute([single])
        if not all(np.isfinite(x.data).all() for x in _results(single)):
            raise Undefined("the single-device program has no finite result")
        execute(many)
        if plan.expectations:
            if together:
                raise Unsupported("a table of expectations is compared at the sizes of the plan")
            (one,) = _ended(single)
            every = [rank for crew in many for rank in _ended(crew)]
            return list(differences(plan, one, every, SMALLEST_SCALE))
        return [*_losses(plan, single, many), *_gradients(values, single, many)]


def _results(single: Crew[Lot]) -> list[Lot]:
    given = [x for calls in single.results.values() for x in calls]
    return [*single.losses, *given, *single.gradients.values()]


def _ended(crew: Crew[Lot]) -> list[Ended]:
    """What every rank of a crew ends with, at true size."""
    return [
        Ended(
            max(crew.number, 0),
            at,
            {place: [x.of(i).data[0] for x in calls] for place, calls in crew.results.items()},
            {shard: x.of(i).data[0] for shard, x in crew.gradients.items()},
        )
        for i, at in enumerate(crew.places)
    ]


def _error(actual: Any, expected: Any, scale: float) -> float:
    off = np.abs(np.asarray(actual) - np.asarray(expected))
    off = np.where(np.isnan(off), np.inf, off)
    return float(off.max(initial=0.0)) / (scale or 1.0)


def _total(x: Lot) -> Any:
    """The sum of a tensor, for every rank."""
    interpreter = LotInterpreter([{}])
    labels = "abcdefghijklmnopqrstuvwx"[: len(x.dims)]
    return interpreter.einsum(f"{labels}->", x).data


def _losses(plan: Plan, single: Crew[Lot], many: Sequence[Crew[Lot]]) -> list[tuple[float, str]]:
    """The losses of the ranks of one program that differ in their replica only."""
    expected = float(sum(_total(value)[0] for value in single.final_losses))
    totals: dict[object, float] = {}
    for crew in many:
        share = crew.slices if plan.loss == "mean" else 1
        for value in crew.final_losses:
            sums = np.broadcast_to(_total(value), [len(crew.ranks)])
            for at, own in zip(crew.places, sums, strict=True):
                others = tuple((a, i) for a, i in at.items() if a not in plan.replica_axes)
                key = (crew.program.base, others)
                totals[key] = totals.get(key, 0.0) + float(own) / share
    if not totals:
        return [(np.inf, "no rank computes a loss")]
    return [(_error(x, expected, abs(expected)), f"loss {key}") for key, x in totals.items()]


def _full_gradients(single: Crew[Lot]) -> dict[str, Lot]:
    """The single device's gradients by name; of parameters that it holds in parts, put together."""
    shards = single.program.shards
    full: dict[str, Lot] = {}
    parts: dict[str, Any] = {}
    for n, x in single.gradients.items():
        shard = shards[n]
        if not shard.trainable:
            continue
        if shard.shape == shard.full_shape:
            full[shard.name] = x
            continue
        if x.data.shape[1:] != shard.shape:
            raise Unsupported(f"parts of {shard.name} on the single device, at a smaller size")
        whole = parts.setdefault(shard.name, np.zeros(shard.full_shape))
        box = zip((start.const for start in shard.offset), shard.shape, strict=True)
        whole[tuple(slice(start, start + n) for start, n in box)] += x.data[0]
    return {**full, **{name: exact(data) for name, data in parts.items()}}


def _gradients(
    values: Values, single: Crew[Lot], many: Sequence[Crew[Lot]]
) -> list[tuple[float, str]]:
    full = _full_gradients(single)
    sizes = {name: float(np.abs(x.data).max(initial=0.0)) for name, x in full.items()}
    largest = max(sizes.values(), default=0.0)
    errors = []
    for crew in many:
        for number, shard in enumerate(crew.program.shards):
            if shard.updated_as >= 0:
                continue
            lot = crew.gradients.get(number) if shard.trainable else None
            if lot is None and shard.name not in full:
                continue
            wanted: Any = 0.0
            if shard.name in full:
                wanted = values.cut(full[shard.name], shard, crew.places).data
            scale = max(sizes.get(shard.name, 0.0), SMALLEST_SCALE * largest)
            off = np.abs((0.0 if lot is None else lot.data) - wanted)
            off = np.where(np.isnan(off), np.inf, off).reshape([len(off), -1]).max(axis=1)
            rank = int(np.argmax(off))
            where = f"gradient of {shard.name} on rank {crew.ranks[rank]}"
            errors.append((float(off[rank]) / (scale or 1.0), where))
    return errors
