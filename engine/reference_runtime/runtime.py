"""A plan, run as a cluster runs it: ranks issue their calls in order, send, receive and wait.

Nothing of families, unrolling or matching is used, only what single operators compute: what others
take from `engine.schedule.unroll`, this does not.  A *crew* is one rank, or all ranks of a program
side by side; each has its own inputs, messages and groups.  What tensors are, an `Arithmetic` says:
numbers (`values`), or no more than dimensions.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, Generic, Protocol, TypeVar

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.ops.primitives import Interpreter
from shardproof.engine.plan.ir import Attr, Body, Call, Group, Op, Plan, Program, Shard
from shardproof.engine.reference_runtime.exchange import (
    COLLECTIVES,
    Stuck,
    chunked,
    exchanged,
    understood,
)

T = TypeVar("T")
#: An operator of a side: (program, body, operator).
Where = tuple[int, int, int]
#: A collective of a group: its ranks, and the how many-th of theirs it is.
Meeting = tuple[tuple[int, ...], int]


class Arithmetic(Protocol[T]):
    """What the tensors of a crew are, and its inputs."""

    #: Whether tensors have the sizes that the plan declares.
    declared: bool

    def interpreter(self, places: Sequence[Mapping[str, int]]) -> Interpreter[T]:
        """How operators are read for ranks at these coordinates."""
        ...

    def of(self, x: T, position: int) -> T:
        """One rank's tensor of a crew's."""
        ...

    def together(self, xs: Sequence[T]) -> T:
        """A crew's tensor, made of one for every rank."""
        ...

    def box(self, shard: Shard, places: Sequence[Mapping[str, int]]) -> T:
        """What ranks hold of a parameter."""
        ...

    def batch(
        self, number: int, shape: Sequence[int], dtype: str, slices: Sequence[int] | None
    ) -> T:
        """A batch tensor: of every rank the slice that it loads; the whole (``slices`` None)."""
        ...

    def seed(self, shape: Sequence[int], share: Fraction) -> T:
        """The incoming gradient of a loss: this share of the single-device one."""
        ...

    def evaluate(
        self, where: Where, interpreter: Interpreter[T], op: Op, inputs: Sequence[T | None]
    ) -> list[T]:
        """The outputs of an operator."""
        ...


@dataclass(slots=True)
class World(Generic[T]):
    """What ranks share: messages on their way, and who waits in which collective.

    Example: after a send of rank 0 that rank 1 has not received, ``mail[(0, 1)]`` has one tensor.
    """

    arithmetic: Arithmetic[T]
    mail: dict[tuple[int, int], deque[T]] = field(default_factory=dict)
    issued: dict[Meeting, int] = field(default_factory=dict)
    joined: dict[Meeting, dict[int, tuple[Op, T | None]]] = field(default_factory=dict)
    results: dict[Meeting, dict[int, list[T]]] = field(default_factory=dict)
    moved: bool = False


