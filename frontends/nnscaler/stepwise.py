"""A function that is several declared operators, in the bodies that run it forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from shardproof.engine.plan.ir import Attr, Source, Value
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.calls import SharedInput
from shardproof.frontends.nnscaler.forward import Device, Forward, source_of
from shardproof.frontends.nnscaler.operators import Declared, differentiable
from shardproof.frontends.nnscaler.records import Tensor


class Writer(Protocol):
    """What is asked of `frontends.nnscaler.bodies.BodyWriter`."""

    values: list[Value]
    owners: dict[int, int]
    arrived: dict[tuple[int, int], tuple[list[int], Source]]
    of: Forward | None

    @property
    def device(self) -> Device:
        """The device that runs the body."""

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
        """Append an operator; one that its declaration does not fit is named so, and refused."""

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
        """Append an operator that makes gradients, each of the forward value in ``owners``."""

    def read(self, tensor: Tensor) -> int:
        """The value of a tensor here; one that nothing produces is found when it is read."""

    def write(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> int:
        """A new value, which ``tensor`` is from here on."""

    def hold(self, shared: SharedInput) -> int:
        """The value of what both sides hold alike."""

    def context(self, value: int, tensor: Tensor) -> int:
        """A forward value saved for the backward pass; parameters are read as they are."""

    def kept(self, value: int) -> int:
        """What the backward body reads of a value of the forward one."""


#: What has no meaning here: see `unread`.
UNREAD: Final = "gradient of an input that nothing differentiable reads"


def unread(writer: Writer, tensor: Tensor, owner: int) -> int:
    """The gradient of a segment's input (forward value ``owner``) at which none arrives, since
    nothing that has one reads it.

    The runtime has one leaf for all inputs that are one tensor, as copies by ``multiref`` are, and
    gives what arrives at any of them. Copies are values of their own here, with the same sum: this
    one adds nothing. A leaf at which nothing arrives stops the step: nothing writes its gradient.
    Where it is not known which inputs are one tensor, nothing is said.

    Example: of three copies of a value that the next stage is given, one is read by ``zeros_like``
    alone: its gradient there is that of the other two.
    """
    of = writer.of
    assert of is not None
    position = of.inputs.index(owner) if owner in of.inputs else len(of.inputs)
    if any(of.inputs[i] in of.live() for i in of.leaves.same_as(position)):
        of.relied = True
        value = _new(writer, replace(of.values[owner], name=tensor.name))
        attrs: dict[str, Attr] = {"size": of.values[owner].shape, "value": 0}
        writer.emit("full", [], [value], attrs, Source(tensor.name))
        return value
    if position in of.leaves.fresh:
        of.relied = True
        return writer.read(tensor)
    value = writer.write(tensor)
    writer.emit(UNREAD, [], [value], {}, Source(tensor.name))
    return value


def pushed(
    writer: Writer, operator: Declared, inputs: Sequence[int], op: cells.ForwardOp, source: Source
) -> list[int]:
    """The results of a function's steps; those that are its results are the plan's.

    Example: ``torch.gt(x, y)`` is a value "sub in gt", then ``step``, whose result is the plan's.
    """
    numbered = list(inputs)
    results = [x for x in op.outputs if isinstance(x, Tensor)]
    places = operator.results or (len(inputs) + len(operator.steps) - 1,)
    for number, step in enumerate(operator.steps, len(inputs)):
        operands = [numbered[i] for i in step.operands]
        if number not in places:
            numbered.append(
                _new(writer, Value(step.shape, "float32", f"{step.name} in {operator.name}"))
            )
            writer.emit(step.name, operands, numbered[-1:], step.attrs, source)
            continue
        # Where one result is known, what the plan has beside it belongs to no declaration.
        own = results if len(places) == 1 else [results[places.index(number)]]
        made = [writer.write(x) for x in own]
        made = made or [_new(writer, Value(step.shape, "float32", f"{operator.name} unread"))]
        writer.emit(step.name, operands, made, step.attrs, source)
        numbered.append(made[0])
    return numbered[len(inputs) :]


def pulled(
    writer: Writer, op: cells.BackwardOp, operator: Declared, of: Forward, gradients: Sequence[int]
) -> None:
    """The derivatives of a function's steps, last to first, from the ``gradients`` of its results
    (-1: none arrives).

    Example: of ``l1_loss``: the derivative of ``mean``, then of ``abs``, then of ``sub``, for the
    operands that have a gradient.
    """
    source, name = source_of(op.forward, op.id), f"gradient in {operator.name}"
    values, shared = of.within[op.forward.id], _shared_values(writer, operator)
    count = len(operator.tensors) + len(operator.drawn) + len(shared)
    graded = differentiable(operator.tensors)
    wanted = _depending(operator, count, graded)
    places = operator.results or (count + len(operator.steps) - 1,)
    parts = {i: [g] for i, g in zip(places, gradients, strict=False) if g >= 0}
    for number, step in reversed(list(enumerate(operator.steps, count))):
        if number not in parts:
            continue
        given = _added(writer, parts.pop(number), name, source)
        wrt = [k for k, i in enumerate(step.operands) if i in wanted]
        inputs = [shared[i] if i in shared else _seen(writer, i, values, operator.tensors)
                  for i in step.operands]  # fmt: skip
        results = [_new(writer, replace(writer.values[inputs[k]], name=name)) for k in wrt]
        for k, result in zip(wrt, results, strict=True):
            parts.setdefault(step.operands[k], []).append(result)
        attrs: dict[str, Attr] = {**step.attrs, "wrt": tuple(wrt), "arity": len(inputs)}
        writer.emit(step.name, [*inputs, given], results, attrs, source, backward=True)
    for tensor, i in zip(op.outputs, graded, strict=True):
        arrived = parts.get(i, [])
        if len(arrived) > 1 and not tensor.is_attr:
            _contributed(writer, arrived, tensor, values[i], source)
            continue
        kind = "add_n" if len(arrived) > 1 else "identity"
        none: dict[str, Attr] = {}
        if not arrived:
            # An operand of which nothing is left, as of what is written over.
            kind, none = "full", {"size": of.values[values[i]].shape, "value": 0}
        writer.contribute(kind, arrived, [tensor], [values[i]], none, source)


def _contributed(
    writer: Writer, parts: Sequence[int], tensor: Tensor, owner: int, source: Source
) -> None:
    """What several steps contribute to the gradient of an operand: added up with what its other
    readers contribute, in one sum, as the derivative of the single-device program adds it."""
    key = (tensor.id, owner)
    before, first = writer.arrived.get(key, ([], source))
    if before:
        writer.device.joined.add(tensor.full.id)
    writer.owners[tensor.id] = owner
    writer.arrived[key] = ([*before, *parts], first)


def _shared_values(writer: Writer, operator: Declared) -> dict[int, int]:
    """By operand, the values of what both sides hold."""
    first = len(operator.tensors) + len(operator.drawn)
    return {first + n: writer.hold(x) for n, x in enumerate(operator.shared)}


def _depending(operator: Declared, count: int, graded: Sequence[int]) -> set[int]:
    """Of a function's operands and steps those through which gradients flow."""
    wanted = set(graded)
    for number, step in enumerate(operator.steps, count):
        if step.name != "detach" and wanted.intersection(step.operands):
            wanted.add(number)
    return wanted


def _seen(writer: Writer, number: int, values: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """A function's operand or the result of one of its steps, as the forward pass had it."""
    if number < len(tensors):
        return writer.context(values[number], tensors[number])
    return writer.kept(values[number])


def _added(writer: Writer, parts: Sequence[int], name: str, source: Source) -> int:
    if len(parts) == 1:
        return parts[0]
    total = _new(writer, replace(writer.values[parts[0]], name=name))
    writer.emit("add_n", parts, [total], {}, source)
    return total


def _new(writer: Writer, value: Value) -> int:
    writer.values.append(value)
    return len(writer.values) - 1
