"""A program of `torch.export` as the single side of a recorded step: the trace of one rank.

The program's parameters are those of the step, by name; what the user gives is the batch; buffers
and constants are the numbers that the archive has; what ``forward`` returns are outputs.  For
example, of ``forward(self, x)`` with a parameter ``w``::

    job.parameter w · job.start · job.batch x · aten.linear.default · job.output linear · job.end

A trace is what `shardproof capture` writes; from here on nothing knows where it came from.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import complexes, pt2, records, signature
from shardproof.frontends.fx.functional import functional
from shardproof.frontends.fx.records import CALL, GETITEM, Graph, Node, operand
from shardproof.frontends.fx.stored import Stored
from shardproof.frontends.fx.written import inputs_written, not_compared
from shardproof.frontends.torch import trace
from shardproof.frontends.torch.functional import OUTPUT
from shardproof.frontends.torch.trace import (
    BATCH,
    CONSTANT,
    END,
    PARAMETER,
    START,
    Arg,
    Box,
    Event,
    Items,
    Named,
    StridedTensor,
    Tensor,
    Trace,
)
from shardproof.frontends.untrusted.child import run_bounded
from shardproof.frontends.untrusted.inert import printable

_TYPES: Final = frozenset(pt2.TYPES.values())


def is_exported(path: Path) -> bool:
    """Whether a file is an archive of `torch.export`, by its content.

    Example: ``single.pt2`` is, whatever its suffix; a folder is not.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return pt2.is_archive(file.read(pt2.HEAD_BYTES))


def read(path: Path) -> Trace:
    """The program in an archive as a trace, read in a bounded child; raises `InvalidInput`.

    Example: of a linear layer ``up``: ``job.parameter up.weight``, ``job.parameter up.bias``,
    ``job.start``, ``job.batch x``, ``aten.linear.default``, ``job.output linear``, ``job.end``.
    """
    data = run_bounded("shardproof.frontends.fx.single_step:recorded", [str(path)])
    return trace.from_bytes(data)


def recorded(path: str) -> bytes:
    """As `read`, in the child.

    Example: the bytes that `trace.to_bytes` gives of the events ``job.parameter up.weight`` to
    ``job.end``.
    """
    model: list[pt2.Module] = []

    def graph(file: Path) -> Graph:
        model.append(pt2.module(file))
        return pt2.graph(model[0])

    nodes = records.read(Path(path), graph)
    try:
        nodes = functional(nodes)
        return trace.to_bytes(_Recording(nodes, model[0], Stored(Path(path))).run())
    except InvalidInput as error:
        raise error.within(printable(path, 400)) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInput(f"expected a program of torch.export: {error}", path) from None


