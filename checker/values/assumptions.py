"""Assumptions: what a parameter, a slice of the batch or a loss gradient is, by the plan alone.

Written out plainly, dimension by dimension, and compared with what the run says.  A received or
broadcast value is its source's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from shardproof.checker.result import Problems
from shardproof.checker.values.sides import Side
from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Addend, Dim, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import MICROBATCH
from shardproof.engine.schedule.instances import Instance

SEED = "loss gradient"
_RESERVED = re.compile(rf"batch\.[0-9]+|{SEED}")

Shape = tuple[int, ...]


class Inputs:
    """The inputs that the single-device side defines: full shapes by name.

    Example: of a Llama with hidden 96, ``shape("layers.0.attention.wq.weight")`` is (96, 96), and
    ``shape("batch.0")`` of four sequences of ten tokens (4, 10).
    """

    def __init__(self, single: Side, problems: Problems) -> None:
        self.parameters: dict[str, Shape] = {}
        self.batch: dict[str, Shape] = {}
        for shard in single.programs[0].shards:
            if self.parameters.setdefault(shard.name, shard.full_shape) != shard.full_shape:
                problems.add("assumption", f"parameter {shard.name} has two shapes")
            if _RESERVED.fullmatch(shard.name):
                problems.add("assumption", f"a parameter is called {shard.name}, as other inputs")
        loads = [instance for instance in single.unrolled.instances if instance.kind == "load"]
        if len(loads) > 1:
            problems.add("assumption", f"the single device loads the batch {len(loads)} times")
        for instance in loads[:1]:
            for position, value in enumerate(instance.outputs):
                self.batch[f"batch.{position}"] = single.unrolled.tensors[value].shape

    def shape(self, name: str) -> Shape | None:
        """The full shape of an input (None: there is no such input)."""
        if name == SEED:
            return ()
        return self.parameters.get(name, self.batch.get(name))


def box(node: int, full: Shape, shape: Shape, offset: tuple[Affine, ...]) -> Lineage:
    """``shape`` positions of an input from ``offset`` on; its axes are the dimensions that are
    larger than 1.

    Example: node 7 of (224, 96), ``112*tp`` on, (112, 96):
    ``n7[a0[<112*tp> +112 of 224], a1[96]]``.
    """
    dims: list[Dim] = []
    axis = 0
    for whole, size, start in zip(full, shape, offset, strict=True):
        if whole == 1:
            dims.append(())
            continue
        dims.append((StridedInterval(axis, 1, whole, start, size),))
        axis += 1
    return Lineage(shape, (Addend(Fraction(1), node, View(tuple(dims))),))


def slice_of(side: Side, instance: Instance) -> tuple[Affine, int]:
    """Which slice of the batch an instance is about, and of how many: replicas in the order of
    their axes, within a replica the microbatches.

    Example: of dp 2 with two microbatches each, slice ``2*dp + mb`` of 4.
    """
    extents = {**side.programs[instance.programs[0]].extents, MICROBATCH: side.microbatches}
    number, count = ZERO, 1
    for axis in side.plan.replica_axes if side.name == "parallel" else ():
        if axis in extents:
            number = number * extents[axis] + affine(0, {axis: 1})
            count *= extents[axis]
    if instance.microbatch < 0:
        position = affine(0, {MICROBATCH: 1})
    else:
        position = affine(instance.microbatch)
    which = number * side.microbatches + position
    return still(which, extents), count * side.microbatches


def still(value: Affine, extents: Mapping[str, int]) -> Affine:
    """A position without the coordinates that have one value, which is 0.

    Example: ``8*tp + 4`` is 4 where ``tp`` has one position.
    """
    moving = {axis: step for axis, step in value.terms if extents.get(axis, 0) != 1}
    return affine(value.const, moving)


class Assumptions:
    """Checks the instances of one side whose lineages are given, not concluded.

    Example: a rank whose shard is "``48*tp`` on" has a lineage that begins there, or there is a
    problem of the kind "assumption".
    """

    def __init__(self, side: Side, inputs: Inputs, nodes: NodeTable, problems: Problems) -> None:
        self.side = side
        self.inputs = inputs
        self.nodes = nodes
        self.problems = problems

    def check(self) -> None:
        """Look at every instance that reads an input, a batch, a seed or another instance's
        value."""
        for number, instance in enumerate(self.side.unrolled.instances):
            if instance.kind == "shard":
                self.shard(number, instance)
            elif instance.kind == "load":
                self.load(number, instance)
            elif instance.kind == "seed":
                self.seed(number, instance)
            elif instance.kind in ("recv", "broadcast"):
                self.handed_on(number, instance)

    def expect(self, number: int, value: int, expected: Lineage | None) -> None:
        """Hold a tensor's lineage against the one that the plan gives it."""
        if expected is None or self.side.lineages[value] != expected:
            self.problems.add(
                "assumption",
                f"{self.side.where(number)}: the lineage of "
                f"{self.side.unrolled.tensors[value].name} is not what the plan says",
            )

    def view(self, name: str, shape: Shape, offset: tuple[Affine, ...]) -> Lineage | None:
        """The lineage of a box of an input; None where no such node is stored."""
        node, full = self.nodes.find(Input(name)), self.inputs.shape(name)
        return None if node is None or full is None else box(node, full, shape, offset)

    def shard(self, number: int, instance: Instance) -> None:
        """A shard is the box of its parameter that the plan says."""
        place = instance.attrs["shard"]
        shards = self.side.programs[instance.programs[0]].shards
        if not isinstance(place, int) or not 0 <= place < len(shards):
            self.problems.add("plan", f"{self.side.where(number)} reads shard {place}")
            return
        shard = shards[place]
        if self.inputs.parameters.get(shard.name) != shard.full_shape:
            self.problems.add(
                "assumption",
                f"{self.side.where(number)}: parameter {shard.name} of full shape "
                f"{list(shard.full_shape)} is not in the single-device plan",
            )
            return
        extents = self.side.programs[instance.programs[0]].extents
        offset = tuple(still(start, extents) for start in shard.offset)
        self.expect(number, instance.outputs[0], self.view(shard.name, shard.shape, offset))

    def load(self, number: int, instance: Instance) -> None:
        """A load is the slice of the batch that its replica and microbatch read."""
        which, count = slice_of(self.side, instance)
        if not self.divided(instance, count):
            self.problems.add(
                "assumption",
                f"{self.side.where(number)}: not every one of the {count} replicas and "
                "microbatches reads a slice of its own",
            )
        for position, value in enumerate(instance.outputs):
            name = f"batch.{position}"
            full = self.inputs.batch.get(name)
            shape = self.side.unrolled.tensors[value].shape
            if full is None or len(full) != len(shape):
                self.expect(number, value, None)
                continue
            if any(n not in (size, size * count) for n, size in zip(full, shape, strict=True)):
                self.expect(number, value, None)
                continue
            offset = tuple(
                ZERO if n == size else which * size for n, size in zip(full, shape, strict=True)
            )
            self.expect(number, value, self.view(name, shape, offset))

    def divided(self, instance: Instance, count: int) -> bool:
        """Whether a load cuts the batch: each tensor in one dimension at most, and one at least."""
        cut = 0
        for position, value in enumerate(instance.outputs):
            full = self.inputs.batch.get(f"batch.{position}", ())
            shape = self.side.unrolled.tensors[value].shape
            differing = sum(n != size for n, size in zip(full, shape, strict=False))
            if differing > 1:
                return False
            cut += differing
        return self.side.name == "single" or count == 1 or cut > 0 or not instance.outputs

    def seed(self, number: int, instance: Instance) -> None:
        """A seed is the single-device side's incoming gradient."""
        shape = self.side.unrolled.tensors[instance.outputs[0]].shape
        node = self.nodes.find(Input(SEED))
        if node is None or any(n != 1 for n in shape):
            self.expect(number, instance.outputs[0], None)
            return
        _, count = slice_of(self.side, instance)
        share = Fraction(1, count) if self.side.plan.loss == "mean" else Fraction(1)
        addend = Addend(share, node, View(tuple(() for _ in shape)))
        self.expect(number, instance.outputs[0], Lineage(shape, (addend,)))

    def handed_on(self, number: int, instance: Instance) -> None:
        """A value that is handed on is what it was."""
        if len(instance.inputs) != 1:
            self.problems.add(
                "plan",
                f"{self.side.where(number)} has {len(instance.inputs)} sources, expected one",
            )
            return
        if instance.over:
            along = ", ".join(axis for axis, _ in instance.over)
            self.problems.add(
                "plan", f"{self.side.where(number)} gives along {along}, where no rank is the root"
            )
            return
        source = self.side.lineages[instance.inputs[0]]
        for value in instance.outputs:
            if self.side.lineages[value] != source:
                self.problems.add(
                    "assumption",
                    f"{self.side.where(number)}: the lineage of "
                    f"{self.side.unrolled.tensors[value].name} is not its source's",
                )