@dataclass(slots=True)
class Crew(Generic[T]):
    """Ranks of one program: where they are, what their slots hold, and their gradients.

    Example: two replicas by themselves are crews of ranks (0,) and (1,), together of (0, 1).

    ``slices``: into how many the batch is divided at the size of the plan; ``losses``: of every
    call that has one; ``passed_on``: what communication on this rank turned into a loss;
    ``results``: by (body, value) what each call gave of losses and results.
    """

    plan: Plan
    number: int
    places: Sequence[Mapping[str, int]]
    ranks: Sequence[int]
    world: World[T]
    slices: int
    slots: dict[int, T] = field(default_factory=dict)
    contexts: dict[int, list[dict[int, T]]] = field(default_factory=dict)
    gradients: dict[int, T] = field(default_factory=dict)
    losses: list[T] = field(default_factory=list)
    passed_on: list[T | None] = field(default_factory=list)
    results: dict[tuple[int, int], list[T]] = field(default_factory=dict)
    issues: dict[int, int] = field(default_factory=dict)
    shards: dict[int, T] = field(default_factory=dict)
    groups: dict[Group, list[tuple[int, ...]]] = field(default_factory=dict)
    interpreter: Interpreter[T] = field(init=False)
    alone: Interpreter[T] = field(init=False)
    kept: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for body in self.program.bodies:
            if body.forward_body >= 0:
                self.kept.setdefault(body.forward_body, set()).update(
                    there for _, there in body.saved
                )
        self.interpreter = self.world.arithmetic.interpreter(self.places)
        self.alone = self.world.arithmetic.interpreter([{}])

    @property
    def whole(self) -> bool:
        """Whether this is the single device, which reads the whole batch."""
        return self.number < 0

    @property
    def program(self) -> Program:
        """The program that the ranks run."""
        return self.plan.single if self.whole else self.plan.programs[self.number]

    @property
    def who(self) -> str:
        """The first rank, for messages."""
        return f"rank {self.ranks[0]}"

    def run(self) -> Generator[None, None, None]:
        """Run to the end; yields where it waits."""
        for call in self.program.calls:
            yield from self.call(call)

    def call(self, call: Call) -> Generator[None, None, None]:
        """Run a body once; yields where it waits."""
        body = self.program.bodies[call.body]
        values = self.bound(call, body)
        for number, op in enumerate(body.ops):
            yield from self.step(call, (self.number, call.body, number), op, values)
        for slot, value in zip(call.outputs, body.outputs, strict=True):
            self.slots[slot] = self.value(values, value)
        for _, value, shard in body.reduced:
            self.gradients[shard] = self.value(values, value)
        for value, shard in body.gradients:
            new = self.value(values, value)
            self.same(new, self.program.shards[shard].shape)
            before = self.gradients.get(shard)
            self.gradients[shard] = new if before is None else self.sum(before, new)
        for value in body.losses:
            self.losses.append(self.value(values, value))
        for value in dict.fromkeys((*body.losses, *body.results)):
            self.results.setdefault((call.body, value), []).append(self.value(values, value))
        if call.body in self.kept:
            context = {v: values[v] for v in self.kept[call.body] if v in values}
            self.contexts.setdefault(call.body, []).append(context)

    @property
    def final_losses(self) -> list[T]:
        """The losses, but for those that communication turned into another loss."""
        before = Counter(id(x) for x in self.passed_on)
        losses = []
        for x in self.losses:
            before[id(x)] -= 1
            if before[id(x)] < 0:
                losses.append(x)
        return losses

    def sum(self, x: T, y: T) -> T:
        """Two values of one slot added up, entry by entry."""
        return self.interpreter.combine([x, y], [Fraction(1)] * 2, Fraction(0))

    def bound(self, call: Call, body: Body) -> dict[int, T]:
        """The inputs of a body at a call, by value: slots, loss gradients, named inputs, what its
        forward call saved."""
        values: dict[int, T] = {}
        seeds = dict(self.program.seeds)
        for value, slot in zip(body.inputs, call.inputs, strict=True):
            if slot in self.slots:
                values[value] = self.slots[slot]
            elif slot in seeds and seeds[slot] in self.slots:
                values[value] = self.seed(body.values[value].shape)
            else:
                raise Stuck(f"{self.who} reads slot {slot}, which nothing has written")
        for value, number in body.shards:
            values[value] = self.shard(number)
        if body.forward_body >= 0:
            # The k-th call of a backward body reads the contexts of the k-th forward call.
            k = self.issues.get(call.body, 0)
            self.issues[call.body] = k + 1
            earlier = self.contexts.get(body.forward_body, [])
            if k >= len(earlier):
                raise Stuck(f"{self.who}: {body.name} has no forward call left")
            for value, there in body.saved:
                values[value] = self.value(earlier[k], there)
        for value, _, shard in body.reduced:
            if shard not in self.gradients:
                parameter = self.shard(shard)
                self.gradients[shard] = self.interpreter.combine(
                    [parameter], [Fraction(0)], Fraction(0)
                )
            values[value] = self.gradients[shard]
        return values

    def value(self, values: Mapping[int, T], number: int) -> T:
        """What a value of the body holds now; raises `Stuck` before it was written."""
        if number not in values:
            raise Stuck(f"{self.who} reads a value that nothing has written")
        return values[number]

    def seed(self, shape: Sequence[int]) -> T:
        """The incoming gradient of a loss: 1; of a mean loss on the parallel side, 1 over the
        number of slices."""
        mean = self.plan.loss == "mean" and not self.whole
        return self.world.arithmetic.seed(shape, Fraction(1, self.slices if mean else 1))

    def shard(self, number: int) -> T:
        """What every rank holds of a parameter."""
        if number not in self.shards:
            shard = self.program.shards[number]
            for start, size, most in zip(shard.offset, shard.shape, shard.full_shape, strict=True):
                if any(not 0 <= start.at(at) <= most - size for at in self.places):
                    raise Stuck(f"{self.who} holds {shard.name} from {start}")
            self.shards[number] = self.world.arithmetic.box(shard, self.places)
        return self.shards[number]

    def same(self, x: T, declared: Sequence[int]) -> None:
        """Raise `ShapeMismatch` unless a value has the shape that the plan declares, where shapes
        are true ones."""
        if not self.world.arithmetic.declared:
            return
        actual = tuple(map(int, self.interpreter.shape(x)))
        if actual != tuple(declared):
            raise ShapeMismatch(f"shape {list(actual)}, declared {list(declared)}")

    # -- operators --------------------------------------------------------------------------

    def step(
        self, call: Call, where: Where, op: Op, values: dict[int, T]
    ) -> Generator[None, None, None]:
        """One operator of a call; it yields while it waits for what other ranks have not sent
        yet."""
        body = self.program.bodies[call.body]
        self.world.moved = True
        understood(op)
        if op.name == "post_recv":
            return  # Messages wait until they are taken, whoever has said that he will.
        inputs = [None if v < 0 else self.value(values, v) for v in op.inputs]
        if op.name in COLLECTIVES:
            outputs = yield from self.collective(op, inputs)
        elif op.name == "recv":
            outputs = yield from self.received(op)
        elif op.name == "send":
            self.sent(op, inputs[0])
            return
        elif op.name == "load_batch":
            outputs = [self.load(call, i, body, v) for i, v in enumerate(op.outputs)]
        elif op.name == "chunk":
            outputs = [self.chunk(op, inputs[0])]
        else:
            outputs = self.world.arithmetic.evaluate(where, self.interpreter, op, inputs)
        moves = op.name in COLLECTIVES or op.name in ("recv", "identity")
        if moves and not set(body.losses).isdisjoint(op.outputs):
            # What is a loss and is handed on as it is counts once: it is both, as one object.
            self.passed_on += [
                x
                for v, x in zip(op.inputs, inputs, strict=True)
                if v in body.losses or all(x is not y for y in outputs)
            ]
        if len(outputs) != len(op.outputs):
            raise ShapeMismatch(f"{op.name} gives {len(outputs)} tensors, not {len(op.outputs)}")
        for value, output in zip(op.outputs, outputs, strict=True):
            self.same(output, body.values[value].shape)
            values[value] = output

    def load(self, call: Call, number: int, body: Body, value: int) -> T:
        """The slice of a batch tensor that the ranks load for a call."""
        declared = body.values[value]
        if self.whole:
            return self.world.arithmetic.batch(number, declared.shape, declared.dtype, None)
        microbatch = call.microbatch
        if microbatch < 0 and self.plan.microbatches == 1:
            microbatch = 0
        if not 0 <= microbatch < self.plan.microbatches:
            raise Stuck(f"{self.who} loads microbatch {microbatch}")
        slices = []
        for at in self.places:
            replica = 0
            for axis in self.plan.replica_axes:
                replica = replica * self.program.extents.get(axis, 1) + at.get(axis, 0)
            slices.append(replica * self.plan.microbatches + microbatch)
        return self.world.arithmetic.batch(number, declared.shape, declared.dtype, slices)

    # -- communication ----------------------------------------------------------------------

    def peer(self, op: Op, position: int) -> int:
        """Who is meant at a rank: the one that is named, shifted like the rank."""
        peer = op.attrs.get("peer")
        if isinstance(peer, bool) or not isinstance(peer, int):
            raise Stuck(f"{self.who}: {op.name} without a peer")
        return peer + self.ranks[position] - self.program.base

    def sent(self, op: Op, x: T | None) -> None:
        """Post what each rank sends to its peer."""
        if x is None:
            raise Stuck(f"{self.who} sends nothing")
        for position, rank in enumerate(self.ranks):
            mail = self.world.mail.setdefault((rank, self.peer(op, position)), deque())
            mail.append(self.world.arithmetic.of(x, position))

    def received(self, op: Op) -> Generator[None, None, list[T]]:
        """What each rank receives from its peer; yields until all of it is there."""
        channels = [(self.peer(op, i), rank) for i, rank in enumerate(self.ranks)]
        while not all(self.world.mail.get(channel) for channel in channels):
            yield
        self.world.moved = True
        arrived = [self.world.mail[channel].popleft() for channel in channels]
        return [self.world.arithmetic.together(arrived)]

    def members(self, op: Op) -> list[tuple[int, ...]]:
        """For each rank the ranks of its group, in order."""
        named = op.attrs.get("group")
        group = named if isinstance(named, Group) else Group()
        if group not in self.groups:
            self.groups[group] = [self.around(group, i) for i in range(len(self.ranks))]
        return self.groups[group]

    def around(self, group: Group, position: int) -> tuple[int, ...]:
        """The group as it is at one rank: shifted like the rank."""
        steps = {name: (extent, stride) for name, extent, stride in self.program.axes}
        number, at = self.ranks[position], self.places[position]
        if any(axis not in steps for axis in group.axes):
            raise Stuck(f"rank {number}: a group along {list(group.axes)}")
        here = number - self.program.base - sum(at[a] * steps[a][1] for a in group.axes)
        ranks = [r + here for r in group.ranks or (self.program.base,)]
        for axis in dict.fromkeys(group.axes):
            extent, stride = steps[axis]
            ranks = [r + stride * i for r in ranks for i in range(extent)]
        if number not in ranks or len(set(ranks)) < len(ranks):
            raise Stuck(f"rank {number} is not in its group {ranks}, once")
        return tuple(sorted(ranks))

    def chunk(self, op: Op, x: T | None) -> T:
        """Of a tensor that every member has, the piece at the place of each rank in its group."""
        if x is None:
            raise Stuck(f"{self.who}: a chunk of nothing")
        parts = []
        for position, ranks in enumerate(self.members(op)):
            own = self.world.arithmetic.of(x, position)
            index = ranks.index(self.ranks[position])
            parts.append(chunked(self.alone, op, own, index, len(ranks)))
        return self.world.arithmetic.together(parts)

    def root(self, op: Op, ranks: Sequence[int]) -> Attr:
        """The root that is named, as in the first instance of the program, among these ranks."""
        group, root = op.attrs.get("group"), op.attrs.get("root")
        if isinstance(root, bool) or not isinstance(root, int):
            return None
        first = (isinstance(group, Group) and group.ranks) or (self.program.base,)
        return root + min(ranks) - min(first)

    def collective(self, op: Op, inputs: Sequence[T | None]) -> Generator[None, None, list[T]]:
        """A collective's result on every rank of the crew; it yields until all members have
        come."""
        world, given = self.world, inputs[0] if inputs else None
        meetings: list[Meeting] = []
        for position, ranks in enumerate(self.members(op)):
            number = self.ranks[position]
            k = world.issued.get((ranks, number), 0)
            world.issued[ranks, number] = k + 1
            own = None if given is None else world.arithmetic.of(given, position)
            world.joined.setdefault((ranks, k), {})[number] = (op, own)
            meetings.append((ranks, k))
        # A meeting that everybody has joined has results as soon as one of them goes on.
        while any(m not in world.results and len(world.joined[m]) < len(m[0]) for m in meetings):
            yield
        world.moved = True
        results = []
        for number, meeting in zip(self.ranks, meetings, strict=True):
            if meeting not in world.results:
                ranks, operands = meeting[0], world.joined.pop(meeting)
                given_by, root = [operands[r] for r in ranks], self.root(op, ranks)
                outputs = exchanged(self.alone, ranks, given_by, root)
                world.results[meeting] = dict(zip(ranks, outputs, strict=True))
            results.append(world.results[meeting].pop(number))
        if any(len(outputs) != len(op.outputs) for outputs in results):
            raise ShapeMismatch(f"{op.name} gives other tensors than the {len(op.outputs)} named")
        return [world.arithmetic.together(same) for same in zip(*results, strict=True)]


