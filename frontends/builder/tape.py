"""The core of a body under construction: values, operators and what their gradients will be.

`Tape` appends operators with inferred shapes and records, for each that a gradient may flow
through, a `Step`: how to append its reverse derivative to another tape.  `reverse` runs the steps
backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.ops import lookup
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Shard, Source, Value
from shardproof.frontends.builder.shapes import Inference, Shape

#: No gradient: the value does not depend on anything trainable, or nothing depends on it.
NONE = -1

#: (reverse, gradients of the step's outputs) -> gradients of its inputs (`NONE`: no gradient).
Pullback = Callable[["Reverse", Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was computed and how gradients flow back through it.

    ``always``: also where no gradient arrives (a send, whose gradient is received).
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    pullback: Pullback
    module: str
    always: bool = False


class Tape:
    """A body of a program, under construction.  Values are numbers; every method that computes
    returns the number of its result."""

    def __init__(
        self,
        name: str,
        number: int,
        *,
        shards: Sequence[Shard],
        extents: Mapping[str, int],
        inference: Inference,
        mirror: int = -1,
    ) -> None:
        self.name = name
        self.number = number
        self.mirror = mirror
        self.extents = extents
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.steps: list[Step] = []
        self.differentiable: set[int] = set()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.shards: dict[int, int] = {}
        self.saved: dict[int, int] = {}
        self.recomputed: dict[int, Callable[[Reverse], int]] = {}
        self.gradients: list[tuple[int, int]] = []
        self.reduced: list[tuple[int, int, int]] = []
        self.losses: list[int] = []
        self.results: list[int] = []
        self._held = shards
        self._inference = inference
        self._module = ""
        self._source = Source()

    # -- names ----------------------------------------------------------------------------------

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Operators inside come from module ``name`` of the enclosing one (for reports)."""
        outer = self._module
        self._enter(f"{outer}.{name}" if outer else name)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, module: str) -> None:
        if module != self._module:
            self._module = module
            self._source = Source(module=module)

    def shape(self, value: int) -> Shape:
        return self.values[value].shape

    def fail(self, message: str) -> InvalidInput:
        """An error that says where in the plan it is."""
        return InvalidInput(message, ", ".join(x for x in (self.name, self._module) if x))

    # -- values ---------------------------------------------------------------------------------

    def value(self, shape: Shape, name: str, dtype: str = "float32") -> int:
        self.values.append(Value(shape, dtype, f"{self._module}.{name}" if self._module else name))
        return len(self.values) - 1

    def input(
        self, shape: Shape, name: str, dtype: str = "float32", *, differentiable: bool = False
    ) -> int:
        """A value that each call binds to a slot."""
        number = self.value(shape, name, dtype)
        self.inputs.append(number)
        if differentiable:
            self.differentiable.add(number)
        return number

    def output(self, value: int) -> None:
        """Let each call write ``value`` to a slot."""
        self.outputs.append(value)

    def loss(self, value: int) -> None:
        """Declare ``value`` (one element) the training loss."""
        if any(n != 1 for n in self.shape(value)):
            raise self.fail(f"a loss of shape {list(self.shape(value))}, expected one element")
        self.losses.append(value)
        self.outputs.append(value)

    def result(self, value: int) -> int:
        """Declare ``value`` one that an expectation is about; returns it."""
        if value not in self.results:
            self.results.append(value)
        return value

    def parameter(self, shard: int) -> int:
        """The value of shard number ``shard``: a parameter or another named input."""
        if shard not in self.shards:
            held = self._held[shard]
            self.values.append(Value(held.shape, held.dtype, held.name))
            self.shards[shard] = len(self.values) - 1
            if held.trainable:
                self.differentiable.add(self.shards[shard])
        return self.shards[shard]

    def append(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: Mapping[str, Attr] | None = None,
        *,
        backward: bool = False,
    ) -> None:
        """Append an operator as it is."""
        self.ops.append(
            Op(name, tuple(inputs), tuple(outputs), attrs or {}, backward, self._source)
        )

    def step(
        self,
        outputs: Sequence[int],
        inputs: Sequence[int],
        pullback: Pullback,
        *,
        always: bool = False,
    ) -> None:
        """Record how gradients flow, if any of ``inputs`` takes one."""
        if self.mirror >= 0 or not (always or any(v in self.differentiable for v in inputs)):
            return
        self.differentiable.update(outputs)
        self.steps.append(Step(tuple(outputs), tuple(inputs), pullback, self._module, always))

    # -- operators ------------------------------------------------------------------------------

    def apply(self, operator: str, *inputs: int, name: str = "", **attrs: Attr) -> tuple[int, ...]:
        """Append any declared operator; its outputs have the shapes that the declaration gives."""
        shapes = [self.shape(v) for v in inputs]
        try:
            found = self._inference.forward(operator, shapes, attrs)
        except (ShapeMismatch, Unsupported) as error:
            raise self.fail(f"{operator} of shapes {[list(s) for s in shapes]}: {error}") from error
        outputs = [self.value(shape, name or operator) for shape in found]
        self.append(operator, inputs, outputs, attrs)
        data = lookup(operator).index_data(len(inputs))
        wrt = tuple(i for i, v in enumerate(inputs) if v in self.differentiable and i not in data)

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            return reverse.operator(operator, inputs, gradients, attrs, wrt)

        self.step(outputs, [inputs[i] for i in wrt], pullback)
        return tuple(outputs)

    def op(self, operator: str, *inputs: int, name: str = "", **attrs: Attr) -> int:
        """`apply` for an operator of one output."""
        (output,) = self.apply(operator, *inputs, name=name, **attrs)
        return output

    def function(
        self, inputs: Sequence[int], compute: Callable[[], int], pullback: Pullback
    ) -> int:
        """What ``compute`` appends, with a derivative of its own (as an autograd function has)."""
        before = len(self.steps)
        output = compute()
        del self.steps[before:]
        self.step([output], inputs, pullback)
        return output

    def load_batch(self, *tensors: tuple[str, Shape, str]) -> tuple[int, ...]:
        """Load this call's microbatch: (name, shape, element type) of every batch tensor, in the
        order in which the single-device program has them."""
        outputs = tuple(self.value(shape, name, dtype) for name, shape, dtype in tensors)
        self.append("load_batch", (), outputs)
        return outputs

    # -- groups ---------------------------------------------------------------------------------

    def members(self, group: Group) -> int:
        """How many ranks are in ``group``."""
        count = max(1, len(group.ranks))
        for axis in group.axes:
            if axis not in self.extents:
                raise self.fail(f"axis {axis} is not an axis of this program {list(self.extents)}")
            count *= self.extents[axis]
        return count

    def body(self) -> Body:
        """The finished body."""
        return Body(
            self.name,
            tuple(self.values),
            tuple(self.ops),
            tuple(self.inputs),
            tuple(self.outputs),
            tuple((value, shard) for shard, value in self.shards.items()),
            tuple((value, there) for there, value in self.saved.items()),
            self.mirror,
            tuple(self.gradients),
            tuple(self.reduced),
            tuple(self.losses),
            results=tuple(self.results),
        )


