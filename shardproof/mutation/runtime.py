"""A small plan, run as a cluster runs it: every rank by itself, in the order in which it issues.

Ranks wait for messages and for each other; nothing of families, unrolling or matching is used, only
what single operators compute.  This is the second opinion on what a plan means: what `evaluate`
takes from `engine.unroll`, this does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from engine.arrays import FloatReading
from engine.arrays.dims import exact
from engine.errors import ShapeMismatch, Unsupported
from engine.ir import Body, Call, Group, Op, Plan, Program, Shard
from engine.ops import apply_backward, apply_forward
from shardproof.mutation.exchange import COLLECTIVES, Array, cut, exchanged, understood
from shardproof.mutation.exchange import Stuck as Stuck

#: Numbers that all ranks and microbatches together may write.
MOST_NUMBERS: Final = 3_000_000
#: Operators over all ranks and microbatches.
MOST_STEPS: Final = 20_000
#: Gradients below this part of the largest are zero but for rounding.
SMALLEST_SCALE: Final = 1e-6


@dataclass(slots=True)
class Given:
    """Random inputs, the same for both sides: full parameters and the whole batch, by name."""

    plan: Plan
    random: np.random.Generator
    classes: int
    gradient: float = 1.5
    held: dict[str, Array] = field(default_factory=dict)

    def parameter(self, shard: Shard) -> Array:
        if shard.name not in self.held:
            shape = shard.full_shape
            drawn = self.random.standard_normal(shape)
            self.held[shard.name] = (
                drawn * 0.2 + 1 if len(shape) < 2 else drawn * (0.5 / np.sqrt(shape[-1]))
            )
        return self.held[shard.name]

    def batch(self, number: int, shape: Sequence[int], dtype: str) -> Array:
        name = f"batch {number}"
        if name not in self.held:
            self.held[name] = (
                self.random.integers(0, self.classes, shape).astype(float)
                if "int" in dtype
                else self.random.standard_normal(shape)
            )
        return self.held[name]


@dataclass(slots=True)
class World:
    """What ranks share: messages on their way, and who waits in which collective."""

    mail: dict[tuple[int, int], deque[Array]] = field(default_factory=dict)
    issued: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict)
    joined: dict[tuple[tuple[int, ...], int], dict[int, tuple[Op, Array | None]]] = field(
        default_factory=dict
    )
    moved: bool = False


@dataclass(slots=True)
class Rank:
    """One rank: where it is, what its slots hold, and its gradients."""

    plan: Plan
    program: Program
    at: Mapping[str, int]
    number: int
    given: Given
    world: World
    slots: dict[int, Array] = field(default_factory=dict)
    contexts: dict[int, list[dict[int, Array]]] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    losses: list[tuple[str, float]] = field(default_factory=list)
    issues: dict[int, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is the single device, which reads the whole batch."""
        return self.program is self.plan.single

    def run(self) -> Generator[None, None, None]:
        """Run to the end; yields where it waits."""
        for call in self.program.calls:
            yield from self.call(call)

    def call(self, call: Call) -> Generator[None, None, None]:
        body = self.program.bodies[call.body]
        values = self.bound(call, body)
        for op in body.ops:
            yield from self.step(call, body, op, values)
        for slot, value in zip(call.outputs, body.outputs, strict=True):
            self.slots[slot] = self.value(values, value)
        for _, value, shard in body.reduced:
            self.gradients[shard] = self.value(values, value)
        for value, shard in body.gradients:
            new = self.value(values, value)
            self.same(new.shape, self.program.shards[shard].shape)
            self.gradients[shard] = self.gradients.get(shard, 0.0) + new
        for value in body.losses:
            which = f"{body.name}: {body.values[value].name}"
            self.losses.append((which, float(self.value(values, value).sum())))
        self.contexts.setdefault(call.body, []).append(values)

    def bound(self, call: Call, body: Body) -> dict[int, Array]:
        values: dict[int, Array] = {}
        seeds = dict(self.program.seeds)
        for value, slot in zip(body.inputs, call.inputs, strict=True):
            if slot in self.slots:
                values[value] = self.slots[slot]
            elif slot in seeds and seeds[slot] in self.slots:
                values[value] = np.full(body.values[value].shape, self.seed())
            else:
                raise Stuck(f"rank {self.number} reads slot {slot}, which nothing has written")
        for value, number in body.shards:
            values[value] = self.shard(number)
        if body.mirror >= 0:
            # The k-th call of a backward body reads the contexts of the k-th forward call.
            k = self.issues.get(call.body, 0)
            self.issues[call.body] = k + 1
            earlier = self.contexts.get(body.mirror, [])
            if k >= len(earlier):
                raise Stuck(f"rank {self.number}: {body.name} has no forward call left")
            for value, there in body.saved:
                values[value] = self.value(earlier[k], there)
        for value, _, shard in body.reduced:
            nothing = np.zeros(self.program.shards[shard].shape)
            values[value] = self.gradients.get(shard, nothing)
        return values

    def value(self, values: Mapping[int, Array], number: int) -> Array:
        if number not in values:
            raise Stuck(f"rank {self.number} reads a value that nothing has written")
        return values[number]

    def seed(self) -> float:
        share = self.slices() if self.plan.loss == "mean" and not self.whole else 1
        return self.given.gradient / share

    def slices(self) -> int:
        axes = [self.program.extents.get(axis, 1) for axis in self.plan.replica_axes]
        return self.plan.microbatches * prod(axes)

    def shard(self, number: int) -> Array:
        return self.box(self.program.shards[number], self.given.parameter)

    def box(self, shard: Shard, full: Any) -> Array:
        """What this rank holds of a tensor over a parameter."""
        cuts = []
        for start, size, most in zip(shard.offset, shard.shape, shard.full_shape, strict=True):
            first = start.at(self.at)
            if not 0 <= first <= first + size <= most:
                raise Stuck(f"rank {self.number} holds {shard.name} from {first}")
            cuts.append(slice(first, first + size))
        found: Array = full(shard)[tuple(cuts)]
        return found

    @staticmethod
    def same(actual: Sequence[int], declared: Sequence[int]) -> None:
        if tuple(actual) != tuple(declared):
            raise ShapeMismatch(f"shape {list(actual)}, declared {list(declared)}")

    # -- operators --------------------------------------------------------------------------

    def step(
        self, call: Call, body: Body, op: Op, values: dict[int, Array]
    ) -> Generator[None, None, None]:
        self.world.moved = True
        understood(op)
        inputs = [None if v < 0 else self.value(values, v) for v in op.inputs]
        if op.name == "load_batch":
            outputs = [self.load(call, i, body.values[v]) for i, v in enumerate(op.outputs)]
        elif op.name == "send":
            self.world.mail.setdefault((self.number, self.peer(op)), deque()).append(inputs[0])  # type: ignore[arg-type]
            return
        elif op.name == "post_recv":
            return  # Messages wait here until they are taken, whoever has said that he will.
        elif op.name == "recv":
            channel = (self.peer(op), self.number)
            while not self.world.mail.get(channel):
                yield
            outputs = [self.world.mail[channel].popleft()]
        elif op.name in COLLECTIVES:
            outputs = yield from self.collective(op, inputs)
        elif op.name == "chunk":
            outputs = [self.chunk(op, inputs[0])]
        else:
            outputs = self.local(op, inputs)
        self.same([len(outputs)], [len(op.outputs)])
        for number, output in zip(op.outputs, outputs, strict=True):
            self.same(output.shape, body.values[number].shape)
            values[number] = output

    def local(self, op: Op, inputs: Sequence[Array | None]) -> list[Array]:
        reading = FloatReading(coordinates=dict(self.at))
        given = [None if x is None else exact(x) for x in inputs]
        if not op.backward:
            found = apply_forward(reading, op.name, given, op.attrs)
        else:
            wrt, arity = op.attrs.get("wrt"), op.attrs.get("arity")
            if not isinstance(wrt, tuple) or not isinstance(arity, int):
                raise Unsupported("a backward operator without wrt and arity")
            places = [w for w in wrt if isinstance(w, int)]
            found = apply_backward(reading, op.name, given[:arity], given[arity:], op.attrs, places)
        return [np.asarray(x.data, dtype=float) for x in found]

    def load(self, call: Call, number: int, declared: Any) -> Array:
        full = next(
            loaded.values[v]
            for loaded in self.plan.single.bodies
            for op in loaded.ops
            if op.name == "load_batch"
            for i, v in enumerate(op.outputs)
            if i == number
        )
        data = self.given.batch(number, full.shape, full.dtype)
        if self.whole:
            return data
        microbatch = call.microbatch
        if microbatch < 0 and self.plan.microbatches == 1:
            microbatch = 0
        if not 0 <= microbatch < self.plan.microbatches:
            raise Stuck(f"rank {self.number} loads microbatch {microbatch}")
        replica = 0
        for axis in self.plan.replica_axes:
            replica = replica * self.program.extents.get(axis, 1) + self.at.get(axis, 0)
        place = replica * self.plan.microbatches + microbatch
        cuts = tuple(
            slice(None) if n == local else slice(place * local, (place + 1) * local)
            for n, local in zip(full.shape, declared.shape, strict=True)
        )
        return data[cuts]

    # -- communication ----------------------------------------------------------------------

    def offset(self) -> int:
        """How far this rank is from the first one of its program."""
        return self.number - self.program.base

    def peer(self, op: Op) -> int:
        peer = op.attrs.get("peer")
        if not isinstance(peer, int):
            raise Stuck(f"rank {self.number}: {op.name} without a peer")
        return peer + self.offset()

    def members(self, op: Op) -> tuple[int, ...]:
        """The ranks of a group, in order."""
        group = op.attrs.get("group")
        group = group if isinstance(group, Group) else Group()
        steps = {name: (extent, stride) for name, extent, stride in self.program.axes}
        if any(axis not in steps for axis in group.axes):
            raise Stuck(f"rank {self.number}: a group along {list(group.axes)}")
        here = self.offset() - sum(self.at[a] * steps[a][1] for a in group.axes)
        ranks = [r + here for r in group.ranks or (self.program.base,)]
        for axis in dict.fromkeys(group.axes):
            extent, stride = steps[axis]
            ranks = [r + stride * i for r in ranks for i in range(extent)]
        if self.number not in ranks or len(set(ranks)) < len(ranks):
            raise Stuck(f"rank {self.number} is not in its group {ranks}, once")
        return tuple(sorted(ranks))

    def chunk(self, op: Op, x: Array | None) -> Array:
        """What `torch.chunk` gives the member at this rank's position."""
        ranks, dim = self.members(op), op.attrs.get("dim")
        if x is None or not isinstance(dim, int) or not -x.ndim <= dim < x.ndim:
            raise Stuck(f"rank {self.number}: a chunk along {dim}")
        size, own = x.shape[dim], ranks.index(self.number)
        step = -(-size // len(ranks))
        if size and own * step >= size:
            raise Stuck(f"rank {self.number}: chunk {own} of {-(-size // step)}")
        return cut(x, dim, own * step, min(step, size - own * step))

    def collective(
        self, op: Op, inputs: Sequence[Array | None]
    ) -> Generator[None, None, list[Array]]:
        ranks = self.members(op)
        k = self.world.issued.get((ranks, self.number), 0)
        self.world.issued[ranks, self.number] = k + 1
        held = self.world.joined.setdefault((ranks, k), {})
        held[self.number] = (op, inputs[0] if inputs else None)
        while len(held) < len(ranks):
            yield
        self.world.moved = True
        root = op.attrs.get("root")
        if isinstance(root, int):
            # Named as in the first instance of the program; along the group's own axes, itself.
            root += min(ranks) - min(self.first(op))
        return exchanged(ranks, [held[r] for r in ranks], ranks.index(self.number), root)

    def first(self, op: Op) -> tuple[int, ...]:
        """The group of the first instance of the program."""
        group = op.attrs.get("group")
        return (isinstance(group, Group) and group.ranks) or (self.program.base,)


# -- both sides ----------------------------------------------------------------------------------


def fits(plan: Plan) -> bool:
    """Whether all ranks of a plan are run in short time."""
    numbers = steps = 0
    for program in plan.programs:
        for call in program.calls:
            body = program.bodies[call.body]
            numbers += program.ranks * sum(prod(v.shape) for v in body.values)
            steps += program.ranks * len(body.ops)
    held = max((prod(s.full_shape) for s in plan.single.shards), default=0)
    return max(numbers, held) <= MOST_NUMBERS and steps <= MOST_STEPS


def ranks_of(program: Program) -> Iterator[tuple[int, dict[str, int]]]:
    """The ranks of a program, and their coordinates."""
    for place in product(*(range(extent) for _, extent, _ in program.axes)):
        steps = zip(program.axes, place, strict=True)
        number = program.base + sum(stride * i for (_, _, stride), i in steps)
        yield number, {name: i for (name, _, _), i in zip(program.axes, place, strict=True)}


def execute(ranks: Sequence[Rank]) -> None:
    """Run ranks until all have ended; raises `Stuck` if they wait for ever, or leave messages."""
    running = {rank.number: rank.run() for rank in ranks}
    world = ranks[0].world
    while running:
        world.moved = False
        for number in list(running):
            if next(running[number], StopIteration) is StopIteration:
                del running[number]
                world.moved = True
        if not world.moved:
            raise Stuck(f"ranks {sorted(running)} wait for each other")
    left = [channel for channel, held in world.mail.items() if held]
    if left:
        raise Stuck(f"messages that nobody takes, over {left}")


def worst(plan: Plan, seed: int) -> tuple[float, str]:
    """The largest relative difference of a loss or a gradient, and where it is.

    Raises `Stuck`, `ShapeMismatch` or `Unsupported` for what cannot be run.
    """
    given = Given(plan, np.random.default_rng(seed), _classes(plan.single))
    single = Rank(plan, plan.single, {}, 0, given, World())
    world = World()
    many = [
        Rank(plan, program, at, number, given, world)
        for program in plan.programs
        for number, at in ranks_of(program)
    ]
    with np.errstate(all="ignore"):
        execute([single])
        execute(many)
    return max([*_losses(plan, single, many), *_gradients(single, many)], default=(np.inf, "none"))


def _classes(program: Program) -> int:
    """How many ids there are: what fits the smallest table."""
    found = [
        body.values[op.inputs[1]].shape[0]
        for body in program.bodies
        for op in body.ops
        if op.name == "embedding" and not op.backward
    ]
    return min(found, default=8)


def _error(actual: Any, expected: Any, scale: float) -> float:
    off = np.abs(np.asarray(actual) - np.asarray(expected))
    off = np.where(np.isnan(off), np.inf, off)
    return float(off.max(initial=0.0)) / (scale or 1.0)


def _losses(plan: Plan, single: Rank, many: Sequence[Rank]) -> list[tuple[float, str]]:
    """Losses of one name, over the ranks of one program that differ in their replica only."""
    expected = sum(value for _, value in single.losses)
    totals: dict[object, float] = {}
    for rank in many:
        others = tuple((a, i) for a, i in rank.at.items() if a not in plan.replica_axes)
        share = rank.slices() if plan.loss == "mean" else 1
        for which, value in rank.losses:
            key = (rank.program.base, others, which)
            totals[key] = totals.get(key, 0.0) + value / share
    if not totals:
        return [(np.inf, "no rank computes a loss")]
    return [(_error(x, expected, abs(expected)), f"loss {key}") for key, x in totals.items()]


def _gradients(single: Rank, many: Sequence[Rank]) -> list[tuple[float, str]]:
    shards = single.program.shards
    full = {shards[n].name: x for n, x in single.gradients.items() if shards[n].trainable}
    largest = max((float(np.abs(x).max(initial=0.0)) for x in full.values()), default=0.0)
    found = []
    for rank in many:
        for number, shard in enumerate(rank.program.shards):
            if shard.updated_as >= 0:
                continue
            held = rank.gradients.get(number) if shard.trainable else None
            whole = full.get(shard.name)
            if held is None and whole is None:
                continue
            wanted = 0.0 if whole is None else rank.box(shard, lambda s: full[s.name])
            own = 0.0 if whole is None else float(np.abs(whole).max(initial=0.0))
            scale = max(own, SMALLEST_SCALE * largest)
            where = f"gradient of {shard.name} on rank {rank.number}"
            found.append((_error(0.0 if held is None else held, wanted, scale), where))
    return found