class _Recording:
    """The events of a graph, every value a tensor with memory of its own."""

    def __init__(self, graph: Graph, model: pt2.Module, stored: Stored) -> None:
        self.graph, self.stored = graph, stored
        self.given = signature.inputs(model)
        self.returned = signature.outputs(model)
        self.declared = signature.left_names(model)
        self.tensors: list[StridedTensor] = []
        self.numbers: dict[str, int] = {}
        self.constants: dict[int, bytes] = {}
        self.sources: dict[str, int] = {"": 0}
        self.parts: dict[str, dict[int, Node]] = {}

    def run(self) -> Trace:
        marks = [self.input(node) for node in self.graph.inputs]
        for node in self.graph.nodes:
            if node.target == GETITEM and isinstance(node.args[1], int):
                whole = operand(node.args[0])
                self.parts.setdefault(whole or "", {})[node.args[1]] = node
        calls = [n for n in self.graph.nodes if n.op == CALL and n.target != GETITEM]
        events = [
            *(e for e in marks if e is not None and e.name == PARAMETER),
            Event(START),
            *(e for e in marks if e is not None and e.name != PARAMETER),
            *map(self.call, calls),
            *map(self.output, self.returned),
            Event(END),
        ]
        return Trace(
            0,
            1,
            tuple(self.tensors),
            tuple(events),
            tuple(self.sources),
            ("",),
            self.constants,
            notes=tuple(not_compared(sorted(self.left()))),
        )

    def left(self) -> set[str]:
        """The inputs that the program writes."""
        own = {*self.graph.written, *inputs_written(self.graph)}
        return {self.given[n].name if n in self.given else n for n in own}.union(self.declared)

    def tensor(self, node: Node) -> Tensor:
        """A new tensor for what a node gives; a complex one is refused."""
        if node.dtype in complexes.HALVES:
            raise InvalidInput("complex tensors are not understood here", f"node {node.name}")
        shape = tuple(node.shape or ())
        strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
        number = self.numbers[node.name] = len(self.tensors)
        self.tensors.append(StridedTensor(number, 0, shape, strides, node.dtype or ""))
        return Tensor(number)

    def input(self, node: Node) -> Event | None:
        """The mark of an input; none for one that an earlier one is, under another name."""
        if node.name not in self.given:
            raise InvalidInput("the signature does not say what it is", f"input {node.name}")
        _, kind, name = self.given[node.name]
        shape = tuple(node.shape or ())
        if kind == signature.PARAMETER:
            place = self.stored.same_as(name)
            known = (g for g in self.given.values() if g.value in self.numbers and g.kind == kind)
            tied = next((g for g in known if self.stored.same_as(g.name) == place), None)
            if tied is not None:
                self.numbers[node.name] = self.numbers[tied.value]
                return None
            box = Box(name, shape, (0,) * len(shape), shape, "same name")
            kwargs: dict[str, Arg] = {"name": name, "trainable": True}
            return Event(PARAMETER, (), kwargs, (self.tensor(node),), boxes=(box,))
        if kind == signature.USER:
            return Event(BATCH, (), {"name": name}, (self.tensor(node),))
        if not any(node.name in records.operands([n.args, n.kwargs]) for n in self.graph.nodes):
            return None
        data = self.stored.read(name, shape, node.dtype or "")
        number = len(self.constants)
        self.constants[number] = data
        return Event(CONSTANT, (), {"data": number, "whole": True}, (self.tensor(node),))

    def call(self, node: Node) -> Event:
        if node.shape is not None:
            made: tuple[Arg, ...] = (self.tensor(node),)
        else:
            parts = self.parts.get(node.name, {})
            count = max(parts, default=-1) + 1
            made = tuple(self.tensor(parts[n]) if n in parts else None for n in range(count))
        source = self.sources.setdefault(node.src or "", len(self.sources))
        args = tuple(map(self.argument, node.args))
        kwargs = {key: self.argument(value) for key, value in node.kwargs.items()}
        return Event(by_value(node.target), args, kwargs, made, source)

    def argument(self, arg: Any) -> Arg:
        name = operand(arg)
        if name is not None:
            if name not in self.numbers:
                raise InvalidInput(f"reads {printable(name, 80)}, which has no value")
            return Tensor(self.numbers[name])
        if isinstance(arg, list):
            return Items(tuple(map(self.argument, arg)))
        if isinstance(arg, str) and arg in _TYPES:
            return Named("dtype", arg)
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        raise InvalidInput(f"an argument that is not understood ({type(arg).__name__})")

    def output(self, returned: signature.Returned) -> Event:
        if returned.value not in self.numbers:
            raise InvalidInput("is given by no operator", f"output {printable(returned.name, 80)}")
        value = Tensor(self.numbers[returned.value])
        return Event(OUTPUT, (value,), {"name": returned.name})


def by_value(target: str) -> str:
    """An operator that writes its operand as the one that does not (see `written`).

    Example: "aten.relu_.default" is "aten.relu.default"; "aten.__and__.Tensor" stays.
    """
    namespace, _, rest = target.partition(".")
    base, dot, overload = rest.partition(".")
    if namespace == "aten" and base.endswith("_") and not base.endswith("__"):
        return f"{namespace}.{base.removesuffix('_')}{dot}{overload}"
    return target
