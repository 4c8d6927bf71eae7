"""Random inputs of a plan at its small sizes: parameters, batch, incoming loss gradient.

Every parameter and batch tensor exists once, for both sides; ranks read their part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import Weighted
from shardproof.engine.interpreters.dims import Dim, count, weights
from shardproof.engine.plan.ir import Shard
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.small_shapes import Sizes
from shardproof.engine.simulation.trace_axes import slice_axes

#: Keeps attention scores and gates away from saturation.
MATRIX_SCALE = 0.5
#: Draws of a row of index data until it is like none before.
MOST_DRAWS = 8
#: Between what numbers of the batch lie where none is to be negative.
POSITIVE = (0.1, 0.9)
#: Up to so many classes are put in an order, of which the first are taken.
MOST_ORDERED = 1 << 16
#: Integers that are no indices are below this where they have no domain, and of every other draw of
#: wide inputs.
MOST_DRAWN = 8
#: Of what size tables and numbers of the batch are where inputs are faint, and of what scale their
#: matrices.
FAINT_SIZE, FAINT_SCALE = 0.001, 0.1
#: Of what size numbers of the batch are where inputs are steep.
STEEP_SIZE = 100.0
#: Between what sizes numbers of the batch have one each tensor where inputs are of various sizes.
VARIOUS_SIZES = (0.25, 4.0)
#: By what part of itself a number is changed where it is asked what rounding may do, and where it
#: is asked what it does to what is not straight.
NUDGE, BEND = 1e-12, 1e-7
#: How often an index is a negative one, where its domain has any, and where they come again.
NEGATIVE, OFTEN = 0.25, 0.75


def read_by(operator: str, position: int, unrolled: Unrolled) -> frozenset[str]:
    """Names of the tensors that an operator reads at one position of its inputs.

    Example: ``linear`` reads w1 and w2 at position 1.
    """
    read = {
        instance.inputs[position]
        for instance in unrolled.instances
        if instance.name == operator and not instance.backward
    }
    return frozenset(unrolled.tensors[v].name for v in read)


@dataclass(slots=True)
class Inputs:
    """Random inputs for one evaluation of both sides of a plan.

    Example: ``inputs.parameter("w1")`` is the same array each time, whose parts the ranks read.

    ``rotary``: names of buffers that hold (real, imaginary) pairs; ``tables``: of embeddings.
    ``scale``: of matrices and tables; where it is small, so are activations, and a constant that is
    added to their squares counts; where it is more than 1, constants are numbers of no scale.
    ``wide``: of other kinds than at first: ids of half as many classes as a row is long, mostly
    negative ones where there are any, counts of any size.
    ``roots``: named inputs that roots and logarithms are taken of, which are positive where inputs
    are ``wide``.
    ``hiding``: named inputs by which a large number hides scores, which are 0 and 1 where indices
    are ``repeated``: of any others only the scores of one key are seen.
    ``repeated``: an index may come several times in a row, and others not at all: where every index
    comes once, a sum over a row hides which row of a table is which.
    ``positive``: no number is negative, and those of the batch and of named inputs are below 1:
    where a program takes logarithms or roots of them, it is defined.
    ``signed``: named inputs of one dimension have both signs; else they are near 1, as the weights
    of norms are; constants among these are spread as whole numbers are, with which they may be
    compared (positions with lengths).
    ``faint``: tables and numbers of the batch are so small that a constant which is added to their
    squares counts, and matrices are not: what a layer adds to a residual stream counts there, too.
    ``slight``: vectors and numbers of the batch are so small that gradients are, too, and a norm
    to which they are clipped is not reached; ``steep``: numbers of the batch are so large that
    gradients are, too, where those of the loss are bounded, and such a norm is passed.
    ``various``: numbers of the batch are of another size in each tensor, and some are about as
    large as what a program compares them with (policies that sampled and are clipped by ratios).
    ``nudges``: every number is another one by ``nudge`` of itself, so little that only rounding
    explains what becomes very different.  ``long``: numbers have more digits on the way, where
    NumPy has such numbers.
    """

    sizes: Sizes
    rotary: frozenset[str]
    tables: frozenset[str]
    random: np.random.Generator
    roots: frozenset[str] = frozenset()
    hiding: frozenset[str] = frozenset()
    wide: bool = False
    scale: float = 1.0
    positive: bool = False
    repeated: bool = False
    signed: bool = False
    faint: bool = False
    slight: bool = False
    steep: bool = False
    various: bool = False
    nudges: np.random.Generator | None = None
    nudge: float = NUDGE
    long: bool = False
    _parameters: dict[str, Weighted] = field(default_factory=dict)
    _batch: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _gradient: float = 0.0

    def loss_gradient(self, shape: tuple[int, ...], *, whole: bool) -> Weighted:
        """The incoming gradient of the loss, or of a slice's loss that is averaged into it."""
        if not self._gradient:
            self._gradient = float(self.random.uniform(0.5, 2.0))
        mean = self.sizes.plan.loss == "mean" and not whole
        share = 1 / math.prod(n for _, n in slice_axes(self.sizes.plan)) if mean else 1.0
        return Weighted(np.full(shape, self._gradient * share), tuple(() for _ in shape))

    def parameter(self, name: str) -> Weighted:
        """The full parameter."""
        if name not in self._parameters:
            dims = tuple(self.sizes.dim(dim) for dim in self.sizes.recorder.parameters[name])
            known = self.sizes.recorder.integers.get(name)
            own = self.sizes.plan.numbers.get(name) if self.sizes.true else None
            if own is not None:
                values = np.asarray(own, dtype=float).reshape([count(dim) for dim in dims])
            elif known is None and self.repeated and name in self.hiding:
                # They are whole numbers: none next to them is meant.
                values = np.rint(self.random.uniform(0.2, 1.0, [count(d) for d in dims]))
            elif known is None:
                values = self._nudged(self._values(name, dims))
            else:
                values = self._integers(*known, dims)
            self._parameters[name] = Weighted(values, dims)
        return self._parameters[name]

    def _nudged(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.long:
            return values.astype(np.longdouble)
        if self.nudges is None:
            return values
        return values * (1 + self.nudge * self.nudges.standard_normal(values.shape))

    def _integers(self, shard: Shard, axis: int, dims: tuple[Dim, ...]) -> NDArray[np.float64]:
        """Integers of the input's domain; of those that are indices, classes that there are, as
        many beyond if the domain has them (``ids == 0`` looks them up in one class alone), and
        where it has negative ones (labels that count for nothing), some of these.  Without a
        domain one class is that of a comparison alone (``mask == 0``), beside any other numbers."""
        shape = [count(dim) for dim in dims]
        low, high = shard.domain or ((0, 2) if shard.dtype == "bool" else (0, MOST_DRAWN))
        classes = self.sizes.classes(axis)
        divisor = self.sizes.divisor(axis) if classes else 1
        if classes and (shard.domain is not None or classes * divisor > 1):
            first = max(0, -(-low // divisor))
            last = classes if shard.domain is None else min(2 * classes, -(-high // divisor))
            if first >= last:
                raise Unsupported(
                    f"no value of {shard.name} in [{low}, {high}) is left at small sizes"
                )
            if self.repeated and self.wide:
                last = max(first + 1, min(last, classes))
            drawn = self._ids(shape or [1], last - first).reshape(shape) + first
            drawn = drawn * self.sizes.step(axis)
        elif self.wide and low >= 0 and high - low > MOST_DRAWN:
            drawn = low + self._counts(high - low, shape)
        else:
            # What masks something is 0 or 1, which few of any numbers are.
            most = min(high, low + 2) if self.repeated and low >= 0 else high
            drawn = self.random.integers(low, most, shape).astype(float)
        if low < 0:
            often = OFTEN if self.wide and (self.repeated or self.signed) else NEGATIVE
            drawn = np.where(self.random.random(shape) < often, float(low), drawn)
        return drawn

    def _counts(self, many: int, shape: list[int]) -> NDArray[np.float64]:
        """Whole numbers below ``many`` that are no indices: small ones, as those of first steps
        are, for which powers and schedules differ most, or of any size."""
        if not (self.repeated or self.signed):
            return self.random.integers(1, MOST_DRAWN, shape).astype(float)
        sizes: NDArray[np.float64] = np.exp2(self.random.uniform(0, math.log2(many), shape))
        return np.floor(sizes)

    def _values(self, name: str, dims: tuple[Dim, ...]) -> NDArray[np.float64]:
        shape = [count(dim) for dim in dims]
        if name in self.rotary:
            angles = self.random.uniform(0, 2 * np.pi, shape[:-1])
            return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        if self.positive and name in self.sizes.recorder.others:
            return self._numbers(shape)
        if (self.wide or self.slight) and name in self.roots:
            return self.random.uniform(*POSITIVE, shape) * min(1.0, self.scale) ** 2
        values: NDArray[np.float64] = self.random.standard_normal(shape)
        if self.positive:
            values = np.abs(values)
        named, vector = self.sizes.recorder, len(dims) < 2
        if vector and self.signed and name in named.constants:
            return (values + 1) * (MOST_DRAWN / 2)
        if self.scale > 1 and name in named.constants:
            return values
        if self.slight and name not in named.constants and (vector or name in named.others):
            return values * FAINT_SIZE
        if self.steep and name in named.others and name not in named.constants:
            return values * STEEP_SIZE
        if self.various and name in named.others and name not in named.constants:
            low, high = (math.log(size) for size in VARIOUS_SIZES)
            return values * math.exp(self.random.uniform(low, high))
        if vector:
            return values if self.signed and name in named.others else values * 0.2 + 1
        if name in self.tables:
            return values * (FAINT_SIZE if self.faint else self.scale)
        fan_in = sum(weight * weight for weight in weights(dims[-1]))
        return values * (self.scale * MATRIX_SCALE / math.sqrt(fan_in))

    def batch(self, number: int, at: Mapping[str, int] | None) -> Weighted:
        """A batch tensor: the slice at coordinates, or (None) the whole."""
        tensor = self.sizes.recorder.batch[number]
        if at is None:
            data = self._drawn(number)
            dims = self.sizes.dims(tensor.full)
            return Weighted(data.reshape([count(dim) for dim in dims]), dims)
        dims = self.sizes.dims(tensor.local)
        picks: list[int | slice] = []
        for axes in self._divided(number):
            picks += [self._pick(axis, n, at.get(axis, 0)) for axis, n in axes]
            picks.append(slice(None))
        return Weighted(self._drawn(number)[tuple(picks)], dims)

    def _pick(self, axis: str, slices: int, position: int) -> int:
        extent = dict(slice_axes(self.sizes.plan))[axis]
        if not 0 <= position < extent:
            raise ShapeMismatch(f"slice {position} along {axis}, the batch has {extent}")
        return position if slices > 1 else 0

    def _divided(self, number: int) -> list[list[tuple[str, int]]]:
        """For each dimension: the slice axes that divide it, with their representatives."""
        tensor = self.sizes.recorder.batch[number]
        return [
            []
            if full == local
            else [
                (axis, count(self.sizes.dim(self.sizes.recorder.slices[axis])))
                for axis, n in slice_axes(self.sizes.plan)
            ]
            for full, local in zip(tensor.full, tensor.local, strict=True)
        ]

    def _ids(self, shape: list[int], classes: int) -> NDArray[np.float64]:
        """Random index data, along the last dimension without repetition while there are classes
        left, and no row like one before, if it can be: equal ids would hide what tells positions
        and slices apart.  Where they are ``repeated``, any; where they are ``wide``
        too, any of half as many as a row is long."""
        *outer, length = shape
        if self.repeated and not self.wide:
            return self.random.integers(0, classes, shape).astype(float)
        if self.repeated:
            some = self._places(classes, max(2, length // 2))
            return self.random.choice(some, shape).astype(float)
        rows: list[NDArray[np.int64]] = []
        seen: set[tuple[int, ...]] = set()
        for _ in range(int(np.prod(outer))):
            for _ in range(MOST_DRAWS):
                blocks = [self._places(classes, length) for _ in range(0, length, classes)]
                row = np.concatenate(blocks)[:length]
                if tuple(row) not in seen:
                    break
            if rows and np.array_equal(row, rows[-1]):
                row = (row + 1) % classes
            seen.add(tuple(row))
            rows.append(row)
        return np.array(rows, dtype=float).reshape(shape)

    def _places(self, classes: int, count: int) -> NDArray[np.int64]:
        """Up to ``count`` classes, none twice; of very many not all are put in an order for it."""
        if classes <= MOST_ORDERED:
            return self.random.permutation(classes)[:count]
        return self.random.choice(classes, min(count, classes), replace=False)

    def _numbers(self, shape: list[int]) -> NDArray[np.float64]:
        """Numbers of the batch."""
        if self.positive:
            return self.random.uniform(*POSITIVE, shape)
        numbers: NDArray[np.float64] = self.random.standard_normal(shape)
        if self.steep:
            return numbers * STEEP_SIZE
        return numbers * FAINT_SIZE if self.faint or self.slight else numbers

    def _drawn(self, number: int) -> NDArray[np.float64]:
        """The whole tensor: for each dimension its slice axes, then the slice's positions."""
        if number not in self._batch:
            tensor = self.sizes.recorder.batch[number]
            drawn: list[int] = []
            shape: list[int] = []
            for axes, local in zip(self._divided(number), tensor.local, strict=True):
                size = count(self.sizes.dim(local))
                drawn += [*(n if a in self.sizes.expanded else 1 for a, n in axes), size]
                shape += [*(n for _, n in axes), size]
            classes = self.sizes.classes(tensor.domain)
            if classes:
                values = self._ids(drawn, classes) * self.sizes.step(tensor.domain)
            else:
                values = self._nudged(self._numbers(drawn))
            self._batch[number] = np.broadcast_to(values, shape)
        return self._batch[number]
