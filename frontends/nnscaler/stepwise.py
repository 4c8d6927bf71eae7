"""A function that is several declared operators, in the bodies that run it forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from shardproof.engine.plan.ir import Attr, Source, Value
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.forward import Forward, source_of
from shardproof.frontends.nnscaler.operators import Declared, differentiable
from shardproof.frontends.nnscaler.records import Tensor


class Writer(Protocol):
    """What is asked of `frontends.nnscaler.bodies.BodyWriter`."""

    values: list[Value]

    def emit(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: dict[str, Attr],
        source: Source,
        *,
        backward: bool = False,
    ) -> None: ...

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
    ) -> None: ...

    def context(self, value: int, tensor: Tensor) -> int: ...

    def kept(self, value: int) -> int: ...


def pushed(writer: Writer, found: Declared, inputs: Sequence[int], source: Source) -> list[int]:
    """The results of a function's steps but for the last one, which gives its result."""
    numbered = list(inputs)
    for step in found.steps[:-1]:
        value = Value(step.shape, "float32", f"{step.name} in {found.name}")
        operands = [numbered[i] for i in step.operands]
        numbered.append(_new(writer, value))
        writer.emit(step.name, operands, numbered[-1:], step.attrs, source)
    return numbered[len(inputs) :]


def pulled(
    writer: Writer, op: cells.BackwardOp, found: Declared, of: Forward, gradient: int
) -> None:
    """The derivatives of a function's steps, last to first, from ``gradient`` of its result."""
    source, name = source_of(op.forward, op.id), f"gradient in {found.name}"
    held, count = of.within[op.forward.id], len(found.tensors) + len(found.drawn)
    graded = differentiable(found.tensors)
    wanted = _depending(found, count, graded)
    parts: dict[int, list[int]] = {count + len(found.steps) - 1: [gradient]}
    for number, step in reversed(list(enumerate(found.steps, count))):
        if number not in parts:
            continue
        given = _added(writer, parts.pop(number), name, source)
        wrt = [k for k, i in enumerate(step.operands) if i in wanted]
        inputs = [_seen(writer, i, held, found.tensors) for i in step.operands]
        results = [_new(writer, replace(writer.values[inputs[k]], name=name)) for k in wrt]
        for k, result in zip(wrt, results, strict=True):
            parts.setdefault(step.operands[k], []).append(result)
        attrs: dict[str, Attr] = {**step.attrs, "wrt": tuple(wrt), "arity": len(inputs)}
        writer.emit(step.name, [*inputs, given], results, attrs, source, backward=True)
    for tensor, i in zip(op.outputs, graded, strict=True):
        arrived = parts.get(i, [])
        kind = "add_n" if len(arrived) > 1 else "identity"
        writer.contribute(kind, arrived, [tensor], [held[i]], {}, source)


def _depending(found: Declared, count: int, graded: Sequence[int]) -> set[int]:
    """Of a function's operands and steps those through which gradients flow."""
    wanted = set(graded)
    for number, step in enumerate(found.steps, count):
        if wanted.intersection(step.operands):
            wanted.add(number)
    return wanted


def _seen(writer: Writer, number: int, held: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """A function's operand or the result of one of its steps, as the forward pass had it."""
    if number < len(tensors):
        return writer.context(held[number], tensors[number])
    return writer.kept(held[number])


def _added(writer: Writer, parts: Sequence[int], name: str, source: Source) -> int:
    if len(parts) == 1:
        return parts[0]
    total = _new(writer, replace(writer.values[parts[0]], name=name))
    writer.emit("add_n", parts, [total], {}, source)
    return total


def _new(writer: Writer, value: Value) -> int:
    writer.values.append(value)
    return len(writer.values) - 1
