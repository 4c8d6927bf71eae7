"""One body of a device's program, written from the plan's cells: what operators read and make.

Values are in SSA form; tensor ids name what holds them now.  `frontends.nnscaler.convert` has the
rules of accumulation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from shardproof.engine.plan.ir import Attr, Body, Op, Source, Value
from shardproof.engine.plan.recorded import Claimed
from shardproof.engine.plan_files.calling import wrong_call
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.operators import (
    ONE_SIDED,
    PLAIN,
    declared,
    differentiable,
    fused_step,
    one_sided_step,
)
from shardproof.frontends.nnscaler.records import Constant, Tensor

_LOCATION = re.compile(r'File "([^"]{1,300})", line (\d{1,9})')


class Device(Protocol):
    """What a body has to know of its device.  ``joined``: full tensors to which several stages
    contribute; ``claims``: whether records are kept; ``as_recorded``: see `convert`."""

    number: int
    as_recorded: bool
    claims: bool
    joined: set[int]

    def shard(self, tensor: Tensor) -> int:
        """The number of the shard that a parameter or buffer is."""

    def graded_shard(self, tensor: Tensor) -> int:
        """The number of the shard whose gradient this is."""


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


class BodyWriter:
    """Writes one body; ``environment``: tensor id -> value that holds it now."""

    def __init__(self, device: Device, name: str) -> None:
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
        #: The values of the forward body, for the backward body.
        self.mirrored: Sequence[Value] = ()
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
        """Append an operator.  A call that its declaration does not know is legal in PyTorch, but
        has no meaning here: it is no call of that operator, and the verdict names it."""
        wrong = wrong_call(name, inputs, len(outputs), attrs, backward=backward)
        name = f"{name} ({wrong})" if wrong else name
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
            # It is what the forward operator made, whatever this record of it says.
            self.values.append(self.mirrored[value])
            self.saved[value] = len(self.values) - 1
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
