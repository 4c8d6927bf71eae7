"""One body of a device's program, written from the plan's cells: what operators read and make.

Values are in SSA form; tensor ids name what holds them now.  `frontends.nnscaler.convert` has the
rules of accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Attr, Body, Op, Source, Value
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells, masks, memory, objects, stepwise
from shardproof.frontends.nnscaler.assumed import ASYNCHRONOUS, BEFORE_ADAPTER
from shardproof.frontends.nnscaler.calls import Drawn, SharedInput
from shardproof.frontends.nnscaler.forward import (
    Device,
    Forward,
    shape_of,
    source_of,
    tensors_of,
)
from shardproof.frontends.nnscaler.operators import (
    Declared,
    declared,
    differentiable,
    known_by_name,
)
from shardproof.frontends.nnscaler.otherwise import recorded
from shardproof.frontends.nnscaler.primitives import (
    Step,
    Steps,
    alone,
    fused_steps,
    named_otherwise,
    plain_steps,
)
from shardproof.frontends.nnscaler.records import Constant, Tensor


class BodyWriter:
    """Writes one body, such as ``segment 11``; ``environment``: tensor id -> value that holds it
    now.

    In a backward body ``of`` is the forward one, and a gradient is known by its name and by the
    value of *that* body whose gradient it is: one name may stand for those of several values (of a
    partial sum and of what it is summed to).  ``arrived`` holds what each reader of that value has
    contributed, which is added up when it is read; ``owners`` is whose gradient a name was last.
    ``unsafe``: see `memory.unsafe`; without it, whatever writes into its operand is.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        of: Forward | None = None,
        unsafe: Mapping[int, str] | None = None,
    ) -> None:
        self.device = device
        self.name = name
        self.of = of
        self.unsafe = unsafe
        self.values: list[Value] = []
        self.claims: dict[int, RecordedSlice] = {}
        self.ops: list[Op] = []
        self.environment: dict[int, int] = {}
        self.shards: dict[int, int] = {}
        self.saved: dict[int, int] = {}
        self.gradients: list[tuple[int, int]] = []
        self.owners: dict[int, int] = {}
        self.arrived: dict[tuple[int, int], tuple[list[int], Source]] = {}
        self.reads: dict[int, tuple[int, ...]] = {}
        self.makes: dict[int, tuple[int, ...]] = {}
        self.called: dict[int, tuple[cells.ForwardOp, Declared]] = {}
        self.drawn: dict[str, int] = {}
        self.within: dict[int, tuple[int, ...]] = {}
        self.objects: dict[int, Constant] = {}

    def new(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        """A value for a production of ``tensor`` (of another ``shape`` than it records)."""
        part = tensor.part
        kept = part.stored if shape is None else shape_of(tensor, shape)
        self.values.append(Value(kept, part.dtype, f"{part.name or 'tensor'} #{tensor.id}"))
        return len(self.values) - 1

    def write(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        """A new value of the body for a tensor that a cell gives."""
        value = self.claimed(tensor, shape)
        self.environment[tensor.id] = value
        return value

    def claimed(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        """A value that is what the plan records of ``tensor``."""
        value = self.new(tensor, shape)
        if self.device.claims:
            self.claims[value] = tensor.part.recorded
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
        attrs: Mapping[str, Attr],
        source: Source,
        *,
        backward: bool = False,
    ) -> None:
        """Append an operator.  A call that its declaration does not know is legal in PyTorch, but
        has no meaning here: it is no call of that operator, and the verdict names it."""
        attrs, wrong = self.device.made.of(name, inputs, len(outputs), attrs, backward=backward)
        name = f"{name} ({wrong})" if wrong else name
        self.ops.append(Op(name, tuple(inputs), tuple(outputs), attrs, backward, source))

    # -- nodes ----------------------------------------------------------------------------------

    def forward(self, op: cells.ForwardOp) -> None:
        """A forward operator as operators of the body, with what is assumed of its function."""
        here = {**self.device.objects.known, **self.objects}
        known = objects.resolved(op, here) if here else op
        made_objects = objects.computed(known)
        if made_objects is not None:
            self.objects.update(made_objects)
            self.device.objects.note(made_objects)
            return
        operator = memory.named(declared(known), op, self.unsafe)
        self.called[op.id] = (op, operator)
        if operator.word:
            self.device.assumed.add(known_by_name(operator.word, operator))
        for text in operator.assumed:
            self.device.assumed.add(Assumption("user's word", op.signature, "", text))
        inputs = (
            *(self.read(x) for x in operator.tensors),
            *(self.draw(x, op) for x in operator.drawn),
        )
        source = source_of(op, op.id)
        if operator.steps:
            operands = [*inputs, *(self.hold(x) for x in operator.shared)]
            made = stepwise.pushed(self, operator, operands, op, source)
            self.within[op.id] = (*operands, *made)
            results = operator.results or (len(operands) + len(made) - 1,)
            outputs = tuple(self.within[op.id][i] for i in results)
        else:
            outputs = tuple(self.write(x) for x in op.outputs if isinstance(x, Tensor))
            self.emit(operator.name, inputs, outputs, operator.attrs, source)
        self.reads[op.id], self.makes[op.id] = inputs, outputs

    def hold(self, shared: SharedInput) -> int:
        """The value of what both sides hold alike."""
        number = self.device.held_alike(shared)
        if number not in self.shards:
            self.values.append(Value(shared.shape, "float32", shared.name))
            self.shards[number] = len(self.values) - 1
        return self.shards[number]

    def draw(self, drawn: Drawn, op: cells.ForwardOp) -> int:
        """The value of a mask's part; the mask is known by the name of the operator's result."""
        result = next((x.full for x in op.outputs if isinstance(x, Tensor)), None)
        if result is None or self.device.drawers.setdefault(result.name, result.id) != result.id:
            raise UnreadablePlan(
                "expected results of random operators with names of their own, found two called "
                f"{result.name if result else op.name}"
            )
        name = result.name
        drawings = self.device.drawings.setdefault(name, {})
        drawings.setdefault(self.device.number, set()).add(drawn.box)
        if name not in self.drawn:
            self.values.append(Value(drawn.shape, "float32", masks.of(name)))
            self.drawn[name] = len(self.values) - 1
        value = self.drawn[name]
        for dim, ((low, high), size) in enumerate(zip(drawn.box, drawn.shape, strict=True)):
            if (low, high) != (0, size):
                shape = list(self.values[value].shape)
                shape[dim] = high - low
                self.values.append(replace(self.values[value], shape=tuple(shape)))
                part = len(self.values) - 1
                attrs: dict[str, Attr] = {"dim": dim, "start": low, "size": high - low}
                self.emit("slice", [value], [part], attrs, source_of(op, op.id))
                value = part
        return value

    def arrive(self, tensors: Sequence[Tensor], adapters: Sequence[cells.Adapter]) -> None:
        """The gradients that a backward body is given, each of what its forward body gave;
        ``adapters``: those of the backward segment."""
        assert self.of is not None
        known = self.of.differentiated()
        for tensor in tensors:
            if tensor.id not in known:
                raise UnreadablePlan(
                    f"expected the gradient of what segment {self.of.segment.id} gives, found "
                    f"{tensor.name}",
                    f"tensor {tensor.id}",
                )
            owner = self.owner_of(tensor, known[tensor.id], adapters)
            self.owners[tensor.id] = owner
            given = [self.environment[tensor.id]]
            self.arrived[tensor.id, owner] = (given, Source(self.name))

    def owner_of(self, gradient: Tensor, value: int, adapters: Sequence[cells.Adapter]) -> int:
        """Of which forward value a gradient arrives: of what the segment gives under the name.

        An adapter inside the segment may give its result the name of what it read, so that its
        result is what the segment gives; the plan may call the gradients of the two differently,
        and let that of what was read arrive.  Then the plan's account is not what its generated
        code does, which is told (``renamed``: by adapter the tensor, and on which devices), and
        followed only where the user says that the records count (``as_recorded``).
        """
        assert self.of is not None
        for node in adapters:
            mirror = -1 if node.mirror_id is None else node.mirror_id
            made, read = self.of.makes.get(mirror, ()), self.of.reads.get(mirror, ())
            if value in made and gradient.id not in {x.id for x in node.inputs}:
                names = {x.id: v for x, v in zip(node.outputs, read, strict=False)}
                if gradient.id not in names:
                    continue
                _, devices = self.device.renamed.setdefault(mirror, (gradient.name, set()))
                devices.add(self.device.number)
                if self.device.as_recorded:
                    self.device.assumed.add(BEFORE_ADAPTER)
                    return names[gradient.id]
        return value

    def gradient(self, tensor: Tensor, owner: int) -> int:
        """The gradient of forward value ``owner`` (of whatever value has the name, if none of this
        one's has arrived)."""
        key = (tensor.id, owner)
        if key not in self.arrived:
            key = (tensor.id, self.owners.get(tensor.id, -1))
        if key not in self.arrived:
            return self.read(tensor)
        parts, source = self.arrived[key]
        if len(parts) > 1:
            value = self.claimed(tensor)
            self.emit("add_n", parts, [value], {}, source)
            parts = [value]
            self.arrived[key] = (parts, source)
        return parts[0]

    def reached(self, tensor: Tensor, value: int) -> bool:
        """Whether a gradient has arrived at a forward value, or can."""
        assert self.of is not None
        return (tensor.id, value) in self.arrived or value < 0 or value in self.of.live()

    def returned(self, tensors: Sequence[Tensor]) -> list[int]:
        """What the body gives; of a backward one: the gradients of its forward one's inputs."""
        if self.of is None:
            return [self.read(x) for x in tensors]
        known: dict[int, int] = {}
        for tensor, value in zip(tensors_of(self.of.segment.inputs), self.of.inputs, strict=True):
            gradient = tensor.grad()
            if gradient is not None:
                known[gradient.id] = value
        return [self.given_back(x, known.get(x.id, -1)) for x in tensors]

    def given_back(self, x: Tensor, owner: int) -> int:
        """The gradient of an input, if one can arrive there."""
        arrives = x.id in self.owners or self.reached(x, owner)
        return self.gradient(x, owner) if arrives else stepwise.unread(self, x, owner)

    def backward(self, op: cells.BackwardOp, of: Forward) -> None:
        """The gradients that a backward operator gives, by its forward operator's derivative."""
        read, made = of.read_by(op.forward.id), of.makes[op.forward.id]
        mirrored, operator = of.called[op.forward.id]
        operator = operator if mirrored is op.forward else declared(op.forward)
        name, tensors, attrs = operator.name, operator.tensors, operator.attrs
        source = source_of(op.forward, op.id)
        graded = differentiable(op.forward.outputs)
        if name in ("multiref", "identity") and len(op.outputs) == 1 and op.inputs and read:
            # Needs no context: the sum of whatever gradients it is given, each of a copy that has
            # one (a copy that only a comparison reads has none).
            some = len(graded) == len(op.inputs)
            copies = tuple(made[position] for position in graded) if some else made
            owners = [*copies, *[-1] * len(op.inputs)]
            given = [
                self.gradient(x, owner)
                for x, owner in zip(op.inputs, owners, strict=False)
                if self.reached(x, owner)
            ]
            if not given:
                return
            self.contribute("add_n", given, op.outputs, read[:1], {}, source)
            return
        inputs = [self.context(value, x) for value, x in zip(read, tensors, strict=False)]
        inputs += [self.kept(value) for value in read[len(tensors) :]]
        if len(graded) != len(op.inputs):
            raise UnreadablePlan(f"expected {len(graded)} output gradients, found {len(op.inputs)}")
        gradients = [-1] * len(tensors_of(op.forward.outputs))
        for position, gradient in zip(graded, op.inputs, strict=True):
            if self.reached(gradient, made[position]):
                gradients[position] = self.gradient(gradient, made[position])
        if graded and max(gradients) < 0:
            # No gradient can arrive: autograd does not run it.
            return
        wrt = differentiable(tensors)
        if len(wrt) != len(op.outputs):
            raise UnreadablePlan(f"expected {len(wrt)} input gradients, found {len(op.outputs)}")
        if operator.steps:
            stepwise.pulled(self, op, operator, of, gradients)
            return
        attrs = {**attrs, "wrt": tuple(wrt), "arity": len(inputs)}
        values = [read[position] for position in wrt]
        self.contribute(
            name, [*inputs, *gradients], op.outputs, values, attrs, source, backward=True
        )

    def contribute(
        self,
        name: str,
        inputs: Sequence[int],
        tensors: Sequence[Tensor],
        owners: Sequence[int],
        attrs: dict[str, Attr],
        source: Source,
        *,
        backward: bool = False,
    ) -> None:
        """An operator that makes gradients, each of the forward value that ``owners`` says."""
        outputs = [
            self.arriving(x, owner, source) for x, owner in zip(tensors, owners, strict=True)
        ]
        self.emit(name, inputs, outputs, attrs, source, backward=backward)

    def arriving(
        self, tensor: Tensor, owner: int, source: Source, shape: tuple[int, ...] | None = None
    ) -> int:
        """The value for a contribution to the gradient of forward value ``owner``."""
        if tensor.is_attr and tensor.is_grad:
            value = self.new(tensor, shape)
            self.gradients.append((value, self.device.graded_shard(tensor)))
            return value
        self.owners[tensor.id] = owner
        key = (tensor.id, owner)
        if key not in self.arrived:
            value = self.claimed(tensor, shape)
            self.arrived[key] = ([value], source)
            return value
        value = self.new(tensor, shape)
        self.arrived[key] = ([*self.arrived[key][0], value], source)
        self.device.joined.add(tensor.full.id)
        return value

    def context(self, value: int, tensor: Tensor) -> int:
        """A forward value saved for the backward pass; parameters are read as they are."""
        return self.read(tensor) if tensor.is_attr else self.kept(value)

    def kept(self, value: int) -> int:
        """The value that the forward pass had, saved for this backward body."""
        if value not in self.saved:
            # It is what the forward operator made, whatever this record of it says.
            assert self.of is not None
            self.values.append(self.of.values[value])
            self.saved[value] = len(self.values) - 1
        return self.saved[value]

    # -- adapters -------------------------------------------------------------------------------

    def adapter(self, adapter: cells.Adapter) -> None:
        """An adapter's communication: forward as it is recorded, backward with the gradients'
        owners."""
        source = Source(f"adapter {adapter.id}")
        if self.of is None:
            self.reads[adapter.id] = tuple([self.read(x) for x in adapter.inputs])
            self.primitives(adapter, {}, source)
            self.makes[adapter.id] = tuple([self.read(x) for x in adapter.outputs])
            return
        self.of.expect_half(adapter)
        mirror = -1 if adapter.mirror_id is None else adapter.mirror_id
        read, made = self.of.reads.get(mirror, ()), self.of.makes.get(mirror, ())
        if len(made) != len(adapter.inputs) or len(read) != len(adapter.outputs):
            raise UnreadablePlan(
                f"expected the forward adapter {mirror} of this backward one in segment "
                f"{self.of.segment.id}"
            )
        rows = list(zip(adapter.inputs, made, strict=True))
        if rows and not any(self.reached(x, value) for x, value in rows):
            # Nothing can arrive at what the forward adapter gave: autograd does not run it.
            return
        for tensor, value in zip(adapter.inputs, made, strict=True):
            if tensor.id in self.owners and (tensor.id, value) not in self.arrived:
                # No gradient arrives at what the forward adapter gave: autograd does not run it.
                return
        for tensor, value in zip(adapter.inputs, made, strict=True):
            self.environment[tensor.id] = self.gradient(tensor, value)
        owners = {x.id: value for x, value in zip(adapter.outputs, read, strict=True)}
        self.primitives(adapter, owners, source)
        if not adapter.prims:
            for tensor, value in zip(adapter.outputs, read, strict=True):
                self.handed_on(adapter, tensor, value, source)

    def handed_on(self, adapter: cells.Adapter, tensor: Tensor, owner: int, source: Source) -> None:
        """An adapter without primitives on this device: its output is the input of that name."""
        if any(x.id == tensor.id for x in adapter.inputs):
            inputs = [self.environment[tensor.id]]
            self.emit("identity", inputs, [self.arriving(tensor, owner, source)], {}, source)

    def primitives(self, adapter: cells.Adapter, owners: dict[int, int], source: Source) -> None:
        """The primitives of an adapter one by one, or as one collective where they are one."""
        if any(prim.kwargs.get("async_op") is True for prim in adapter.prims):
            self.device.assumed.add(ASYNCHRONOUS)
        fused = fused_steps(adapter, self.device.number)
        if fused is not None:
            self.steps(fused, adapter.inputs, adapter.outputs, owners, source)
            return
        whole = alone(adapter)
        self.device.assumed.update(named_otherwise(adapter) if whole else ())
        passing = self.passing_names(adapter)
        last = {x.id: i for i, prim in enumerate(adapter.prims) for x in prim.outputs}
        for number, prim in enumerate(adapter.prims):
            into, out = (adapter if whole else prim).inputs, (adapter if whole else prim).outputs
            made = plain_steps(prim, self.device.number, into)
            if self.device.as_recorded:
                made = recorded(prim, made)
            else:
                self.device.otherwise.note(len(self.device.bodies), len(self.ops), prim, made)
            # What is an adapter's result is a gradient that arrives; the rest is on its way.
            results = (
                owners if whole else {x: v for x, v in owners.items() if last.get(x) == number}
            )
            self.steps(made, into, out, results, source)
        for name, value in passing.items():
            self.environment.pop(name, None)
            if value is not None:
                self.environment[name] = value

    def passing_names(self, adapter: cells.Adapter) -> dict[int, int | None]:
        """The names of what only the primitives of an adapter see, and what has them before it: one
        with a backward is an autograd function, whose names are its own."""
        if self.of is None and adapter.mirror_id is None:
            return {}
        given = {x.id for x in (*adapter.inputs, *adapter.outputs)}
        inner = {x.id for prim in adapter.prims for x in prim.outputs} - given
        return {name: self.environment.get(name) for name in sorted(inner)}

    def steps(
        self,
        made: Steps,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        owners: dict[int, int],
        source: Source,
    ) -> None:
        """A primitive's operators, from ``inputs`` to ``outputs`` (one, or none)."""
        if len(outputs) > 1:
            raise UnreadablePlan(f"expected one output of a primitive, found {len(outputs)}")
        numbered = [self.read(x) for x in inputs]
        to = outputs[0] if outputs else None
        for step in made.steps:
            results: list[int] = []
            if step.result:
                if to is None or len(numbered) != made.result:
                    results = [self.passing(step, inputs, outputs)]
                elif to.id in owners:
                    results = [self.arriving(to, owners[to.id], source, step.shape)]
                else:
                    results = [self.write(to, step.shape)]
            operands = [numbered[i] for i in step.operands]
            self.emit(step.name, operands, results, step.attrs, source)
            numbered += results
        if to is not None and made.result < 0:
            # Whoever reads it reads what nothing has written.
            self.environment.pop(to.id, None)
        elif to is not None and made.result < len(inputs):
            self.environment[to.id] = numbered[made.result]

    def passing(self, step: Step, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """A value that only the steps of one primitive see."""
        for like in (*inputs, *outputs):
            return self.new(like, step.shape)
        raise UnreadablePlan("expected a tensor in a primitive, found none")

    def body(self, inputs: Sequence[int], outputs: Sequence[int], mirror: int = -1) -> Body:
        """The body that was written; ``mirror``: the forward body of which it is the backward."""
        return Body(
            name=self.name,
            values=tuple(self.values),
            ops=tuple(self.ops),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            shards=tuple((value, number) for number, value in self.shards.items()),
            saved=tuple((here, there) for there, here in self.saved.items()),
            forward_body=mirror,
            gradients=tuple(self.gradients),
            claims=tuple([self.claims.get(v) for v in range(len(self.values))])
            if self.claims
            else (),
        )
