"""A module as one graph: calls and fusions inlined, loops unrolled, what is known folded.

What is left are operators on tensors.  A loop is unrolled while its condition is known (its counter
is folded); a condition that depends on data is refused.  The rank number is known on every rank, so
that what is computed of it becomes `PerRank` attributes: one graph is what all ranks run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.graphs.graph import (
    MOST_NODES,
    Graph,
    Groups,
    Input,
    Node,
    Output,
    PerRank,
    Placement,
    Value,
)
from shardproof.frontends.graphs.graph import check as check_graph
from shardproof.frontends.hlo import comparators, complexes, known, layouts, metadata
from shardproof.frontends.hlo.agreed import agreed
from shardproof.frontends.hlo.complexes import Complex
from shardproof.frontends.hlo.groups import joined, sharding
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import UNREAD, Computation, Instruction, Module, Type
from shardproof.frontends.hlo.opcodes import COLLECTIVES, called, typed
from shardproof.frontends.hlo.semantics import starts

#: A tensor of the graph by its number, a known one, two parts, or a tuple of these.
Item: TypeAlias = "int | Known | Complex | tuple[Item, ...]"

MOST_CALLS = 64
MOST_ROUNDS = 1 << 16
_GIVEN = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id"})
#: Operators that may have several results.
SEVERAL = frozenset({"topk", "sort", "reduce"})
#: Custom calls that hand on their operand: they carry annotations.
IDENTITIES = frozenset({"Sharding", "xla.sdy.FuncResultSharding"})


def graph(module: Module) -> Graph:
    """The graph that every device of the module runs; raises `InvalidInput` or `Unsupported`, with
    the line.  Example: a ``while`` whose counter runs from 0 to 3 is its body, three times."""
    if module.partitions > 1 and module.replicas > 1:
        raise Unsupported(
            f"{module.replicas} replicas of {module.partitions} partitions (either must be 1)"
        )
    inlined = _Inliner(module).run()
    check_graph(inlined, module.name)
    return inlined


class _Inliner:
    """What has been emitted so far of a module's graph."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.devices = module.partitions * module.replicas
        self.values: list[Value] = []
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.constants: dict[int, tuple[Known, int]] = {}

    def run(self) -> Graph:
        entry = self.module.computations[self.module.entry]
        parameters = sorted(
            (i for i in entry.instructions if i.opcode == "parameter"), key=lambda i: i.number
        )
        if [p.number for p in parameters] != list(range(len(parameters))):
            raise InvalidInput("parameters are not numbered from 0 on", entry.name)
        given: list[Item] = []
        names = metadata.names(parameters)
        for parameter, name in zip(parameters, names, strict=True):
            if parameter.type.parts is not None:
                raise Unsupported(f"parameter {parameter.name} is a tuple")
            value, item = self.parameter(parameter)
            lies = self.placed(parameter.attrs.get("sharding"), value)
            self.inputs.append(Input(value, name, lies))
            given.append(item)
        root = self.computation(entry, given, "", ())
        results = root if isinstance(root, tuple) else (root,)
        outputs = []
        for number, item in enumerate(results):
            if isinstance(item, tuple):
                raise Unsupported("a result that is a tuple of tuples")
            value = self.tensor(item)
            own = self.placed(self.module.results.get(number), value)
            outputs.append(Output(value, f"result[{number}]", own))
        return Graph(
            self.module.dialect,
            tuple(self.values),
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(outputs),
            self.devices,
            notes=tuple(n for key, n in self.module.header.items() if key == "manual"),
        )

    def placed(self, text: str | None, value: int) -> Placement | None:
        """As a sharding of a partitioned module states it."""
        if text is None or self.devices == 1:
            return None
        return sharding(text, self.values[value].shape, self.devices, local=True)

    # -- values -----------------------------------------------------------------------------

    def parameter(self, i: Instruction) -> tuple[int, Item]:
        """The value of an input, and what is read of it: of numbers that are not read, nothing."""
        plain = i.type.dtype not in UNREAD and not complexes.is_complex(i.type.dtype)
        self.values.append(Value(i.name, i.type.shape, i.type.dtype if plain else "float32"))
        value = len(self.values) - 1
        return value, value if plain else self.refused(i, [value], "", _unread(i.type.dtype))

    def tensor(self, item: Item) -> int:
        """The value number of an item; a known one becomes a constant node once."""
        if isinstance(item, tuple):
            raise InvalidInput("a tuple where a tensor is expected")
        if isinstance(item, int):
            return item
        if isinstance(item, Complex):
            parts = [item.real, item.imaginary]
            i = Instruction("complex", "complex", Type(self.shape(item), self.dtype(item)), ())
            return self.tensor(self.refused(i, parts, "", _unread(self.dtype(item))))
        if id(item) not in self.constants:
            self.values.append(Value("constant", item.shape, item.dtype))
            number = len(self.values) - 1
            self.node(Node(f"constant.{number}", "constant", (), (number,), {"value": item}))
            self.constants[id(item)] = (item, number)
        return self.constants[id(item)][1]

    def node(self, node: Node) -> None:
        if len(self.nodes) >= MOST_NODES:
            raise InvalidInput(f"more than {MOST_NODES} operators")
        self.nodes.append(node)

    # -- computations -----------------------------------------------------------------------

    def computation(
        self, computation: Computation, given: Sequence[Item], prefix: str, stack: tuple[str, ...]
    ) -> Item:
        """The root of a computation whose parameters are ``given``."""
        if computation.name in stack or len(stack) > MOST_CALLS:
            raise InvalidInput(
                f"{computation.name} calls itself, or calls are deeper than {MOST_CALLS}"
            )
        stack = (*stack, computation.name)
        items: dict[str, Item] = {}
        for instruction in computation.instructions:
            try:
                items[instruction.name] = self.instruction(instruction, items, given, prefix, stack)
            except InvalidInput as error:
                if error.where:
                    raise
                raise error.within(f"line {instruction.line}") from None
            except Unsupported as error:
                operands = [items[name] for name in instruction.operands]
                items[instruction.name] = self.refused(instruction, operands, prefix, str(error))
        return items[computation.root]

    def instruction(
        self,
        i: Instruction,
        items: Mapping[str, Item],
        given: Sequence[Item],
        prefix: str,
        stack: tuple[str, ...],
    ) -> Item:
        attrs = typed(i)
        operands = [items[name] for name in i.operands]
        if i.opcode in _GIVEN:
            return self.given(i, attrs, given)
        match i.opcode:
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                inner = operands[0]
                if not isinstance(inner, tuple) or not 0 <= i.number < len(inner):
                    raise InvalidInput(f"element {i.number} of what is no such tuple")
                return inner[i.number]
            case "call" | "fusion":
                name = attrs.get("to_apply") or attrs.get("calls") or ""
                return self.computation(self.named(name), operands, f"{prefix}{i.name}/", stack)
            case "while":
                return self.loop(i, attrs, operands[0], prefix, stack)
            case "conditional":
                return self.choice(i, attrs, operands, prefix, stack)
            case "opt-barrier" | "copy":
                return operands[0]
            case "bitcast":
                return self.bitcast(i, attrs, operands[0], prefix)
            case "custom-call":
                return self.custom(i, attrs, operands, prefix)
        return self.operator(i, attrs, operands, prefix)

    def given(self, i: Instruction, attrs: Mapping[str, Any], given: Sequence[Item]) -> Item:
        """What depends on no operand."""
        match i.opcode:
            case "parameter":
                if not 0 <= i.number < len(given):
                    raise InvalidInput(f"parameter {i.number} of {len(given)}")
                return given[i.number]
            case "iota":
                self.readable(i, ())
                return known.iota(i.type, attrs["iota_dimension"])
            case "constant":
                self.readable(i, ())
                assert i.literal is not None
                if complexes.is_complex(i.type.dtype):
                    return complexes.constant(i.literal, i.type)
                return known.constant(i.literal, i.type)
        if i.type.dtype not in ("uint32", "int32", "uint64", "int64") or i.type.shape:
            raise InvalidInput(f"{i.opcode} of type {i.type}, expected an integer")
        own = self.module.partitions if i.opcode == "partition-id" else self.module.replicas
        return known.ranks(range(self.devices) if own > 1 else [0], i.type)

    def refused(self, i: Instruction, operands: Sequence[Item], prefix: str, reason: str) -> Item:
        """An operator that is not understood: a node that says so, with results of its types."""
        given = [self.tensor(x) for item in operands for x in _flat(item)]
        results = self.results(i, prefix)
        attrs = {"refused": reason}
        name, source = f"{prefix}{i.name}", metadata.source(i, self.module.frames)
        self.node(Node(name, i.opcode, tuple(given), results, attrs, source=source))
        return _shaped(i.type, iter(results))

    def named(self, name: str) -> Computation:
        if name not in self.module.computations:
            raise InvalidInput(f"computation {name} does not exist")
        return self.module.computations[name]

    def loop(
        self,
        i: Instruction,
        attrs: Mapping[str, Any],
        state: Item,
        prefix: str,
        stack: tuple[str, ...],
    ) -> Item:
        """A loop, unrolled while its condition is known."""
        condition, body = self.named(attrs.get("condition", "")), self.named(attrs.get("body", ""))
        for number in range(MOST_ROUNDS):
            inner = f"{prefix}{i.name}[{number}]/"
            goes_on = self.computation(condition, [state], inner, stack)
            going = goes_on.number() if isinstance(goes_on, Known) else None
            if going is None:
                raise Unsupported(f"while {i.name}, whose condition is not constant")
            if not going:
                return state
            state = self.computation(body, [state], inner, stack)
        raise Unsupported(f"while {i.name}, which has more than {MOST_ROUNDS} rounds")

    # -- operators --------------------------------------------------------------------------

    def bitcast(self, i: Instruction, attrs: Mapping[str, str], x: Item, prefix: str) -> Item:
        """The same bytes in another layout: see `layouts`."""
        for opcode, type, own in layouts.moves(self.shape(x), self.dtype(x), i.type, attrs):
            x = self.operator(replace(i, opcode=opcode, type=type), dict(own), [x], prefix)
        return x

    def operator(
        self, i: Instruction, attrs: dict[str, Any], operands: Sequence[Item], prefix: str
    ) -> Item:
        if any(isinstance(x, tuple) for x in operands):
            raise Unsupported(f"operator {i.opcode} of a tuple")
        if i.type.parts is not None and i.opcode in COLLECTIVES:
            return self.split(i, attrs, operands, prefix)
        if i.type.parts is not None and i.opcode not in SEVERAL:
            raise Unsupported(f"{called(i.opcode, attrs)} with several results")
        self.readable(i, operands)
        if i.opcode in ("convert", "bitcast-convert"):
            attrs["dtype"] = i.type.dtype
        if i.opcode == "sort":
            attrs["key"], attrs["falling"] = comparators.order(self.named(attrs.pop("to_apply")))
        elif i.opcode == "select-and-scatter":
            attrs["select"] = comparators.selected(self.named(attrs["select"]))
            attrs["scatter"] = comparators.combined(self.named(attrs["scatter"]))
        elif i.opcode == "reduce" and i.type.parts is not None:
            attrs["to_apply"] = comparators.extreme(self.named(attrs["to_apply"]))
        elif "to_apply" in attrs:
            body = self.named(attrs["to_apply"])
            attrs["to_apply"] = comparators.combined(body, i.opcode == "scatter")
        return self.resolved(i, attrs, operands, prefix)

    def resolved(
        self, i: Instruction, attrs: dict[str, Any], operands: Sequence[Item], prefix: str
    ) -> Item:
        """An operator whose attributes say all of it: reductions are operators by their names."""
        if complexes.is_complex(i.type.dtype) or any(isinstance(x, Complex) for x in operands):

            def emit(opcode: str, type: Type, xs: Sequence[Any], own: Mapping[str, Any]) -> Item:
                more = {"dtype": type.dtype} if opcode == "convert" else {}
                part = replace(i, opcode=opcode, type=type)
                return self.resolved(part, {**own, **more}, xs, prefix)

            made: Item = complexes.apply(i.opcode, attrs, operands, i.type, emit)
            return made
        constants = [x for x in operands if isinstance(x, Known)]
        if i.opcode not in (*COLLECTIVES, *SEVERAL) and len(constants) == len(operands):
            folded = known.fold(i.opcode, attrs, constants, i.type)
            if folded is not None:
                return folded
        if i.opcode == "select" and len(operands) == 3 and isinstance(operands[0], Known):
            chosen = operands[0].number()
            if chosen is not None:
                return operands[1] if chosen else operands[2]
        groups, linked = self.joined(i, attrs)
        tensors = self.starts(i, attrs, operands)
        given = tuple(self.tensor(x) for x in tensors)
        results = self.results(i, prefix)
        name, source = f"{prefix}{i.name}", metadata.source(i, self.module.frames)
        self.node(Node(name, i.opcode, given, results, attrs, groups, linked, source))
        return _shaped(i.type, iter(results))

    def results(self, i: Instruction, prefix: str) -> tuple[int, ...]:
        """New values for what an instruction gives."""
        first = len(self.values)
        self.values += [Value(f"{prefix}{i.name}", p.shape, p.dtype) for p in _parts(i.type)]
        return tuple(range(first, len(self.values)))

    def split(
        self, i: Instruction, attrs: Mapping[str, Any], operands: Sequence[Item], prefix: str
    ) -> Item:
        """A collective of several tensors, one after the other."""
        parts = i.type.parts or ()
        if len(parts) != len(operands):
            raise InvalidInput(f"{len(parts)} results of {len(operands)} operands")
        return tuple(
            self.operator(replace(i, type=part), dict(attrs), [x], prefix)
            for part, x in zip(parts, operands, strict=True)
        )

    def custom(
        self, i: Instruction, attrs: dict[str, Any], operands: Sequence[Item], prefix: str
    ) -> Item:
        """A call of what XLA has itself: an annotation, or TopK, the largest in falling order."""
        target = attrs.get("custom_call_target", "").strip('"')
        if target in IDENTITIES and len(operands) == 1:
            return operands[0]
        if target != "TopK" or i.type.parts is None:
            return self.operator(i, attrs, operands, prefix)
        compared = self.named(attrs.get("called_computations", "").strip("{} %"))
        if comparators.order(compared) != (0, True):
            raise Unsupported("TopK by another comparison than of the largest")
        attrs = {"k": _parts(i.type)[0].shape[-1], "largest": "true"}
        return self.operator(replace(i, opcode="topk"), attrs, operands, prefix)

    def choice(
        self,
        i: Instruction,
        attrs: Mapping[str, Any],
        operands: Sequence[Item],
        prefix: str,
        stack: tuple[str, ...],
    ) -> Item:
        """One of several computations: the one that a known number chooses; otherwise all of them,
        and a choice between what they give; where some join ranks, all must choose alike."""
        listed = attrs.get("branch_computations", "")
        names = re.findall(r"%?([\w.$-]+)", listed) if listed else []
        if not names:
            names = [attrs.get("false_computation", ""), attrs.get("true_computation", "")]
        chosen, *given = operands
        by_predicate = not listed
        if by_predicate:
            given = given[::-1]
        if len(given) != len(names):
            raise InvalidInput(f"{len(names)} computations for {len(given)} operands")
        number = chosen.number() if isinstance(chosen, Known) else None
        if number is not None:
            at = int(number) if 0 <= int(number) < len(names) else len(names) - 1
            inner = f"{prefix}{i.name}/"
            return self.computation(self.named(names[at]), [given[at]], inner, stack)
        first = len(self.nodes)
        results = [
            self.computation(self.named(name), [x], f"{prefix}{i.name}[{n}]/", stack)
            for n, (name, x) in enumerate(zip(names, given, strict=True))
        ]
        beside = self.nodes, self.inputs, self.values, self.devices
        if any(n.groups or n.pairs for n in self.nodes[first:]) and not agreed(chosen, *beside):
            raise Unsupported("a choice of computations of which some join ranks")
        result = results[-1]
        for n in reversed(range(len(names) - 1)):
            holds = self.equal(chosen, n, i, prefix)
            result = self.either(holds, results[n], result, i, prefix)
        return result

    def equal(self, chosen: Item, number: int, i: Instruction, prefix: str) -> Item:
        """Whether the number of a conditional is this one."""
        scalar = Type((), "bool")
        dtype = self.dtype(chosen)
        if dtype == "bool":
            made = replace(i, opcode="not", type=scalar)
            return self.operator(made, {}, [chosen], f"{prefix}is {number} ")
        other = known.constant(np.array(number, dtype=dtype), Type((), dtype))
        made = replace(i, opcode="compare", type=scalar)
        return self.operator(made, {"direction": "EQ"}, [chosen, other], f"{prefix}is {number} ")

    def either(self, holds: Item, x: Item, y: Item, i: Instruction, prefix: str) -> Item:
        """``x`` where the scalar predicate holds, else ``y``, of tensors and of tuples alike."""
        if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y):
            pairs = zip(x, y, strict=True)
            return tuple(self.either(holds, a, b, i, prefix) for a, b in pairs)
        if isinstance(x, tuple) or isinstance(y, tuple) or self.shape(x) != self.shape(y):
            raise InvalidInput("computations of one choice give other types")
        if x is y:
            return x
        type = Type(self.shape(x), self.dtype(x))
        mask = replace(i, opcode="broadcast", type=Type(type.shape, "bool"))
        wide = self.operator(mask, {"dimensions": ()}, [holds], f"{prefix}where ")
        made = replace(i, opcode="select", type=type)
        return self.operator(made, {}, [wide, x, y], prefix)

    def starts(
        self, i: Instruction, attrs: dict[str, Any], operands: Sequence[Item]
    ) -> Sequence[Item]:
        """Known starts of dynamic slices become an attribute, already clamped."""
        first = {"dynamic-slice": 1, "dynamic-update-slice": 2}.get(i.opcode)
        if first is None or not all(isinstance(x, Known) for x in operands[first:]):
            return operands
        source, part = operands[0], operands[first - 1]
        full = source.shape if isinstance(source, Known) else self.values[self.number(source)].shape
        sizes = i.type.shape if first == 1 else self.shape(part)
        if not len(full) == len(sizes) == len(operands) - first:
            raise InvalidInput(f"{i.opcode} {i.name} of {full} has {len(operands) - first} starts")
        table = [
            starts(
                [x.at(rank).item() for x in operands[first:] if isinstance(x, Known)], full, sizes
            )
            for rank in range(self.devices)
        ]
        columns = [tuple(row[d] for row in table) for d in range(len(full))]
        attrs["starts"] = tuple(c[0] if len(set(c)) == 1 else PerRank(c) for c in columns)
        return operands[:first]

    def number(self, item: Item) -> int:
        if not isinstance(item, int):
            raise InvalidInput("a tuple where a tensor is expected")
        return item

    def readable(self, i: Instruction, operands: Sequence[Item]) -> None:
        """Raises `Unsupported` for numbers that are not read, here or where they come from."""
        for dtype in (*(p.dtype for p in _parts(i.type)), *map(self.dtype, operands)):
            if dtype in UNREAD:
                raise Unsupported(_unread(dtype))
        for x in operands:
            if isinstance(x, int | Known) and complexes.is_complex(self.dtype(x)):
                raise Unsupported("complex numbers that are not understood")

    def shape(self, item: Item) -> tuple[int, ...]:
        if isinstance(item, Complex):
            return self.shape(item.real)
        return item.shape if isinstance(item, Known) else self.values[self.number(item)].shape

    def dtype(self, item: Item) -> str:
        if isinstance(item, Complex):
            return complexes.joined_type(self.dtype(item.real))
        return item.dtype if isinstance(item, Known) else self.values[self.number(item)].dtype

    def joined(
        self, i: Instruction, attrs: dict[str, Any]
    ) -> tuple[Groups, tuple[tuple[int, int], ...]]:
        """Groups of a collective, or the pairs of a permutation, as device numbers."""
        if i.opcode not in COLLECTIVES:
            return (), ()
        if self.devices == 1:
            raise Unsupported(f"{i.opcode} in a module for one device")
        partitions = self.module.partitions > 1
        return joined(i.opcode, attrs, "channel_id" in i.attrs, partitions, self.devices)


def _unread(dtype: str) -> str:
    return f"element type {dtype}, whose numbers are not read"


def _flat(item: Item) -> list[Item]:
    """The tensors of an item."""
    if isinstance(item, Complex):
        return [item.real, item.imaginary]
    return [x for part in item for x in _flat(part)] if isinstance(item, tuple) else [item]


def _parts(type: Type) -> list[Type]:
    if type.parts is None:
        return [type]
    return [x for part in type.parts for x in _parts(part)]


def _shaped(type: Type, values: Iterator[int]) -> Item:
    """Values as the tuple that a type says."""
    if type.parts is None:
        return next(values)
    return tuple(_shaped(part, values) for part in type.parts)
