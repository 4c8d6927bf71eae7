"""Whether lineages are true: what they say, in numbers, against what programs compute.

A lineage says what a tensor is in addends of single-device values.  Here these are evaluated from
their definitions, element by element, by nothing but indexing and arithmetic, and compared with the
tensor as every rank and microbatch has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.interpreters.numeric import TRUE_FUNCTIONS
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Combine,
    Constant,
    Einsum,
    Input,
    Onehot,
    Operand,
    Order,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, PartialRange
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.primitives import CONSTANTS
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.inputs import Inputs, read_by
from shardproof.engine.simulation.replay import Replay, needed_axes
from shardproof.engine.simulation.trace_axes import Recorder, Recording
from shardproof.mutation.evaluate import TrueSizes
from shardproof.partition.stages.partition import Side, partition

Floats = NDArray[np.float64]
Place = Mapping[str, int]
Parts = tuple[PartialRange, ...]

#: How far axes that count absolute positions are written out.
REACH = 64


class Unknown(Exception):
    """A value that only the parallel side has; nothing is said about it."""


class Contradiction(Exception):
    """The plan contradicts itself: it has no tensors to compare."""


class Truth(NamedTuple):
    """``compared``: lineages, at every coordinate; ``unknown``: those left out; ``wrong``:
    instances whose outputs are not what their lineages say, in words."""

    compared: int
    unknown: int
    wrong: tuple[str, ...]


class Values:
    """Nodes as arrays over their axes."""

    def __init__(self, nodes: NodeTable, inputs: Inputs) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.memo: dict[tuple[object, ...], Floats] = {}

    def node(self, number: int, partials: Parts, at: Place) -> Floats:
        """A node (its partial sum), where its definition or parts depend on the coordinates."""
        moving = self.nodes[number].coordinates or any(p.start.terms for p in partials)
        key = (number, partials, tuple(sorted(at.items())) if moving else ())
        if key not in self.memo:
            self.memo[key] = self._node(number, partials, at)
        return self.memo[key]

    def _node(self, number: int, partials: Parts, at: Place) -> Floats:
        node = self.nodes[number]
        if number == self.nodes.one:
            return np.array(1.0)
        if isinstance(node.definition, Einsum | Combine | Amax):
            return self._reduced(number, node.definition, partials, at)
        if partials:
            raise Unknown
        places = np.arange(REACH)
        match node.definition:
            case Input(name=name):
                return self._input(name).astype(float).reshape(node.extents)
            case Constant(name=name):
                return np.array(CONSTANTS[name], dtype=float)
            case Causal():
                return np.where(places[None, :] > places[:, None], -np.inf, 0.0)
            case Order():
                return np.where(places[None, :] > places[:, None], 0.0, 1.0)
            case Unary(function=function, factor=factor, node=operand):
                return _function(function, float(factor) * self.node(operand, (), at))
            case Restrict(node=operand, blocks=blocks):
                return self._restricted(blocks, self.node(operand, (), at))
            case Onehot(factor=factor, node=operand):
                ids = float(factor) * self.node(operand, (), at)
                return np.asarray(ids[..., None] == places, dtype=float)
        raise Unknown

    @staticmethod
    def _restricted(blocks: Sequence[Block], array: Floats) -> Floats:
        """What blocks leave: by a mask along each axis."""
        for axis, start, size, extent in blocks:
            place = np.arange(array.shape[axis])
            kept = (place % extent if extent else place) - start
            # Counted in positions of the whole axis: the innermost block goes last.
            array = np.where(_along((kept >= 0) & (kept < size), axis, array.ndim), array, np.nan)
        for axis in {block.axis for block in blocks}:
            other = tuple(i for i in range(array.ndim) if i != axis)
            array = np.compress(~np.isnan(array).all(axis=other), array, axis=axis)
        return array

    def _input(self, name: str) -> NDArray[Any]:
        if name == "loss gradient":
            return self.inputs.loss_gradient((), whole=True).data
        if name.startswith("batch."):
            return self.inputs.batch(int(name.removeprefix("batch.")), None).data
        return self.inputs.parameter(name).data

    def _reduced(
        self, number: int, definition: Einsum | Combine | Amax, partials: Parts, at: Place
    ) -> Floats:
        """A sum of products, a sum, or a maximum: by all labels, then over those not kept."""
        node, reads, kept = self.nodes[number], definition.reads(), definition.outputs
        sizes = {label: extent or REACH for o in reads for _, _, extent, label in o.intervals}
        sizes |= {label: n or REACH for label, n in zip(kept, node.extents, strict=True)}
        labels = [*kept, *sorted(sizes.keys() - set(kept))]
        grid = [sizes[label] for label in labels]
        inner: dict[int, Parts] = {}
        inside = np.ones([1] * len(grid), dtype=bool)
        for partial in partials:
            reduction = self.nodes.reductions[partial.reduction]
            if reduction.kind == "via":
                held = inner.get(reduction.where, ())
                inner[reduction.where] = (*held, partial._replace(reduction=reduction.inner))
                continue
            if reduction.node != number:
                raise Unknown
            place = np.arange(sizes[reduction.where]) % partial.extent - partial.start.at(at)
            within = (place >= 0) & (place < partial.size)
            inside = inside & _along(within, labels.index(reduction.where), len(grid))
        read = [self._operand(o, labels, grid, inner.get(i, ()), at) for i, o in enumerate(reads)]
        over = tuple(range(len(kept), len(grid)))
        if isinstance(definition, Combine):
            total = sum(float(f) * x for f, x in zip(definition.factors, read, strict=True))
            return np.broadcast_to(total, grid)
        if isinstance(definition, Amax):
            signed = np.broadcast_to(float(definition.sign) * read[0], grid)
            return np.asarray(np.where(inside, signed, -np.inf).max(axis=over))
        product = np.ones([1] * len(grid))
        for x in read:
            product = product * x
        return np.asarray(np.where(inside, np.broadcast_to(product, grid), 0.0).sum(axis=over))

    def _operand(
        self, read: Operand, labels: Sequence[int], grid: Sequence[int], partials: Parts, at: Place
    ) -> Floats:
        array = self.node(read.node, partials, at)
        index = [np.zeros([1] * len(grid), dtype=int) for _ in self.nodes[read.node].extents]
        for axis, stride, _, label in read.intervals:
            k = labels.index(label)
            index[axis] = index[axis] + _along(stride * np.arange(grid[k]), k, len(grid))
        for axis, stride, _, start in read.fixed:
            index[axis] = index[axis] + stride * start.at(at)
        return np.asarray(array[tuple(index)] if index else array)

    def view(self, addend: Addend, shape: Sequence[int], at: Place) -> Floats:
        """One addend of a lineage, as a tensor: zero outside of its places."""
        inside = [np.ones(n, dtype=bool) for n in shape]
        for dim, start, size, extent in addend.places:
            place = np.arange(shape[dim]) % extent - start
            inside[dim] &= (place >= 0) & (place < size)
        if all(kept.all() for kept in inside):
            return self._view(addend, shape, at)
        whole = np.zeros(shape)
        whole[np.ix_(*inside)] = self._view(addend, [int(kept.sum()) for kept in inside], at)
        return whole

    def _view(self, addend: Addend, shape: Sequence[int], at: Place) -> Floats:
        array = self.node(addend.node, addend.partials, at)
        index = [np.zeros([1] * len(shape), dtype=int) for _ in self.nodes[addend.node].extents]
        for interval in addend.view.fixed:
            index[interval.axis] = index[interval.axis] + interval.stride * interval.start.at(at)
        for d, intervals in enumerate(addend.view.dims):
            inner = 1
            for interval in reversed(intervals):
                digit = np.arange(shape[d]) // inner % interval.size
                inner *= interval.size
                if interval.axis != BROADCAST:
                    moved = interval.stride * (digit + interval.start.at(at))
                    index[interval.axis] = index[interval.axis] + _along(moved, d, len(shape))
            assert inner == shape[d]
        if any((place < 0).any() for place in index):
            return np.full(shape, np.nan)  # before the beginning: nothing is there
        found = array[tuple(index)] if index else array
        return float(addend.factor) * np.broadcast_to(found, shape)

    def tensor(self, lineage: Lineage, at: Place) -> Floats:
        total = np.zeros(lineage.shape)
        for addend in lineage.addends:
            total = total + self.view(addend, lineage.shape, at)
        return total


def _along(values: NDArray[Any], dim: int, rank: int) -> NDArray[Any]:
    return values.reshape([-1 if i == dim else 1 for i in range(rank)])


def _function(name: str, x: Floats) -> Floats:
    if name.startswith("pow:"):
        return np.asarray(np.power(x, float(Fraction(name[4:]))))
    return TRUE_FUNCTIONS[name](x)


def truth(plan: Plan) -> Truth:
    """Compare all lineages of a plan at its true size; raises `Contradiction`, and what running
    the plan raises."""
    result = partition(plan)
    if result.faults:
        raise Contradiction(result.faults[0].message)
    single, parallel = result.derived.unrolled, result.parallel.unrolled
    recorder = Recorder(plan, single, parallel)
    recordings = (recorder.run([plan.single], single), recorder.run(plan.programs, parallel))
    axes = {axis for program in plan.programs for axis, _, _ in program.axes}
    every = frozenset([*axes, MICROBATCH]) | needed_axes(plan.programs, parallel)
    sizes = TrueSizes(plan, recorder, *recordings, every, 0)
    inputs = Inputs(
        sizes,
        rotary=read_by("apply_rotary_emb", -1, single),
        tables=read_by("embedding", 1, single),
        random=np.random.default_rng(0),
    )
    values = Values(result.nodes, inputs)
    sides: list[tuple[Side, Unrolled, Sequence[Program], Recording]] = [
        (result.single, single, [plan.single], recordings[0]),
        (result.parallel, parallel, plan.programs, recordings[1]),
    ]
    compared = unknown = 0
    wrong: list[str] = []
    with np.errstate(all="ignore"):
        for side, unrolled, programs, recording in sides:
            replay = Replay(programs, unrolled, sizes, recording, inputs)
            replay.run()
            for instance in unrolled.instances:
                for value in instance.outputs:
                    lineage = side.lineages[value]
                    for coordinates, weighted in replay.values[value].items():
                        at = {**dict.fromkeys([*axes, MICROBATCH], 0), **dict(coordinates)}
                        try:
                            off = _off(values, lineage, weighted.data, at)
                        except Unknown:
                            unknown += 1
                            continue
                        compared += 1
                        if not off < 1e-7:
                            name = f"{'backward of ' if instance.backward else ''}{instance.name}"
                            wrong.append(f"{instance.kind} {name} at {at}: {off:.1e}: {lineage}")
    return Truth(compared, unknown, tuple(wrong))


def _off(values: Values, lineage: Lineage | None, held: NDArray[Any], at: Place) -> float:
    """How far a tensor is from what its lineage says, relative to its scale."""
    if lineage is None:
        raise Unknown
    said, found = values.tensor(lineage, at), np.asarray(held, dtype=float)
    off = np.where(said == found, 0.0, np.abs(said - found.reshape(said.shape)))
    scale = np.abs(np.where(np.isfinite(found), found, 0.0)).max(initial=0.0)
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0)) / max(float(scale), 1e-6)