class Reverse:
    """The backward tape of a forward tape, while steps are run backwards."""

    def __init__(self, forward: Tape, tape: Tape, inference: Inference) -> None:
        self.forward = forward
        self.tape = tape
        self._inference = inference
        self._arriving: dict[int, list[int]] = {}
        self._shard_of = {value: shard for shard, value in forward.shards.items()}
        self._again: dict[int, int] = {}

    def saved(self, value: int) -> int:
        """A value of the forward call, or a parameter, as read by the backward body; what is not
        kept for it (`Tape.recomputed`) it computes again."""
        if value in self.forward.recomputed:
            if value not in self._again:
                self._again[value] = self.forward.recomputed[value](self)
            return self._again[value]
        if value in self._shard_of:
            return self.tape.parameter(self._shard_of[value])
        if value not in self.tape.saved:
            self.tape.values.append(self.forward.values[value])
            self.tape.saved[value] = len(self.tape.values) - 1
        return self.tape.saved[value]

    def gradient_value(self, value: int) -> int:
        """A new value for a gradient of forward value ``value``."""
        held = self.forward.values[value]
        self.tape.values.append(Value(held.shape, held.dtype, f"gradient of {held.name}"))
        return len(self.tape.values) - 1

    def operator(
        self,
        operator: str,
        inputs: Sequence[int],
        gradients: Sequence[int],
        attrs: Mapping[str, Attr],
        wrt: Sequence[int],
    ) -> list[int]:
        """Append the reverse derivative of a declared operator."""
        shapes = [self.forward.shape(v) for v in inputs]
        arriving = [None if g < 0 else self.tape.shape(g) for g in gradients]
        try:
            self._inference.backward(operator, shapes, arriving, attrs, wrt)
        except (ShapeMismatch, Unsupported) as error:
            raise self.tape.fail(f"backward of {operator}: {error}") from error
        outputs = [self.gradient_value(inputs[i]) for i in wrt]
        read = [*(self.saved(v) for v in inputs), *gradients]
        self.tape.append(
            operator,
            read,
            outputs,
            {**attrs, "wrt": tuple(wrt), "arity": len(inputs)},
            backward=True,
        )
        return outputs

    def arrive(self, value: int, gradient: int) -> None:
        """One more contribution to the gradient of forward value ``value``."""
        if gradient >= 0:
            self._arriving.setdefault(value, []).append(gradient)

    def settle(self, value: int) -> int:
        """The whole gradient of a forward value; `NONE` if nothing contributed."""
        parts = self._arriving.get(value, [])
        if len(parts) > 1:
            total = self.gradient_value(value)
            self.tape.append("add_n", parts, [total])
            self._arriving[value] = [total]
        return self._arriving[value][0] if parts else NONE

    def run(self) -> None:
        """Derive the backward body.

        Its inputs are the gradients of the differentiable outputs of the forward body, in order;
        its outputs those of the forward body's differentiable inputs.
        """
        forward, tape = self.forward, self.tape
        for value in forward.outputs:
            if value in forward.differentiable:
                held = forward.values[value]
                self.arrive(value, tape.input(held.shape, f"gradient of {held.name}", held.dtype))
        for step in reversed(forward.steps):
            gradients = [self.settle(v) for v in step.outputs]
            if not step.always and all(g < 0 for g in gradients):
                continue
            with tape.module(step.module):
                found = step.pullback(self, gradients)
            for value, gradient in zip(step.inputs, found, strict=True):
                self.arrive(value, gradient)
        for value in forward.inputs:
            if value in forward.differentiable and self.settle(value) >= 0:
                tape.output(self.settle(value))
        for shard, value in forward.shards.items():
            if value in forward.differentiable and self.settle(value) >= 0:
                tape.gradients.append((self.settle(value), shard))
