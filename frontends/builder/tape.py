"""The core of a body under construction: values, operators and what their gradients will be.

Values and shards are handles: numbers that know the body or program that they are of, so that one
in another's place is an error that says so.

`Tape` appends operators with inferred shapes and records, for each that a gradient may flow
through, a `Step`: how to append its reverse derivative to another tape.  `reverse` runs the steps
backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.ops import lookup
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Shard, Source, Value
from shardproof.engine.system.names import near
from shardproof.frontends.builder.callers import caller, exactly
from shardproof.frontends.builder.shapes import Inference, Shape

#: No gradient: the value does not depend on anything trainable, or nothing depends on it.
NONE = -1

#: (reverse, gradients of the step's outputs) -> gradients of its inputs (`NONE`: no gradient).
Pullback = Callable[["Reverse", Sequence[int]], Sequence[int]]


class Tensor(int):
    """A value of a body, as its number; ``tape`` is the body.

    Example: ``y`` prints as "linear [8, 16] of forward", and ``y + 1`` raises what to write
    instead.
    """

    tape: Tape

    def __new__(cls, number: int, tape: Tape) -> Tensor:
        made = super().__new__(cls, number)
        made.tape = tape
        return made

    @property
    def shape(self) -> Shape:
        """The shape of the value that this handle stands for."""
        return self.tape.values[self].shape

    def __repr__(self) -> str:
        value = self.tape.values[self]
        return f"{value.name} {list(value.shape)} of {self.tape.name}"

    def _computed(self, *_: object) -> Any:
        raise self.tape.fail(
            f"{self!r} is computed with by methods of the body, as in body.add(x, y), "
            "body.mul_constant(x, Fraction(1, 2)) and body.matmul(x, y)"
        )

    # What Python makes of the numbers would be another value of the body.
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __pow__ = __matmul__ = __neg__ = _computed


def _number(value: object) -> str:
    """What to do with a number where a value is expected."""
    if isinstance(value, int | float | Fraction) and not isinstance(value, bool):
        return ": a number is an attribute, given by name, or the operand of mul_constant"
    return ""


class ParameterShard(int):
    """A shard of a program, as its number: a parameter that a body reads with ``parameter``.

    Example: ``program.parameter("weight", (16, 8))`` prints as "the shard of weight".
    """

    name: str

    def __new__(cls, number: int, name: str) -> ParameterShard:
        made = super().__new__(cls, number)
        made.name = name
        return made

    def __repr__(self) -> str:
        return f"the shard of {self.name}"


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was computed and how gradients flow back through it.

    Example: of ``linear``: its result, its inputs ``x`` and ``weight``, and the function that
    appends the gradients of both to the backward body.

    ``always``: also where no gradient arrives (a send, whose gradient is received).
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    pullback: Pullback
    source: Source
    always: bool = False


class Tape:
    """A body of a program, under construction. Values are numbers; every method that computes
    returns the number of its result.  Example: the body of a linear layer and its sum; a value of
    another body is refused."""

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
        self.shards: dict[int, Tensor] = {}
        self.saved: dict[int, int] = {}
        self.recomputed: dict[int, Callable[[Reverse], int]] = {}
        self.gradients: list[tuple[int, int]] = []
        self.reduced: list[tuple[int, int, int]] = []
        self.losses: list[int] = []
        self.results: list[int] = []
        self._shards = shards
        self._inference = inference
        self._module = ""
        self._at: Source | None = None
        self._sources: dict[tuple[str, str], Source] = {}

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
        self._module = module

    @contextmanager
    def derived(self, source: Source) -> Iterator[None]:
        """Operators inside are the backward of one that came from ``source``."""
        outer = self._module, self._at
        self._module, self._at = source.module, source
        try:
            yield
        finally:
            self._module, self._at = outer

    def _source(self) -> Source:
        """Where the operator that is being appended comes from: module, and the caller's line."""
        if self._at is not None:
            return self._at
        place = (self._module, caller())
        return self._sources.setdefault(place, Source(module=place[0], location=place[1]))

    def shape(self, value: int) -> Shape:
        """The shape of a value; raises `InvalidInput` for one of another body."""
        return self.values[self.own(value)].shape

    def own(self, value: int) -> int:
        """The number of a value of this body; raises `InvalidInput` for anything else."""
        if isinstance(value, Tensor) and value.tape is not self:
            raise self.fail(f"{value!r} is used here; a body's values are its own")
        if isinstance(value, ParameterShard):
            raise self.fail(
                f"expected a value, found {value!r}: the body reads it with parameter(...)"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"expected a value of this body, found {value!r}{_number(value)}")
        if not 0 <= value < len(self.values):
            raise self.fail(f"expected a value of this body, found {int(value)}{_number(value)}")
        return int(value)

    def fail(self, message: str) -> InvalidInput:
        """An error that says where in the plan it is."""
        return InvalidInput(message, ", ".join(x for x in (self.name, self._module) if x))

    # -- values ---------------------------------------------------------------------------------

    def value(self, shape: Shape, name: str, dtype: str = "float32") -> Tensor:
        """A new value, named after the module that is being written."""
        self.values.append(Value(shape, dtype, f"{self._module}.{name}" if self._module else name))
        return Tensor(len(self.values) - 1, self)

    def input(
        self, shape: Shape, name: str, dtype: str = "float32", *, differentiable: bool = False
    ) -> Tensor:
        """A value that each call binds to a slot."""
        number = self.value(shape, name, dtype)
        self.inputs.append(number)
        if differentiable:
            self.differentiable.add(number)
        return number

    def output(self, value: int) -> None:
        """Let each call write ``value`` to a slot."""
        self.outputs.append(self.own(value))

    def loss(self, value: int) -> None:
        """Declare ``value`` (one element) the training loss."""
        if any(n != 1 for n in self.shape(value)):
            raise self.fail(f"a loss of shape {list(self.shape(value))}, expected one element")
        self.losses.append(self.own(value))
        self.outputs.append(self.own(value))

    def result(self, value: int) -> int:
        """Declare ``value`` one that an expectation is about; returns it."""
        own = self.own(value)
        if own not in self.results:
            self.results.append(own)
        return value

    def parameter(self, shard: int) -> Tensor:
        """The value of shard number ``shard``: a parameter or another named input."""
        if isinstance(shard, Tensor) or shard >= len(self._shards):
            raise self.fail(f"expected a shard of the program, found {shard!r}")
        if shard not in self.shards:
            box = self._shards[shard]
            self.values.append(Value(box.shape, box.dtype, box.name))
            self.shards[int(shard)] = Tensor(len(self.values) - 1, self)
            if box.trainable:
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
        """Append an operator as it is; a backward one may read that there is no gradient (`NONE`),
        of an output that nothing depends on."""
        absent = NONE if backward else None
        read = tuple(v if v == absent else self.own(v) for v in inputs)
        made = tuple(map(self.own, outputs))
        self.ops.append(Op(name, read, made, attrs or {}, backward, self._source()))

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
        self.steps.append(Step(tuple(outputs), tuple(inputs), pullback, self._source(), always))

    # -- operators ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A declared operator by its name: ``body.layernorm(x, weight, bias, eps=...)`` is `op`,
        or `apply` where it has several outputs."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            lookup(name)
        except Unsupported as error:
            hint = near(name, [n for n in dir(type(self)) if not n.startswith("_")])
            raise AttributeError(f"{type(self).__name__} has no {name}{hint}; {error}") from None
        return partial(self._declared, name)

    def _declared(self, operator: str, *inputs: int, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        outputs = self.apply(operator, *inputs, **attrs)
        return outputs[0] if len(outputs) == 1 else outputs

    def apply(
        self, operator: str, *inputs: int, name: str = "", **given: Attr | float
    ) -> tuple[Tensor, ...]:
        """Append any declared operator; its outputs have the shapes that the declaration gives.

        A float among the attributes is taken for the shortest decimal that it prints as, and a
        warning says so.
        """
        try:
            lookup(operator)
        except Unsupported as error:
            raise self.fail(str(error)) from None
        attrs = {key: exactly(key, value) for key, value in given.items()}
        shapes = [self.shape(v) for v in inputs]
        try:
            made = self._inference.forward(operator, shapes, attrs)
        except (ShapeMismatch, Unsupported) as error:
            raise self.fail(f"{operator} of shapes {[list(s) for s in shapes]}: {error}") from error
        outputs = [self.value(shape, name or operator) for shape in made]
        self.append(operator, inputs, outputs, attrs)
        data = lookup(operator).index_data(len(inputs))
        wrt = tuple(i for i, v in enumerate(inputs) if v in self.differentiable and i not in data)

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            return reverse.operator(operator, inputs, gradients, attrs, wrt)

        self.step(outputs, [inputs[i] for i in wrt], pullback)
        return tuple(outputs)

    def op(self, operator: str, *inputs: int, name: str = "", **attrs: Attr | float) -> Tensor:
        """`apply` for an operator of one output."""
        outputs = self.apply(operator, *inputs, name=name, **attrs)
        if len(outputs) != 1:
            raise self.fail(f"{operator} has {len(outputs)} outputs: use apply")
        return outputs[0]

    def function(
        self, inputs: Sequence[int], compute: Callable[[], Tensor], pullback: Pullback
    ) -> Tensor:
        """What ``compute`` appends, with a derivative of its own (as an autograd function has)."""
        before = len(self.steps)
        output = compute()
        del self.steps[before:]
        self.step([output], inputs, pullback)
        return output

    def load_batch(self, *tensors: tuple[str, Shape, str]) -> tuple[Tensor, ...]:
        """Load this call's microbatch: (name, shape, element type) of every batch tensor, in the
        order in which the single-device program has them."""
        outputs = tuple(self.value(shape, name, dtype) for name, shape, dtype in tensors)
        self.append("load_batch", (), outputs)
        return outputs

    # -- groups ---------------------------------------------------------------------------------

    def members(self, group: Group) -> int:
        """How many ranks are in ``group``."""
        if not isinstance(group, Group):
            raise self.fail(f"expected a group of ranks, as along('tp'), found {group!r}")
        count = max(1, len(group.ranks))
        for axis in group.axes:
            if axis not in self.extents:
                raise self.fail(
                    f"axis {axis} is not an axis of this program {list(self.extents)}"
                    f"{near(axis, self.extents)}"
                )
            count *= self.extents[axis]
        return count

    def body(self) -> Body:
        """The finished body."""
        return Body(
            self.name,
            tuple(self.values),
            tuple(self.ops),
            tuple(map(int, self.inputs)),
            tuple(self.outputs),
            tuple((int(value), shard) for shard, value in self.shards.items()),
            tuple((int(value), int(there)) for there, value in self.saved.items()),
            self.mirror,
            tuple((int(value), int(shard)) for value, shard in self.gradients),
            tuple((int(a), int(b), int(shard)) for a, b, shard in self.reduced),
            tuple(self.losses),
            results=tuple(self.results),
        )


class Reverse:
    """The backward tape of a forward tape, while steps are run backwards.  Example:
    ``load_batch, linear, sum, mul`` becomes ``mul, sum, linear``."""

    def __init__(self, forward: Tape, tape: Tape, inference: Inference) -> None:
        self.forward = forward
        self.tape = tape
        self._inference = inference
        self._arriving: dict[int, list[int]] = {}
        self._shard_of: dict[int, int] = {value: shard for shard, value in forward.shards.items()}
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

    def gradient_value(self, value: int) -> Tensor:
        """A new value for a gradient of forward value ``value``."""
        forward_value = self.forward.values[value]
        self.tape.values.append(
            Value(forward_value.shape, forward_value.dtype, f"gradient of {forward_value.name}")
        )
        return Tensor(len(self.tape.values) - 1, self.tape)

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
        outputs: list[int] = [self.gradient_value(inputs[i]) for i in wrt]
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
            with self.tape.derived(Source()):
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
                output = forward.values[value]
                self.arrive(
                    value, tape.input(output.shape, f"gradient of {output.name}", output.dtype)
                )
        for step in reversed(forward.steps):
            gradients = [self.settle(v) for v in step.outputs]
            if not step.always and all(g < 0 for g in gradients):
                continue
            with tape.derived(step.source):
                contributions = step.pullback(self, gradients)
            for value, gradient in zip(step.inputs, contributions, strict=True):
                self.arrive(value, gradient)
        for value in forward.inputs:
            if value in forward.differentiable and self.settle(value) >= 0:
                tape.output(self.settle(value))
        for shard, value in forward.shards.items():
            if value in forward.differentiable and self.settle(value) >= 0:
                tape.gradients.append((self.settle(value), shard))
