"""What both sides of a plan end with, demand by demand, at every coordinate that was evaluated.

It knows how addends combine and where boxes are; what counts as a difference, its callers know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.plan.ir import MICROBATCH
from shardproof.engine.simulation.replay import Coordinates, Replay
from shardproof.engine.specification.demands import Demand, Sum

Array = NDArray[Any]


class Outcome(NamedTuple):
    """What both sides have of one demand, on one rank.

    Example: of the loss of the first rank ``at`` is ``()``, ``expected`` ``[-1.19]`` and
    ``addends`` ``((1, [-1.19]),)``.

    ``expected``: the single-device values of the box (None: zero); ``addends``: what a rank has,
    (weight, values) to be added up (none: nothing was computed); ``at``: the rank's position along
    axes that were expanded.
    """

    demand: Demand
    at: Coordinates
    expected: Array | None
    addends: tuple[tuple[Fraction, Array], ...]


def outcomes(demands: Sequence[Demand], one: Replay, many: Replay) -> Iterator[Outcome]:
    """Every demand that is about values, at all its coordinates; raises `ShapeMismatch` where
    values have other shapes than they should.

    Example: of a gradient on four ranks along ``tp``, all of which were evaluated, four outcomes,
    each with its box of the single-device gradient.
    """
    for demand in demands:
        if demand.problem or (demand.expected < 0 and not demand.sums):
            continue
        for at in many.members(_axes(demand, many)):
            expected = None if demand.expected < 0 else _box(demand, one, many, at)
            addends = tuple((term.weight, _sum(term, many, at)) for term in demand.sums)
            if demand.kind == LOSS:
                expected = None if expected is None else _number(expected)
                addends = tuple((weight, _number(data)) for weight, data in addends)
            for _, data in addends:
                if expected is not None and data.shape != expected.shape:
                    raise ShapeMismatch(
                        f"{demand.kind} {demand.name} has shape {list(data.shape)}, "
                        f"expected {list(expected.shape)}"
                    )
            yield Outcome(demand, tuple(at.items()), expected, addends)


def _number(data: Array) -> Array:
    if data.size != 1:
        raise ShapeMismatch(f"the loss has {data.size} elements, expected one")
    return data.reshape(1)


def _axes(demand: Demand, many: Replay) -> list[tuple[str, int]]:
    """The coordinates along which the value of a demand is not added up."""
    if not demand.sums:
        return many.family(demand.program, False)
    axes: dict[str, int] = {}
    for term in demand.sums:
        summed = _summed(term)
        for tensor in term.tensors:
            axes.update({a: n for a, n in many.axes_of(tensor) if a not in summed})
    return list(axes.items())


def _summed(addend: Sum) -> set[str]:
    axes = {axis for axis, _ in addend.over}
    return axes | {MICROBATCH} if addend.batched else axes


def _sum(addend: Sum, many: Replay, at: Mapping[str, int]) -> Array:
    """The sum of an addend's tensors over the members that it combines."""
    extents = dict(addend.over)
    if addend.batched:
        extents[MICROBATCH] = many.sizes.plan.microbatches
    total: Array | None = None
    for tensor in addend.tensors:
        own = dict(many.axes_of(tensor))
        combined = [(axis, n) for axis, n in own.items() if axis in extents]
        alike = prod(
            n
            for axis, n in extents.items()
            if axis not in own and (axis != MICROBATCH or many.unrolled.tensors[tensor].batched)
        )
        for place in many.members(combined):
            data = many.get(tensor, {**at, **place}).data * alike
            if total is not None and total.shape != data.shape:
                data = _number(data).reshape(total.shape)
            total = data if total is None else total + data
    assert total is not None
    return total


def _box(demand: Demand, one: Replay, many: Replay, at: Mapping[str, int]) -> Array:
    """The box of the single-device value that a rank has."""
    full = one.get(demand.expected, {})
    if not demand.offset:
        return full.data
    missing = {axis for start in demand.offset for axis in start.axes} - set(at)
    if missing:
        raise Unsupported(
            f"{demand.kind} {demand.name} is one value along {sorted(missing)}, where its box moves"
        )
    whole = one.recording.tensors[demand.expected]
    kept = many.held_dims(demand)
    assert whole is not None
    return many.box(full, whole.dims, kept, demand.relative, at).data