def applied(
    interpreter: Interpreter[T], op: Op, attrs: Mapping[str, Attr], inputs: Sequence[T | None]
) -> list[T]:
    """What an operator's declaration, or its derivative, makes of operands.

    Example: ``linear`` of [[1, 2]] and [[3, 4], [5, 6]] is [[11, 17]]; without its second operand,
    "linear without an operand".
    """
    if not op.backward:
        if any(x is None for x in inputs):
            raise Stuck(f"{op.name} without an operand")
        forward: list[T] = apply_forward(interpreter, op.name, inputs, attrs)
        return forward
    wrt, arity = attrs.get("wrt"), attrs.get("arity")
    if not isinstance(wrt, tuple) or not isinstance(arity, int):
        raise Unsupported("a backward operator without wrt and arity")
    places = [w for w in wrt if isinstance(w, int)]
    if any(x is None for x in inputs[:arity]):
        raise Stuck(f"the backward of {op.name} without an operand")
    gradients: list[T] = apply_backward(
        interpreter, op.name, inputs[:arity], inputs[arity:], attrs, places
    )
    return gradients


# -- both sides ----------------------------------------------------------------------------------


def ranks_of(program: Program) -> Iterator[tuple[int, dict[str, int]]]:
    """The ranks of a program and their coordinates, for example (1, {"dp": 1}) of ``dp=2*1``."""
    for place in product(*(range(extent) for _, extent, _ in program.axes)):
        steps = zip(program.axes, place, strict=True)
        number = program.base + sum(stride * i for (_, _, stride), i in steps)
        yield number, {name: i for (name, _, _), i in zip(program.axes, place, strict=True)}


