"""From a plan's records to programs: one per plan device, free along the replicas.

Slots are tensor ids, bodies are the plan's own cells, and a call is one use of a cell.  Where the
plan's account and what its runtime does differ, the runtime counts (autograd runs per segment):

- Gradients of parameters accumulate.  Inside a backward segment, whatever is made of the gradient
  of one forward value is added up: by each operator and adapter that reads it, and what arrives for
  it where it was sent on.  Everything else that is produced again is replaced.
- The loss is what the plan returns, as each rank has it at the end of the step.
- The k-th load of a rank reads microbatch k.
- Saved contexts are paired first in, first out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Body, Call, Group, Op, Program, Shard, Source, Value
from shardproof.engine.plan_files.calling import Calls
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells, masks, memory
from shardproof.frontends.nnscaler.assumed import numbers
from shardproof.frontends.nnscaler.bodies import BodyWriter
from shardproof.frontends.nnscaler.calls import SharedInput
from shardproof.frontends.nnscaler.contradictions import Comparison, renamings
from shardproof.frontends.nnscaler.forward import Forward, shape_of, tensors_of
from shardproof.frontends.nnscaler.leaves import Variables
from shardproof.frontends.nnscaler.objects import Objects
from shardproof.frontends.nnscaler.otherwise import AsRecorded, Otherwise, unclaimed
from shardproof.frontends.nnscaler.records import Constant, Tensor
from shardproof.frontends.nnscaler.uses import Uses, rebound

#: What a reducer does is an option of the runtime, and in no plan.
REDUCED = Assumption(
    "framework",
    "reducers",
    "",
    "weight reducers sum gradients, as nnScaler's do by default (reduce_op)",
)
#: The name of the data-parallel axis.
REPLICA = "dp"


class Side(NamedTuple):
    """A plan by itself: its programs, how its loss is reduced over the batch, and where its records
    contradict each other.  ``assumed``: what it is assumed to mean; ``otherwise``: what is
    different as recorded, if that is known.

    Example: an MLP of dp 2, pp 2, tp 2: the programs "device 0" to "device 3", 2 microbatches, 2
    replicas, the loss "sum".
    """

    programs: tuple[Program, ...]
    microbatches: int
    replicas: int
    loss: str
    recorded: tuple[Finding, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    otherwise: AsRecorded | None = None


class _DeviceWriter:
    """Writes the program of one plan device."""

    def __init__(
        self,
        number: int,
        replicas: int,
        stride: int,
        single: bool,
        as_recorded: bool,
        joined: set[int],
        assumed: set[Assumption],
        renamed: dict[int, tuple[str, set[int]]],
        drawings: masks.Drawings,
        drawers: dict[str, int],
        made: Calls,
    ) -> None:
        self.number = number
        self.made = made
        self.as_recorded = as_recorded
        self.otherwise = Otherwise(number)
        self.objects = Objects()
        self.claims = not single
        #: Full tensors to which several stages contribute: a record of one is about none of them.
        self.joined = joined
        self.assumed = assumed
        self.renamed = renamed
        self.drawings = drawings
        self.drawers = drawers
        #: By body the masks that it reads as its last inputs.
        self.drawn: dict[int, tuple[str, ...]] = {}
        self.axes = ((REPLICA, replicas, stride),) if replicas > 1 else ()
        self.bodies: list[Body] = []
        self.calls: list[Call] = []
        self.shards: list[Shard] = []
        self.shard_numbers: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
        self.graded: dict[int, int] = {}
        self.seeds: dict[int, int] = {}
        self.known: dict[int, int] = {}
        self.forwards: dict[int, Forward] = {}
        self.uses = Uses()
        self.variables = Variables()
        self.loads = 0

    def shard(self, tensor: Tensor) -> int:
        name = tensor.full.name
        if not name:
            raise UnreadablePlan("expected a parameter with a name", f"tensor {tensor.id}")
        key = (name, tensor.box)
        number = self.shard_numbers.get(key)
        gradient = tensor.grad()
        if number is None:
            number = len(self.shards)
            self.shard_numbers[key] = number
            offset = tuple(affine(start) for start, _ in tensor.box)
            if tensor.dtype.startswith("complex"):
                offset = (*offset, ZERO)
            self.shards.append(
                Shard(
                    name,
                    shape_of(tensor, tensor.full.shape),
                    shape_of(tensor, tensor.shape),
                    offset,
                    tensor.dtype,
                    gradient is not None,
                )
            )
        if gradient is not None:
            self.graded[gradient.id] = number
        return number

    def held_alike(self, shared: SharedInput) -> int:
        box = tuple((0, n) for n in shared.shape)
        number = self.shard_numbers.get((shared.name, box))
        if number is None:
            number = self.shard_numbers[shared.name, box] = len(self.shards)
            none = (ZERO,) * len(shared.shape)
            self.shards.append(
                Shard(shared.name, shared.shape, shared.shape, none, "float32", False)
            )
            self.assumed.add(numbers(shared))
        return number

    def graded_shard(self, tensor: Tensor) -> int:
        number = self.graded.get(tensor.id)
        if number is None:
            raise UnreadablePlan(
                "expected the gradient of a parameter that this device holds, found "
                f"{tensor.full.name}",
                f"tensor {tensor.id}",
            )
        return number

    def item(self, item: cells.Use | cells.Cell) -> None:
        """One entry of the device's sequence."""
        cell = item.cell if isinstance(item, cells.Use) else item
        if isinstance(cell, cells.Reducer):
            self.reducer(cell)
            return
        ins, outs = item_tensors(item, cell.inputs, cell.outputs)
        number = self.known.get(id(cell))
        if number is None:
            number = self.write_body(cell)
            self.known[id(cell)] = number
        body = self.bodies[number]
        count = len(body.inputs) - len(self.drawn.get(number, ()))
        if len(ins) != count or len(outs) != len(body.outputs):
            raise UnreadablePlan(
                f"expected {count} inputs and {len(body.outputs)} outputs as in "
                f"{body.name}, found {len(ins)} and {len(outs)}",
                f"use {item.id}",
            )
        for tensor in (*ins, *outs):
            part = tensor.part
            gradient = tensor.grad() if part.full.is_loss and not part.is_grad else None
            if gradient is not None:
                self.seeds[gradient.id] = tensor.id
        loads = isinstance(cell, cells.DataOp)
        microbatch = self.loads if loads else -1
        self.loads += loads
        slots = [x.id for x in (*ins, *outs)]
        if isinstance(item, cells.Use) and isinstance(cell, cells.Segment):
            slots = self.uses.slots(item, cell, (*ins, *outs), self.forwards)
        given, made = tuple(slots[: len(ins)]), tuple(slots[len(ins) :])
        self.calls.append(Call(number, given, made, microbatch))
        of = self.forwards.get(cell.id) if isinstance(cell, cells.Segment) else None
        if of is None:
            self.variables.written(cell, made)
        else:
            self.variables.given(of, given)
            self.variables.returned(of, item.id, made)

    def write_body(self, cell: cells.Segment | cells.Node) -> int:
        kind = type(cell).__name__.lower()
        if isinstance(cell, cells.BackwardOp):
            raise UnreadablePlan(
                "expected a backward operator inside a segment, found one by itself",
                f"device {self.number}, cell {cell.id}",
            )
        if isinstance(cell, cells.Segment):
            self.bodies.append(self.segment(cell, f"{kind} {cell.id}"))
            return len(self.bodies) - 1
        writer = BodyWriter(self, f"{kind} {cell.id}")
        if isinstance(cell, cells.DataOp):
            outputs = [writer.write(x) for x in tensors_of(cell.outputs)]
            writer.emit("load_batch", [], outputs, {}, Source(f"cell {cell.id}"))
            self.bodies.append(writer.body([], outputs))
            return len(self.bodies) - 1
        inputs = [writer.write(x) for x in tensors_of(cell.inputs)]
        if isinstance(cell, cells.Adapter):
            writer.adapter(cell)
        else:
            writer.forward(cell)
        outputs = [writer.read(x) for x in tensors_of(cell.outputs)]
        self.drawn[len(self.bodies)] = tuple(writer.drawn)
        self.bodies.append(writer.body([*inputs, *writer.drawn.values()], outputs))
        return len(self.bodies) - 1

    def segment(self, cell: cells.Segment, name: str) -> Body:
        """The body of a segment: forward, or backward of one that was written before."""
        ins, outs = tensors_of(cell.inputs), tensors_of(cell.outputs)
        of: Forward | None = None
        if any(isinstance(node, cells.BackwardOp) for node in cell.nodes):
            of = self.forwards.get(cell.mirror_id) if cell.mirror_id is not None else None
            if of is None:
                raise UnreadablePlan(
                    f"expected the forward segment {cell.mirror_id} before its backward",
                    f"device {self.number}, segment {cell.id}",
                )
        writer = BodyWriter(self, name, of, memory.unsafe(cell))
        inputs = [writer.write(x) for x in ins]
        try:
            if of is not None:
                adapters = [node for node in cell.nodes if isinstance(node, cells.Adapter)]
                writer.arrive(ins, adapters)
        except UnreadablePlan as error:
            raise error.within(f"device {self.number}, segment {cell.id}") from None
        for node in cell.nodes:
            try:
                self.node(writer, node, of)
            except UnreadablePlan as error:
                raise error.within(
                    f"device {self.number}, segment {cell.id}, cell {node.id}"
                ) from None
        outputs = writer.returned(outs)
        mirror = -1 if of is None else self.known[id(of.segment)]
        self.drawn[len(self.bodies)] = tuple(writer.drawn)
        body = writer.body([*inputs, *writer.drawn.values()], outputs, mirror)
        if of is None:
            self.forwards[cell.id] = Forward(
                cell,
                body.values,
                writer.reads,
                writer.makes,
                writer.called,
                writer.within,
                tuple(inputs),
                body.outputs,
            )
        return body

    @staticmethod
    def node(writer: BodyWriter, node: cells.Node, of: Forward | None) -> None:
        if isinstance(node, cells.ForwardOp):
            writer.forward(node)
        elif isinstance(node, cells.BackwardOp) and of is not None:
            writer.backward(node, of)
        elif isinstance(node, cells.Adapter):
            writer.adapter(node)
        else:
            raise UnreadablePlan("expected no data loader inside a segment")

    def reducer(self, cell: cells.Reducer) -> None:
        self.assumed.add(REDUCED)
        values: list[Value] = []
        ops: list[Op] = []
        reduced: list[tuple[int, int, int]] = []
        group = Group(ranks=tuple(sorted(cell.device)), axes=tuple(a for a, _, _ in self.axes))
        for weight in cell.weights:
            number = self.shard(weight)
            shape = self.shards[number].shape
            before, after = len(values), len(values) + 1
            name = f"gradient of {weight.full.name}"
            values += [Value(shape, weight.dtype, name), Value(shape, weight.dtype, name)]
            source = Source(f"reducer {cell.id}", weight.full.name)
            ops.append(Op("all_reduce", (before,), (after,), {"group": group}, False, source))
            reduced.append((before, after, number))
        self.bodies.append(
            Body(f"reducer {cell.id}", tuple(values), tuple(ops), reduced=tuple(reduced))
        )
        self.calls.append(Call(len(self.bodies) - 1))

    def returned(self, losses: Sequence[Tensor]) -> None:
        """The end of the step: each loss that the plan returns, as this rank has it then."""
        if not losses:
            return
        value = Value(shape_of(losses[0], losses[0].shape), losses[0].dtype, losses[0].name)
        self.bodies.append(Body("returned loss", (value,), (), inputs=(0,), losses=(0,)))
        self.calls += [Call(len(self.bodies) - 1, (loss.id,)) for loss in losses]

    def write(self, items: Sequence[cells.Use | cells.Cell], losses: Sequence[Tensor]) -> None:
        """The device's sequence, and the losses at its end."""
        for item in items:
            self.item(item)
        self.returned(losses)
        # The cells that bodies were written from, and what is known of their uses, are let go of.
        self.known.clear()
        self.forwards.clear()
        self.uses, self.variables = Uses(), Variables()

    def program(self) -> Program:
        return Program(
            name=f"device {self.number}",
            bodies=tuple(unclaimed(body, self.joined) for body in self.bodies),
            calls=rebound(self.calls, set(self.seeds)),
            shards=tuple(self.shards),
            base=self.number,
            axes=self.axes,
            seeds=tuple(self.seeds.items()),
        )


