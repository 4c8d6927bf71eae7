"""From a plan's records to programs: one per plan device, free along the replicas.

Slots are tensor ids, bodies are the plan's own cells, and a call is one use of a cell.  Where the
plan's account and what its runtime does differ, the runtime counts (autograd runs per segment):

- Gradients of parameters accumulate.  An incoming gradient of a backward segment that an operator
  or adapter inside produces from something else is the gradient of a tensor that was sent on *and*
  used here: autograd adds the two.  Everything else that is produced again is replaced.
- The k-th load of a rank reads microbatch k.
- Saved contexts are paired first in, first out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.affine import ZERO, affine
from engine.claims import Claimed
from engine.findings import Finding
from engine.ir import Attr, Body, Call, Group, Op, Program, Shard, Source, Value
from frontends.errors import UnreadablePlan
from frontends.nnscaler import cells
from frontends.nnscaler.contradictions import contradictions
from frontends.nnscaler.operators import (
    ONE_SIDED,
    PLAIN,
    declared,
    differentiable,
    fused_step,
    one_sided_step,
)
from frontends.nnscaler.records import Constant, Tensor

#: The name of the data-parallel axis.
REPLICA = "dp"
_LOCATION = re.compile(r'File "([^"]{1,300})", line (\d{1,9})')


class Side(NamedTuple):
    """A plan by itself: its programs, how its loss is reduced over the batch, and where its records
    contradict each other."""

    programs: tuple[Program, ...]
    microbatches: int
    replicas: int
    loss: str
    recorded: tuple[Finding, ...] = ()


def shape_of(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Complex tensors are stored as pairs (real, imaginary): one more dimension of 2."""
    return (*shape, 2) if tensor.dtype.startswith("complex") else shape


def claim_of(tensor: Tensor) -> Claimed:
    """What the plan records about a tensor beside its shape."""
    low = tuple([start for start, _ in tensor.box])
    high = tuple([end for _, end in tensor.box])
    if tensor.dtype.startswith("complex"):
        low, high = (*low, 0), (*high, 2)
    return Claimed(tensor.full.id, low, high, *tensor.addend)


def source_of(op: cells.ForwardOp, ident: int) -> Source:
    found = _LOCATION.search(op.comment)
    place = f"{found[1].rsplit('/', 1)[-1]}:{found[2]}" if found else ""
    return Source(f"cell {ident}", op.module[-1] if op.module else "", place)


