"""Random inputs, the same for both sides, and tensors of numbers at the sizes that a plan has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.ops.primitives import Interpreter
from shardproof.engine.plan.ir import Op, Plan, Program, Shard
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import Lot, LotInterpreter, exact, together
from shardproof.engine.reference_runtime.runtime import Where, applied

Array = NDArray[Any]

#: Domains of more integers are not drawn from as a whole.
MOST_DRAWN: Final = 1 << 10


@dataclass(slots=True)
class Values:
    """Full parameters and the whole batch, drawn once by name; ranks read their part of it.

    Example: ``full(shard)`` of two ranks' shards of w1 is one array of [16, 8], of which each cuts
    its rows.

    ``scale``: how much larger than usual drawn numbers are that are no ids; ``centre``: about which
    number those of vectors are.
    """

    plan: Plan
    random: np.random.Generator
    gradient: float = 1.5
    declared: bool = True
    scale: float = 1.0
    centre: float = 1.0
    batches: dict[str, Array] = field(default_factory=dict)
    lots: dict[str, Lot] = field(default_factory=dict)

    def interpreter(self, places: Sequence[Mapping[str, int]]) -> Interpreter[Lot]:
        """What evaluates operators on lots, ranks at ``places`` on the mesh."""
        return LotInterpreter(places)

    def of(self, x: Lot, position: int) -> Lot:
        """The tensor of the rank at a position of the lot."""
        return x.of(position)

    def together(self, xs: Sequence[Lot]) -> Lot:
        """The ranks' tensors as one lot."""
        return together(xs)

    def full(self, shard: Shard) -> Lot:
        """The whole of a parameter."""
        if shard.name not in self.lots:
            shape = shard.full_shape
            if shard.integer:
                low, high = self._domain(shard)
                drawn = self.random.integers(low, high, shape).astype(float)
                self.lots[shard.name] = exact(drawn)
                return self.lots[shard.name]
            drawn = self.scale * self.random.standard_normal(shape)
            self.lots[shard.name] = exact(
                drawn * 0.2 + self.centre if len(shape) < 2 else drawn * (0.5 / np.sqrt(shape[-1]))
            )
        return self.lots[shard.name]

    def _domain(self, shard: Shard) -> tuple[int, int]:
        """From what number on, and below what, the integers of an input are drawn: all that a small
        domain has, else as many as there are classes."""
        some = classes(self.plan.single)
        low, high = shard.domain or (0, some)
        return low, high if high - low <= MOST_DRAWN else max(low + 1, min(high, some))

    def box(self, shard: Shard, places: Sequence[Mapping[str, int]]) -> Lot:
        """The part of a named input that each rank holds, cut from the same random full tensor."""
        return self.cut(self.full(shard), shard, places)

    def cut(self, full: Lot, shard: Shard, places: Sequence[Mapping[str, int]]) -> Lot:
        """What ranks hold of a tensor over a parameter."""
        interpreter = LotInterpreter(places)
        for dim, (start, size) in enumerate(zip(shard.offset, shard.shape, strict=True)):
            if size != shard.full_shape[dim]:
                full = interpreter.slice(full, dim, start, size)
        return full

    def batch(
        self, number: int, shape: Sequence[int], dtype: str, slices: Sequence[int] | None
    ) -> Lot:
        """Random ids or floats of a batch tensor, whole or one slice for each rank; drawn once."""
        declared = loaded(self.plan.single, number)
        if f"batch {number}" not in self.batches:
            self.batches[f"batch {number}"] = (
                self.random.integers(0, classes(self.plan.single), declared[0]).astype(float)
                if "int" in declared[1]
                else self.scale * self.random.standard_normal(declared[0])
            )
        data = self.batches[f"batch {number}"]
        if slices is None:
            return exact(data)
        tensors = []
        for place in slices:
            cuts = tuple(
                slice(None) if n == local else slice(place * local, (place + 1) * local)
                for n, local in zip(data.shape, shape, strict=True)
            )
            tensors.append(exact(data[cuts]))
        return together(tensors)

    def seed(self, shape: Sequence[int], share: Fraction) -> Lot:
        """The incoming gradient of a loss: this run's number times ``share``, in every entry."""
        return exact(np.full(tuple(shape), self.gradient * float(share)))

    def evaluate(
        self, where: Where, interpreter: Interpreter[Lot], op: Op, inputs: Sequence[Lot | None]
    ) -> list[Lot]:
        """The results of an operator on the ranks of a lot, by its declaration."""
        return applied(interpreter, op, op.attrs, inputs)


def loaded(program: Program, number: int) -> tuple[tuple[int, ...], str]:
    """The shape and the element type of the single-device program's batch tensor ``number``.

    Example: ((12, 8), "float32"); of a second tensor, where there is one, "the single-device
    program loads no batch tensor 1".
    """
    for body in program.bodies:
        for op in body.ops:
            if op.name == "load_batch" and number < len(op.outputs):
                value = body.values[op.outputs[number]]
                return value.shape, value.dtype
    raise Stuck(f"the single-device program loads no batch tensor {number}")


def classes(program: Program) -> int:
    """How many different ids are drawn: as many as the smallest embedding has rows.

    Example: with embeddings of 1,000 words and of 128 positions 128; without any 8.
    """
    sizes = [
        body.values[op.inputs[1]].shape[0]
        for body in program.bodies
        for op in body.ops
        if op.name == "embedding" and not op.backward
    ]
    return min(sizes, default=8)