def item_tensors(
    item: cells.Use | cells.Cell, inputs: Sequence[Constant], outputs: Sequence[Constant]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an entry of a sequence reads and writes: the use's own, if it is one.

    Example: the second use of a segment reads its own activation, whatever the segment's is called.
    """
    if isinstance(item, cells.Use):
        return tensors_of(item.inputs), tensors_of(item.outputs)
    return tensors_of(inputs), tensors_of(outputs)


def convert(
    plan: cells.Plan, *, single: bool, as_recorded: bool = False, once: bool = False
) -> Side:
    """The programs of a plan; raises `UnreadablePlan` naming device, cell and tensor.

    Example: a plan of 4 devices has the programs "device 0" to "device 3"; as a single-device one
    it is refused.

    ``as_recorded``: the user's assumption that groups are ordered as index maps say (a chunk is cut
    where its output's says, an all-gather joins by its inputs'), instead of by rank, and that
    gradients that arrive are of what the plan names them for (`BodyWriter.owner_of`).
    ``once``: nobody reads the plan again: each device's records are dropped when it is done, so
    that the programs take their place in memory.
    """
    count = len(plan.devices)
    if plan.ranks > count and not plan.data_parallel:
        raise UnreadablePlan(
            f"expected enable_dp for {plan.ranks} ranks on {count} plan devices, found it off: the "
            "ranks of replicas would not be theirs"
        )
    if sorted(plan.devices) != list(range(count)):
        raise UnreadablePlan(f"expected devices 0 to {count - 1}, found {list(plan.devices)}")
    if single and (count > 1 or plan.ranks > 1):
        raise UnreadablePlan(
            f"expected a single-device plan, found {plan.ranks} ranks on {count} plan devices"
        )
    replicas = plan.ranks // count
    writers: list[_DeviceWriter] = []
    others: list[_DeviceWriter] = []
    joined: set[int] = set()
    joined_then: set[int] = set()
    assumed: set[Assumption] = set()
    renamed: dict[int, tuple[str, set[int]]] = {}
    drawings: masks.Drawings = {}
    drawers: dict[str, int] = {}
    losses = returned_losses(plan)
    comparison = Comparison()
    begun = partial(_DeviceWriter, replicas=replicas, stride=count, single=single, made=Calls())
    for device in sorted(plan.devices):
        writer = begun(
            device,
            as_recorded=as_recorded,
            joined=joined,
            assumed=assumed,
            renamed=renamed,
            drawings=drawings,
            drawers=drawers,
        )
        items = list(plan.sequence(device))
        writer.write(items, losses)
        writers.append(writer)
        if not as_recorded and any(device in devices for _, devices in renamed.values()):
            other = begun(
                device,
                as_recorded=True,
                joined=joined_then,
                assumed=set(),
                renamed={},
                drawings={},
                drawers={},
            )
            other.write(items, losses)
            others.append(other)
        if not single:
            comparison.device(device, items)
        if once:
            plan.drop(device)
        del items
    loads = max(1, *(writer.loads for writer in writers))
    programs = [writer.program() for writer in writers]
    programs = masks.with_masks(programs, [writer.drawn for writer in writers])
    if not single:
        assumed.update(masks.assumed(drawings, replicas * loads))
    comparison.compare_groups(set(plan.devices))
    by_rank = not (single or as_recorded or drawings)
    known = by_rank and all(writer.otherwise.known for writer in writers)
    recorded = () if single else (*renamings(renamed), *comparison.findings())
    return Side(
        tuple(programs),
        loads,
        replicas,
        loss_kind(programs),
        recorded,
        tuple(sorted(assumed, key=lambda x: (x.kind, x.text))),
        AsRecorded(
            tuple(c for writer in writers for c in writer.otherwise.changes),
            tuple(other.program() for other in others),
            tuple(sorted(joined_then | joined)),
        )
        if known
        else None,
    )


def returned_losses(plan: cells.Plan) -> list[Tensor]:
    """The losses among what the plan returns, one for each microbatch of a rank.

    Example: with two microbatches: the tensors 21 and 158, both ``sum_1`` of shape (1,).
    """
    losses = [x for x in _within(plan.outputs) if x.full.is_loss and not x.is_grad]
    if len({(x.shape, x.dtype) for x in losses}) > 1:
        raise UnreadablePlan("expected losses of one shape and type")
    return losses


def _within(values: Sequence[Constant]) -> Iterator[Tensor]:
    """The tensors among what a plan returns: where a model returns more than its loss, each
    microbatch has a list or a dictionary."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _within(value)
        elif isinstance(value, dict):
            yield from _within(tuple(value.values()))


_KEPT = ("identity", "float", "to", "view", "contiguous")


def loss_kind(programs: Sequence[Program]) -> str:
    """Whether the loss is a mean or a sum over the batch, by the operator that makes it.

    Example: where ``sum_1`` is made by ``torch.sum`` it is "sum".
    """
    for program in programs:
        for number, call in enumerate(program.calls):
            if program.bodies[call.body].losses and _maker(program, number, 0) == "mean":
                return "mean"
    return "sum"


def _maker(program: Program, number: int, position: int) -> str:
    """The operator that makes an input of a call, but for what keeps its value ("" if there is no
    such operator)."""
    slot = program.calls[number].inputs[position]
    for before in range(number - 1, -1, -1):
        call = program.calls[before]
        if slot not in call.outputs:
            continue
        body = program.bodies[call.body]
        value = body.outputs[len(call.outputs) - 1 - call.outputs[::-1].index(slot)]
        made = {v: op for op in body.ops for v in op.outputs}
        while value in made and made[value].name in _KEPT and made[value].inputs:
            value = made[value].inputs[0]
        if value in made:
            return made[value].name
        return _maker(program, before, body.inputs.index(value)) if value in body.inputs else ""
    return ""