def slices_of(plan: Plan, program: Program) -> int:
    """Into how many slices the batch is divided, as one program has its axes: for example 4 by two
    replicas with two microbatches each.  A deliberate twin of the specification's `slices`."""
    axes = [program.extents.get(axis, 1) for axis in plan.replica_axes]
    return plan.microbatches * prod(axes)


def single_crew(plan: Plan, arithmetic: Arithmetic[T]) -> Crew[T]:
    """The ranks of the single-device program: one, for example to read all of a batch of 12."""
    return Crew(plan, -1, [{}], [0], World(arithmetic), 1)


def crews(
    plan: Plan, arithmetic: Arithmetic[T], *, together: bool, original: Plan | None = None
) -> list[Crew[T]]:
    """All ranks of a plan: by themselves, or those of a program ``together``.  ``original``: the
    plan that ``plan`` is a smaller one of, whose number of slices counts.  For example, two
    replicas by themselves are two crews, together one."""
    world = World(arithmetic)
    result = []
    for number, program in enumerate(plan.programs):
        at = list(ranks_of(program))
        lists = [at] if together else [[one] for one in at]
        slices = slices_of(original or plan, (original or plan).programs[number])
        for members in lists:
            places, ranks = [place for _, place in members], [rank for rank, _ in members]
            result.append(Crew(plan, number, places, ranks, world, slices))
    return result


def execute(running: Sequence[Crew[Any]]) -> None:
    """Run crews until all have ended; raises `Stuck` if they wait for ever, or leave messages.

    Example: two ranks that both receive first: "ranks [0, 1] wait for each other"; a send without a
    receive: "messages that nobody takes, over [(0, 1)]".
    """
    left = {crew.ranks[0]: (crew, crew.run()) for crew in running}
    if len(left) < len(running):
        raise Stuck("two programs have the same first rank")
    world = running[0].world
    while left:
        world.moved = False
        for number in list(left):
            if next(left[number][1], StopIteration) is StopIteration:
                del left[number]
                world.moved = True
        if not world.moved:
            raise Stuck(f"ranks {sorted(left)} wait for each other")
    lost = [channel for channel, messages in world.mail.items() if messages]
    if lost:
        raise Stuck(f"messages that nobody takes, over {lost}")