class _BodyWriter:
    """Writes one body; ``environment``: tensor id -> value that holds it now."""

    def __init__(self, device: _DeviceWriter, name: str) -> None:
        self.device = device
        self.name = name
        self.values: list[Value] = []
        self.claims: dict[int, Claimed] = {}
        self.ops: list[Op] = []
        self.environment: dict[int, int] = {}
        self.shards: dict[int, int] = {}
        self.saved: dict[int, int] = {}
        self.gradients: list[tuple[int, int]] = []
        self.losses: list[int] = []
        self.incoming: set[int] = set()
        #: forward cell id -> (input values, output count), for the backward body.
        self.contexts: dict[int, tuple[int, ...]] = {}

    def new(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        """A value for a production of ``tensor`` (of another ``shape`` than it records)."""
        shape = shape_of(tensor, tensor.shape if shape is None else shape)
        self.values.append(Value(shape, tensor.dtype, f"{tensor.name or 'tensor'} #{tensor.id}"))
        return len(self.values) - 1

    def write(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        value = self.new(tensor, shape)
        self.environment[tensor.id] = value
        if self.device.claims:
            self.claims[value] = claim_of(tensor)
        if tensor.full.is_loss and not tensor.is_grad:
            self.losses.append(value)
        return value

    def read(self, tensor: Tensor) -> int:
        """The value of a tensor here; one that nothing produces is found when it is read."""
        if tensor.is_attr and not tensor.is_grad:
            number = self.device.shard(tensor)
            if number not in self.shards:
                self.shards[number] = self.new(tensor)
            return self.shards[number]
        if tensor.id not in self.environment:
            self.environment[tensor.id] = self.new(tensor)
        return self.environment[tensor.id]

    def emit(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: dict[str, Attr],
        source: Source,
        *,
        backward: bool = False,
    ) -> None:
        self.ops.append(Op(name, tuple(inputs), tuple(outputs), attrs, backward, source))

    # -- nodes ----------------------------------------------------------------------------------

    def forward(self, op: cells.ForwardOp) -> None:
        name, tensors, attrs = declared(op)
        inputs = tuple(self.read(x) for x in tensors)
        self.contexts[op.id] = inputs
        outputs = [self.write(x) for x in op.outputs if isinstance(x, Tensor)]
        self.emit(name, inputs, outputs, attrs, source_of(op, op.id))

    @staticmethod
    def unused(tensor: Tensor, forward: cells.Segment) -> bool:
        """Whether no gradient can reach a forward tensor: it stays in its segment, and only
        operators without a backward read it (a mask made from its shape)."""
        if any(isinstance(x, Tensor) and x.id == tensor.id for x in forward.outputs):
            return False
        for node in forward.nodes:
            reads = any(isinstance(x, Tensor) and x.id == tensor.id for x in node.inputs)
            if reads and not (isinstance(node, cells.ForwardOp) and node.backward_id is None):
                return False
        return True

    def backward(
        self, op: cells.BackwardOp, contexts: dict[int, tuple[int, ...]], forward: cells.Segment
    ) -> None:
        """``contexts``: of the forward body, by forward cell."""
        name, tensors, attrs = declared(op.forward)
        source = source_of(op.forward, op.id)
        if name in ("multiref", "identity") and len(op.outputs) == 1 and op.inputs:
            # Needs no context: the sum of whatever gradients it is given.
            copies = tensors_of(op.forward.outputs)
            given = [
                self.read(x)
                for i, x in enumerate(op.inputs)
                if x.id in self.environment
                or i >= len(copies)
                or not self.unused(copies[i], forward)
            ]
            outputs, joins = self.arriving(op.outputs, set())
            self.emit("add_n", given, outputs, {}, source)
            self.join(joins, source)
            return
        held = contexts.get(op.forward.id)
        if held is None:
            raise UnreadablePlan(
                f"expected cell {op.forward.id} in the forward segment of this backward segment"
            )
        inputs = [self.context(value, x) for value, x in zip(held, tensors, strict=True)]
        graded = differentiable(op.forward.outputs)
        if len(graded) != len(op.inputs):
            raise UnreadablePlan(f"expected {len(graded)} output gradients, found {len(op.inputs)}")
        results = [x for x in op.forward.outputs if isinstance(x, Tensor)]
        gradients = [-1] * len(results)
        for position, gradient in zip(graded, op.inputs, strict=True):
            if gradient.id in self.environment or not self.unused(results[position], forward):
                gradients[position] = self.read(gradient)
        wrt = differentiable(tensors)
        if len(wrt) != len(op.outputs):
            raise UnreadablePlan(f"expected {len(wrt)} input gradients, found {len(op.outputs)}")
        attrs = {**attrs, "wrt": tuple(wrt), "arity": len(inputs)}
        outputs, joins = self.arriving(op.outputs, set())
        self.emit(name, [*inputs, *gradients], outputs, attrs, source, backward=True)
        self.join(joins, source)

    def arriving(
        self, tensors: Sequence[Tensor], replaced: set[int]
    ) -> tuple[list[int], list[tuple[int, int, Tensor]]]:
        """Values for gradients that are produced: of parameters, of tensors that have an incoming
        gradient too (to be joined: before, value, tensor), or written as they are."""
        values: list[int] = []
        joins: list[tuple[int, int, Tensor]] = []
        for tensor in tensors:
            if tensor.is_attr and tensor.is_grad:
                values.append(self.new(tensor))
                self.gradients.append((values[-1], self.device.graded_shard(tensor)))
            elif tensor.id in self.incoming and tensor.id not in replaced:
                values.append(self.new(tensor))
                joins.append((self.environment[tensor.id], values[-1], tensor))
            else:
                values.append(self.write(tensor))
        return values, joins

    def join(self, joins: Sequence[tuple[int, int, Tensor]], source: Source) -> None:
        for before, value, tensor in joins:
            self.device.joined.add(tensor.full.id)
            self.emit("add_n", [before, value], [self.write(tensor)], {}, source)

    def context(self, value: int, tensor: Tensor) -> int:
        """A forward value saved for the backward pass; parameters are read as they are."""
        if tensor.is_attr:
            return self.read(tensor)
        if value not in self.saved:
            self.saved[value] = self.new(tensor)
        return self.saved[value]

    def adapter(self, adapter: cells.Adapter) -> None:
        source = Source(f"adapter {adapter.id}")
        step = fused_step(adapter)
        if step is not None:
            name, attrs = step
            inputs = [self.read(x) for x in adapter.inputs]
            outputs, joins = self.arriving(adapter.outputs, {x.id for x in adapter.inputs})
            self.emit(name, inputs, outputs, attrs, source)
            self.join(joins, source)
            return
        alone = (
            len(adapter.prims) == len(adapter.inputs) == len(adapter.outputs) == 1
            and adapter.prims[0].kind in PLAIN
        )
        for prim in adapter.prims:
            if prim.kind in ONE_SIDED:
                name, attrs = one_sided_step(prim, self.device.number)
            elif prim.kind == "ChunkPrim" and self.device.as_recorded:
                name, attrs = recorded_slice(prim)
            elif prim.kind in PLAIN:
                name, attrs = PLAIN[prim.kind](prim)
                if name == "all_gather" and self.device.as_recorded and prim.inputs:
                    attrs["position"] = prim.inputs[0].box[prim.number("dim")][0]
            else:
                name, attrs = prim.kind, {}
            # The data flow of an adapter is its own; a lone primitive is the adapter.
            into, out = (adapter if alone else prim).inputs, (adapter if alone else prim).outputs
            inputs = [self.read(x) for x in into]
            # Who receives allocates what the primitive says, whatever its output records.
            given = prim.shape() if prim.kind in ONE_SIDED and not into else None
            self.emit(name, inputs, [self.write(x, given) for x in out], attrs, source)

    def body(self, inputs: Sequence[int], outputs: Sequence[int], mirror: int = -1) -> Body:
        return Body(
            name=self.name,
            values=tuple(self.values),
            ops=tuple(self.ops),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            shards=tuple((value, number) for number, value in self.shards.items()),
            saved=tuple((here, there) for there, here in self.saved.items()),
            mirror=mirror,
            gradients=tuple(self.gradients),
            losses=tuple(self.losses),
            claims=tuple([self.claims.get(v) for v in range(len(self.values))])
            if self.claims
            else (),
        )


def recorded_slice(prim: cells.Prim) -> tuple[str, dict[str, Attr]]:
    """A chunk taken where its output's index map says, whatever the rank (a stated assumption)."""
    dim = prim.number("dim")
    if len(prim.inputs) != 1 or len(prim.outputs) != 1 or not 0 <= dim < len(prim.outputs[0].box):
        raise UnreadablePlan(f"expected one input and one output with dimension {dim} in a chunk")
    low, high = prim.outputs[0].box[dim]
    return "slice", {"dim": dim, "start": low - prim.inputs[0].box[dim][0], "size": high - low}


def tensors_of(operands: Sequence[Constant]) -> list[Tensor]:
    return [x for x in operands if isinstance(x, Tensor)]


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
    ) -> None:
        self.number = number
        self.as_recorded = as_recorded
        self.claims = not single
        #: Full tensors to which several stages contribute: a record of one is about none of them.
        self.joined = joined
        self.axes = () if single else ((REPLICA, replicas, stride),)
        self.bodies: list[Body] = []
        self.calls: list[Call] = []
        self.held: list[Shard] = []
        self.shard_numbers: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
        self.graded: dict[int, int] = {}
        self.seeds: dict[int, int] = {}
        self.known: dict[int, int] = {}
        self.segments: dict[int, cells.Segment] = {}
        self.contexts: dict[int, dict[int, tuple[int, ...]]] = {}
        self.loads = 0

    def shard(self, tensor: Tensor) -> int:
        name = tensor.full.name
        if not name:
            raise UnreadablePlan("expected a parameter with a name", f"tensor {tensor.id}")
        key = (name, tensor.box)
        number = self.shard_numbers.get(key)
        gradient = tensor.grad()
        if number is None:
            number = len(self.held)
            self.shard_numbers[key] = number
            offset = tuple(affine(start) for start, _ in tensor.box)
            if tensor.dtype.startswith("complex"):
                offset = (*offset, ZERO)
            self.held.append(
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
        if isinstance(cell, cells.Adapter):
            ins, outs = item_tensors(item, cell.inputs, cell.outputs)
        else:
            ins, outs = item_tensors(item, cell.inputs, cell.outputs)
        number = self.known.get(id(cell))
        if number is None:
            number = self.write_body(cell)
            self.known[id(cell)] = number
        body = self.bodies[number]
        if len(ins) != len(body.inputs) or len(outs) != len(body.outputs):
            raise UnreadablePlan(
                f"expected {len(body.inputs)} inputs and {len(body.outputs)} outputs as in "
                f"{body.name}, found {len(ins)} and {len(outs)}",
                f"use {item.id}",
            )
        for tensor in (*ins, *outs):
            gradient = tensor.grad() if tensor.full.is_loss and not tensor.is_grad else None
            if gradient is not None:
                self.seeds[gradient.id] = tensor.id
        microbatch = -1
        if isinstance(cell, cells.DataOp):
            microbatch = self.loads
            self.loads += 1
        self.calls.append(
            Call(number, tuple(x.id for x in ins), tuple(x.id for x in outs), microbatch)
        )

    def write_body(self, cell: cells.Cell) -> int:
        kind = type(cell).__name__.lower()
        writer = _BodyWriter(self, f"{kind} {cell.id}")
        mirror = -1
        if isinstance(cell, cells.DataOp):
            outputs = [writer.write(x) for x in tensors_of(cell.outputs)]
            writer.emit("load_batch", [], outputs, {}, Source(f"cell {cell.id}"))
            self.bodies.append(writer.body([], outputs))
            return len(self.bodies) - 1
        assert not isinstance(cell, (cells.Reducer, cells.BackwardOp))
        ins, outs = tensors_of(cell.inputs), tensors_of(cell.outputs)
        inputs = [writer.write(x) for x in ins]
        writer.losses.clear()
        if isinstance(cell, cells.Segment):
            self.segments[cell.id] = cell
            mirror = self.segment(writer, cell, ins)
        elif isinstance(cell, cells.Adapter):
            writer.adapter(cell)
        else:
            writer.forward(cell)
        self.bodies.append(writer.body(inputs, [writer.read(x) for x in outs], mirror))
        return len(self.bodies) - 1

    def segment(self, writer: _BodyWriter, cell: cells.Segment, ins: Sequence[Tensor]) -> int:
        """Write a segment's nodes; the number of the forward body that it is the backward of."""
        backward = any(isinstance(node, cells.BackwardOp) for node in cell.nodes)
        mirror = -1
        contexts: dict[int, tuple[int, ...]] = {}
        forward: cells.Segment | None = None
        if backward:
            writer.incoming = {x.id for x in ins}
            forward = self.segments.get(cell.mirror_id) if cell.mirror_id is not None else None
            if forward is None:
                raise UnreadablePlan(
                    f"expected the forward segment {cell.mirror_id} before its backward",
                    f"device {self.number}, segment {cell.id}",
                )
            mirror = self.known[id(forward)]
            contexts = self.contexts[forward.id]
        for node in cell.nodes:
            try:
                if isinstance(node, cells.ForwardOp):
                    writer.forward(node)
                elif isinstance(node, cells.BackwardOp) and forward is not None:
                    writer.backward(node, contexts, forward)
                elif isinstance(node, cells.Adapter):
                    writer.adapter(node)
                else:
                    raise UnreadablePlan("expected no data loader inside a segment")
            except UnreadablePlan as error:
                raise error.within(
                    f"device {self.number}, segment {cell.id}, cell {node.id}"
                ) from None
        self.contexts[cell.id] = writer.contexts
        return mirror

    def reducer(self, cell: cells.Reducer) -> None:
        values: list[Value] = []
        ops: list[Op] = []
        reduced: list[tuple[int, int, int]] = []
        group = Group(ranks=tuple(sorted(cell.device)), axes=tuple(a for a, _, _ in self.axes))
        for weight in cell.weights:
            number = self.shard(weight)
            shape = self.held[number].shape
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

    def program(self) -> Program:
        return Program(
            name=f"device {self.number}",
            bodies=tuple(unclaimed(body, self.joined) for body in self.bodies),
            calls=tuple(self.calls),
            shards=tuple(self.held),
            base=self.number,
            axes=self.axes,
            seeds=tuple(self.seeds.items()),
        )


def item_tensors(
    item: cells.Use | cells.Cell, inputs: Sequence[Constant], outputs: Sequence[Constant]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an entry of a sequence reads and writes: the use's own, if it is one."""
    if isinstance(item, cells.Use):
        return tensors_of(item.inputs), tensors_of(item.outputs)
    return tensors_of(inputs), tensors_of(outputs)


def convert(plan: cells.Plan, *, single: bool, as_recorded: bool = False) -> Side:
    """The programs of a plan; raises `UnreadablePlan` naming device, cell and tensor.

    ``as_recorded``: the user's assumption that groups are ordered as index maps say (a chunk is cut
    where its output's says, an all-gather joins by its inputs'), instead of by rank.
    """
    count = len(plan.devices)
    if sorted(plan.devices) != list(range(count)):
        raise UnreadablePlan(f"expected devices 0 to {count - 1}, found {list(plan.devices)}")
    if single and (count > 1 or plan.ranks > 1):
        raise UnreadablePlan(
            f"expected a single-device plan, found {plan.ranks} ranks on {count} plan devices"
        )
    replicas = plan.ranks // count
    writers = []
    joined: set[int] = set()
    loads = 0
    for device in sorted(plan.devices):
        writer = _DeviceWriter(device, replicas, count, single, as_recorded, joined)
        for item in plan.sequence(device):
            writer.item(item)
        loads = max(loads, writer.loads)
        writers.append(writer)
    programs = [writer.program() for writer in writers]
    recorded = () if single else contradictions(plan)
    return Side(tuple(programs), max(1, loads), replicas, loss_kind(programs), recorded)


def unclaimed(body: Body, fulls: set[int]) -> Body:
    """The body without what is recorded about parts of some full tensors."""
    if not fulls or not any(x is not None and x.full in fulls for x in body.claims):
        return body
    kept = [x if x is None or x.full not in fulls else None for x in body.claims]
    return replace(body, claims=tuple(kept))


def loss_kind(programs: Sequence[Program]) -> str:
    """Whether the loss is a mean or a sum over the batch, by the operator that makes it."""
    for program in programs:
        for body in program.bodies:
            made = {v: op for op in body.ops for v in op.outputs}
            for value in body.losses:
                op = made.get(value)
                while op is not None and op.name in ("identity", "float", "to", "view"):
                    op = made.get(op.inputs[0])
                if op is not None and op.name == "mean":
                    return "mean"
    return "sum"
