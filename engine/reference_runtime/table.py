"""A plan's table of expectations, read rank by rank: what ranks end with against one device.

A second reading of what rows mean, written from `engine.plan.ir.Expectation` alone: every rank is
by itself, boxes are slices of arrays at true size, and what is added up along an axis is added up
over the ranks that lie along it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import ACCUMULATED, MICROBATCH, Addend, Expectation, Plan

Array = NDArray[Any]


class Ended(NamedTuple):
    """What a rank ends with: ``results``: by (body, value) what each call of the body gave;
    ``gradients``: by number of the shard.

    Example: of losses 1.5 and 0.5 of two microbatches, an addend that is added up along ``mb`` is
    2.
    """

    program: int
    at: Mapping[str, int]
    results: Mapping[tuple[int, int], Sequence[Array]]
    gradients: Mapping[int, Array]

    def of(self, addend: Addend) -> Array:
        """An addend's value; what nothing accumulated is zero.  Raises `Unsupported` where every
        microbatch has a value of its own."""
        if addend.body == ACCUMULATED:
            return self.gradients.get(addend.value, np.zeros(()))
        values = self.results.get((addend.body, addend.value), ())
        if len(values) != 1 and MICROBATCH not in dict(addend.over):
            raise Unsupported(f"a value that is computed {len(values)} times")
        return np.asarray(sum(values[1:], start=values[0]))


def differences(
    plan: Plan, single: Ended, many: Sequence[Ended], smallest: float
) -> list[tuple[float, str]]:
    """For every required row, at every rank: how far off it is, and where; relative to the largest
    number of the single-device value (the least is ``smallest`` times the largest of all rows).

    Example: (inf, "state m has no counterpart") where nothing on the parallel side is said to be
    ``m``.
    """
    rows = [row for row in plan.expectations if row.required]
    wanted = [_wanted(plan, row, single) for row in rows]
    scales = [float(np.abs(x).max(initial=0.0)) for x in wanted]
    least = smallest * max(scales, default=0.0)
    errors = []
    for row, full, scale in zip(rows, wanted, scales, strict=True):
        if not row.parallel:
            errors.append((np.inf, f"{row.kind} {row.name} has no counterpart"))
        for at in _places(plan, row):
            have = _have(plan, row, many, at)
            want = _box(plan, row, full, at)
            if have.shape != want.shape and have.size == want.size == 1:
                have = have.reshape(want.shape)
            if have.ndim and have.shape != want.shape:
                raise ShapeMismatch(f"{row.kind} {row.name} of shape {list(have.shape)}")
            off = np.abs(have - want)
            error = float(np.where(np.isnan(off), np.inf, off).max(initial=0.0))
            errors.append((error / (max(scale, least) or 1.0), f"{row.kind} {row.name} {at or ''}"))
    return errors


def _wanted(plan: Plan, row: Expectation, single: Ended) -> Array:
    """The single-device value: the sum of its addends, or what its own backward accumulated."""
    if not row.single:
        numbers = [n for n, s in enumerate(plan.single.shards) if s.name == row.name]
        gradients = [single.gradients[n] for n in numbers if n in single.gradients]
        if len(gradients) == 1:
            return gradients[0]
        raise Unsupported(f"the single device accumulates {len(gradients)} gradients of {row.name}")
    total: Array | None = None
    for addend in row.single:
        value = single.of(addend) * float(addend.weight)
        total = value if total is None else total + value.reshape(total.shape)
    assert total is not None
    return total


def _places(plan: Plan, row: Expectation) -> list[dict[str, int]]:
    """All coordinates along which nothing of a row is added up."""
    extents: dict[str, int] = {}
    for addend in row.parallel:
        over = dict(addend.over)
        own = plan.programs[addend.program].extents
        extents.update({axis: n for axis, n in own.items() if axis not in over})
    if not row.parallel:
        return []
    ranges = [range(n) for n in extents.values()]
    return [dict(zip(extents, place, strict=True)) for place in product(*ranges)]


def _have(plan: Plan, row: Expectation, many: Sequence[Ended], at: Mapping[str, int]) -> Array:
    """What ranks have of a row, added up as it says."""
    total: Array | None = None
    for addend in row.parallel:
        extents = {**plan.programs[addend.program].extents, MICROBATCH: plan.microbatches}
        share = prod(extents[axis] for axis, how in addend.over if how == "mean")
        axes = dict(addend.over)
        for rank in many:
            here = {axis: i for axis, i in rank.at.items() if axis not in axes}
            if rank.program != addend.program or any(at[a] != i for a, i in here.items()):
                continue
            value = rank.of(addend) * (float(addend.weight) / share)
            if total is None:
                total = value
            else:
                total = total + (value.reshape(total.shape) if value.size == 1 else value)
    assert total is not None
    return total


def _box(plan: Plan, row: Expectation, full: Array, at: Mapping[str, int]) -> Array:
    """The box of a row at coordinates."""
    if not row.offset:
        return full
    first = row.parallel[0]
    program = plan.programs[first.program]
    shape = (
        program.shards[first.value].shape
        if first.body == ACCUMULATED
        else program.bodies[first.body].values[first.value].shape
    )
    starts = [start.at({MICROBATCH: 0, **at}) for start in row.offset]
    return full[tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))]
