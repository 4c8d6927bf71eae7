"""StableHLO text, as JAX's ``lower().as_text()`` prints it, in HLO's words.

A program before XLA's partitioner: annotations of shardings mean nothing for values.  What it says
is what one device computes, but for manual computations (shard_map), which are the programs of all
ranks (`manual`).  A program that joins ranks without one is what every rank runs.  One statement is
one line, but for loops and operators with regions.  For example::

    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [1] : (...) -> T

becomes ``2 = f32[4] reduce(1, cst), dimensions={1}, to_apply=add.computation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.hlo import manual
from shardproof.frontends.hlo.blocks import Block, Scope
from shardproof.frontends.hlo.module import UNREAD, Array, Computation, Instruction, Module, Type
from shardproof.frontends.hlo.opcodes import ELEMENTWISE
from shardproof.frontends.hlo.stable_words import (
    RENAMED,
    VALUE,
    attributes,
    bare,
    close,
    decomposition,
    dense,
    exchanged,
    signature,
    tensor,
    types,
)
from shardproof.frontends.hlo.text import MOST_BYTES, MOST_DEPTH, MOST_LINES

_STATEMENT = re.compile(
    r"(?:(%[\w.]+(?:, %[\w.]+)*)(?::(\d+))? = )?\"?((?:[a-z]+\.)?[a-z_][\w\-]*)\"?(.*)"
)
_FUNCTION = re.compile(r"func\.func (?:public |private )?@([\w.$-]+)\((.*)")
#: A value with its type, of a head of a function or region.
_GIVEN = re.compile(r"(%[\w.]+): (tensor<(?:[^<>]|<[^<>]*>)*>)")
#: Operators whose regions are read; those of others are passed over.
_REGIONS = frozenset(
    [
        *("all_reduce", "reduce_scatter", "reduce", "reduce_window", "scatter", "sort"),
        *("select_and_scatter", "case", "if"),
    ]
)
#: Operators whose regions may read what is given outside of them.
_BRANCHES = frozenset({"case", "if"})
#: Annotations, which hand on their operand.
_ANNOTATIONS = frozenset({"sdy.sharding_constraint", "sdy.propagation_barrier"})
_CALLS = frozenset({"call", "func.call", "stablehlo.custom_call"})
_RETURNS = ("stablehlo.return", "sdy.return")


def parse(text: str) -> Module:
    """The module of a StableHLO text; raises `UnreadablePlan` with the line where text is none that
    we know.

    Example: ``stablehlo.reduce ... applies stablehlo.add`` in the function ``main`` is an
    instruction ``reduce`` of the computation ``main`` and a computation ``add.computation``.
    """
    lines = text.split("\n")
    if len(text) > MOST_BYTES or len(lines) > MOST_LINES:
        raise UnreadablePlan(f"{len(text)} characters in {len(lines)} lines are too many")
    reader = _Reader(lines)
    try:
        return reader.module()
    except InvalidInput as error:
        raise UnreadablePlan(str(error), f"line {reader.at}") from None
    except Unsupported as error:
        raise UnreadablePlan(f"not supported: {error}", f"line {reader.at}") from None


class _Reader:
    """Lines one after another; ``at`` is the number of the one that was read last."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.computations: dict[str, Computation] = {}
        self.depth = 0
        self.scope: Scope | None = None
        self.meshes: dict[str, manual.Mesh] = {}
        self.bodies: dict[str, manual.Mesh] = {}
        self.results: dict[int, str] = {}

    def next(self) -> str:
        while self.at < len(self.lines):
            self.at += 1
            line = bare(self.lines[self.at - 1])
            if line and not line.startswith(("#loc", "//")):
                return line
        raise InvalidInput("the text ends early")

    # -- modules and functions --------------------------------------------------------------

    def module(self) -> Module:
        head = self.next()
        match = re.fullmatch(r"module(?: @([\w.$-]+))?(?: attributes \{(.*)\})? \{", head)
        if match is None:
            raise InvalidInput("expected module @NAME {")
        while (line := self.next()) != "}":
            if line.startswith("sdy.mesh "):
                name, made = manual.mesh(line)
                self.meshes[name] = made
                continue
            function = _FUNCTION.fullmatch(line)
            if function is None:
                raise InvalidInput(f"expected a function, found {line[:60]!r}")
            self.function(function.group(1), function.group(2))
        if "main" not in self.computations:
            raise InvalidInput("no function @main")
        counts = re.findall(r"mhlo\.num_(partitions|replicas) = (\d{1,9})", match.group(2) or "")
        title, results = match.group(1) or "module", self.results
        whole = Module(title, "stablehlo", self.computations, "main", results=results)
        return manual.on_devices(whole, {kind: int(n) for kind, n in counts}, self.bodies)

    def function(self, name: str, rest: str) -> None:
        if not rest.endswith("{"):
            raise InvalidInput(f"the head of @{name} goes on in another line")
        own = rest[: close(rest)]
        given = self.parameters(own)
        if name in self.computations:
            raise InvalidInput(f"@{name} is given twice")
        self.computations[name] = Computation(name, (), "")
        block = self.block(given, ("return", "func.return"), gives=name == "main")
        self.computations[name] = block.computation(name, self.at)
        if self.next() != "}":
            raise InvalidInput(f"@{name} goes on after its return")

    def parameters(self, head: str) -> list[Instruction]:
        """What a function or a region is given, in order: tensors alone."""
        names = _GIVEN.findall(head)
        if len(names) != len(re.findall(r"%[\w.]+: ", head)):
            raise InvalidInput("a parameter that is no tensor of fixed size")
        return [
            Instruction(n[1:], "parameter", tensor(t), (), {}, None, i, self.at)
            for i, (n, t) in enumerate(names)
        ]

    # -- blocks -----------------------------------------------------------------------------

    def block(
        self,
        given: Sequence[Instruction],
        returns: Sequence[str],
        *,
        sees: bool = False,
        gives: bool = False,
    ) -> Block:
        """Statements up to the return; ``sees``: what is given around it may be read; ``gives``:
        what it returns of manual computations are the ranks' parts."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise InvalidInput(f"regions are nested deeper than {MOST_DEPTH} times")
        around = self.scope
        scope = Scope({i.name: i.type for i in given}, around if sees else None)
        self.scope = scope
        instructions = list(given)
        while True:
            line = self.next()
            word = line.split(" ", 1)[0]
            if word in returns:
                values = tuple(v[1:] for v in re.findall(VALUE, line.split(" : ")[0]))
                if gives:
                    values = self.parts(scope, values)
                for name in values:
                    instructions += self.before(scope, name, "a return of what is not given")
                self.depth -= 1
                self.scope = around
                return Block(tuple(instructions), values, scope)
            for instruction in self.statement(line):
                for name in instruction.operands:
                    missing = f"%{name} is read before it is given"
                    instructions += self.before(scope, name, missing)
                if instruction.name in scope.types:
                    raise InvalidInput(f"%{instruction.name} is given twice")
                scope.types[instruction.name] = instruction.type
                instructions.append(instruction)

    def parts(self, scope: Scope, values: Sequence[str]) -> tuple[str, ...]:
        """Values that are returned; of results of manual computations, what every rank has."""
        own = []
        for n, name in enumerate(values):
            part = scope.parts.get(name)
            if part is not None:
                self.results[n] = manual.spelt(part[2], part[1])
            own.append(name if part is None else part[0])
        return tuple(own)

    def before(self, scope: Scope, name: str, missing: str) -> Sequence[Instruction]:
        """What has to stand before a value is read; raises `InvalidInput`, with the text
        ``missing``, where there is none."""
        if name not in scope.types and name not in scope.captured:
            type = scope.type(name)
            if type is None:
                raise InvalidInput(missing)
            scope.captured[name] = type
        return scope.waiting.pop(name, ())

    # -- statements -------------------------------------------------------------------------

    def statement(self, line: str) -> Iterator[Instruction]:
        match = _STATEMENT.fullmatch(line)
        if match is not None and match.group(3) in _CALLS and line.endswith(" -> ()"):
            return  # It gives no value that anything could depend on.
        if match is None or (match.group(1) is None and match.group(3) != "sdy.manual_computation"):
            raise InvalidInput(f"expected %NAME = OPERATOR, found {line[:60]!r}")
        result, count, operator, rest = match.groups()
        names = [n[1:] for n in result.split(", ")] if result else []
        name = names[0] if len(names) == 1 else f"{names[0] if names else self.at}.all"
        if len(names) == 1 and count is not None:
            names = [f"{name}#{n}" for n in range(int(count))]
        word = operator.rpartition(".")[2]
        if operator == "stablehlo.while":
            yield from self.loop(name, rest)
        elif operator == "sdy.manual_computation":
            yield from self.mapped(name, names, rest)
        elif word in _REGIONS and rest.endswith("({"):
            rest, regions = self.regions(rest, sees=word in _BRANCHES)
            yield from self.of_regions(name, names, word, rest, regions)
        else:
            region: Sequence[str] = ()
            if rest.endswith("({"):
                rest = self.behind(rest)
            elif operator == "stablehlo.reduce" and " applies " not in rest:
                rest, region = self.reducer(rest)
            body, written = signature(rest)
            yield from self.operator(name, names, operator, body, written, region)

    def operator(
        self,
        name: str,
        names: Sequence[str],
        operator: str,
        body: str,
        written: str,
        regions: Sequence[str] = (),
    ) -> Iterator[Instruction]:
        """An operator, and its results by names of their own."""
        if operator == "stablehlo.all_to_all":
            yield from self.exchange(name, body, written)
            return
        made = self.instruction(name, operator, body, written, regions)
        if list(names) == [name]:
            yield made
            return
        parts = tuple(types(written.split("->")[-1]))
        if len(parts) != len(names):
            raise InvalidInput(f"{len(names)} results of {len(parts)} types")
        opcode = "tuple" if made.opcode == "opt-barrier" else made.opcode
        yield replace(made, opcode=opcode, type=Type(parts=parts))
        yield from self.elements(name, names, parts)

    def elements(
        self, name: str, names: Iterable[str], parts: Sequence[Type]
    ) -> Iterator[Instruction]:
        """The first parts of a tuple by names of their own."""
        for n, (own, part) in enumerate(zip(names, parts, strict=False)):
            yield Instruction(own, "get-tuple-element", part, (name,), number=n, line=self.at)

    def instruction(
        self, name: str, operator: str, body: str, written: str, regions: Sequence[str]
    ) -> Instruction:
        dialect, _, word = operator.rpartition(".")
        given, _, made = written.rpartition("->")
        type = (types(made) or [Type(parts=())])[-1]
        operands = tuple(v[1:] for v in re.findall(VALUE, body))
        if word == "reduce" and " init: " in body:
            operands = operands[::2] + operands[1::2]
        opcode = RENAMED.get(word, word.replace("_", "-"))
        attrs: dict[str, str] = {}
        literal: Array | None = None
        if word == "call" and dialect in ("", "func"):
            attrs = {"to_apply": body.split("(")[0].strip().removeprefix("@")}
        elif operator == "stablehlo.composite":
            opcode, attrs = "call", decomposition(body)
        elif dialect == "chlo" and word == "square":
            opcode, operands = "multiply", operands * 2
        elif operator in _ANNOTATIONS:
            opcode, operands = "copy", operands[:1]
        elif dialect not in ("stablehlo", "chlo"):
            opcode = operator
        elif word == "convert" and types(given or made)[:1] == [type]:
            opcode = "copy"
        elif word == "constant":
            literal = None if type.dtype in UNREAD else dense(body, type)
        elif opcode not in ELEMENTWISE or word == "convert":
            if " applies " in body:
                regions = [self.applied(body, type.dtype)]
            opcode, attrs = attributes(word, body, types(given), regions)
        return Instruction(name, opcode, type, operands, attrs, literal, -1, self.at)

    def applied(self, body: str, dtype: str) -> str:
        """The computation that ``applies stablehlo.add`` names."""
        match = re.search(r"applies stablehlo\.([a-z_]+) across", body)
        if match is None:
            return "a region"
        word = match.group(1)
        name = f"{word}.{dtype}"
        number = Type((), dtype)
        parameters = [
            Instruction(n, "parameter", number, (), {}, None, i, self.at)
            for i, n in enumerate(("x", "y"))
        ]
        root = Instruction("r", word.replace("_", "-"), number, ("x", "y"), line=self.at)
        self.computations.setdefault(name, Computation(name, (*parameters, root), "r"))
        return name

    def exchange(self, name: str, body: str, written: str) -> Iterator[Instruction]:
        """An all_to_all: HLO cuts and joins along one dimension, what arrives is moved behind."""
        before, _, behind = written.rpartition("->")
        if len(types(before)) != 1 or len(types(behind)) != 1:
            raise InvalidInput("an all_to_all of other than one tensor")
        (given, result) = (*types(before), *types(behind))
        split, count, concat = exchanged(body, given)
        made = self.instruction(name, "stablehlo.all_to_all", body, written, ())
        if split == concat:
            yield replace(made, type=result)
            return
        shape = list(given.shape)
        shape[split : split + 1] = [count, shape[split] // count]
        cut, arrived = Type(tuple(shape), given.dtype), f"{name}.arrived"
        order = [d for d in range(len(shape)) if d != split]
        order.insert(concat, split)
        turned = Type(tuple(shape[d] for d in order), given.dtype)
        yield Instruction(f"{name}.cut", "reshape", cut, made.operands, line=self.at)
        yield replace(made, name=arrived, type=cut, operands=(f"{name}.cut",))
        dims = {"dimensions": "{" + ",".join(map(str, order)) + "}"}
        yield Instruction(f"{name}.turned", "transpose", turned, (arrived,), dims, line=self.at)
        yield Instruction(name, "reshape", result, (f"{name}.turned",), line=self.at)

    # -- operators with regions -------------------------------------------------------------

    def regions(self, rest: str, *, sees: bool) -> tuple[str, list[tuple[str, Block]]]:
        """The regions of an operator, by names, and what stands before and behind them."""
        regions: list[tuple[str, Block]] = []
        while True:
            first, head = self.at, self.next()
            given = self.parameters(head) if head.startswith("^bb0(") else []
            if not given:
                self.at = first
            regions.append((f"region.{self.at}", self.block(given, _RETURNS, sees=sees)))
            end = self.next()
            if end.startswith("})"):
                return rest[: -len("({")] + end[len("})") :], regions
            if end != "}, {":
                raise InvalidInput("a region that goes on after its return")

    def of_regions(
        self,
        name: str,
        names: Sequence[str],
        word: str,
        rest: str,
        regions: Sequence[tuple[str, Block]],
    ) -> Iterator[Instruction]:
        """An operator with regions; what branches read from around them is handed to each."""
        body, written = signature(rest)
        operands = []
        for region, block in regions:
            state: list[Instruction] = []
            if word in _BRANCHES:
                state = self.state(block.scope.captured)
                operands.append(f"{region}.given")
                all_of = tuple(block.scope.captured)
                yield Instruction(operands[-1], "tuple", state[0].type, all_of, line=self.at)
            self.computations[region] = block.computation(region, self.at, state)
        body += "".join(f", %{operand}" for operand in operands)
        own = [region for region, _ in regions]
        yield from self.operator(name, names, f"stablehlo.{word}", body, written, own)

    def state(self, parts: Mapping[str, Type]) -> list[Instruction]:
        """The parameter of a computation that is a tuple, and its parts by their names."""
        whole = Type(parts=tuple(parts.values()))
        given = Instruction("all given", "parameter", whole, (), {}, None, 0, self.at)
        return [given, *self.elements(given.name, parts, tuple(parts.values()))]

    def behind(self, rest: str) -> str:
        """An operator whose regions are not read, without them."""
        depth = 1
        while True:
            line = self.next()
            if depth == 1 and line.startswith("}, {"):
                continue
            depth -= line.startswith("}")
            if not depth:
                return rest[: -len("({")] + line[len("})") :]
            depth += line.endswith("{")

    def reducer(self, rest: str) -> tuple[str, tuple[str]]:
        """The computation of a reduction of several tensors: HLO has the operands of the left side
        first, then those of the right side."""
        head = self.next()
        if not head.startswith("reducer("):
            raise InvalidInput("a reduction without its computation")
        pairs = self.parameters(head)
        order = [*range(0, len(pairs), 2), *range(1, len(pairs), 2)]
        given = [replace(pairs[at], number=n) for n, at in enumerate(order)]
        name = f"region.{self.at}"
        self.computations[name] = self.block(given, _RETURNS).computation(name, self.at)
        if self.next() != "}":
            raise InvalidInput("a region that goes on after its return")
        return rest, (name,)

    def loop(self, name: str, rest: str) -> Iterator[Instruction]:
        """``stablehlo.while(%a = %x, ...) : types cond { ... } do { ... }``; what it reads from
        around it is handed from round to round."""
        body, written = signature(rest)
        pairs = re.findall(rf"(%[\w.]+) = ({VALUE})", body)
        parts = tuple(types(written))
        if len(pairs) != len(parts) or not pairs:
            raise InvalidInput("a loop with another number of types")
        carried = {inner[1:]: part for (inner, _), part in zip(pairs, parts, strict=True)}
        blocks: list[Block] = []
        for head in ("cond {", "} do {"):
            if self.next() != head:
                raise InvalidInput(f"expected {head!r}")
            given = [Instruction(n, "parameter", t, ()) for n, t in carried.items()]
            made = self.block(given, _RETURNS, sees=True)
            blocks.append(replace(made, instructions=made.instructions[len(given) :]))
        if self.next() != "}":
            raise InvalidInput("a loop that goes on after its return")
        more = {n: t for block in blocks for n, t in block.scope.captured.items()}
        state = self.state({**carried, **more})
        test, again = f"condition.{self.at}", f"body.{self.at}"
        self.computations[test] = blocks[0].computation(test, self.at, state)
        self.computations[again] = blocks[1].tuple(again, self.at, state, more)
        operands = (*(x[1:] for _, x in pairs), *more)
        start, loop = f"{name}.start", f"{name}.loop"
        yield Instruction(start, "tuple", state[0].type, operands, line=self.at)
        attrs = {"condition": test, "body": again}
        yield Instruction(loop, "while", state[0].type, (start,), attrs, line=self.at)
        names = [name] if len(parts) == 1 else [f"{name}#{n}" for n in range(len(parts))]
        yield from self.elements(loop, names, parts)

    # -- manual computations ----------------------------------------------------------------

    def mapped(self, name: str, names: Sequence[str], rest: str) -> Iterator[Instruction]:
        """A manual computation: operands are cut, its body runs on every rank, results are
        gathered where they are read as a whole."""
        around = self.scope
        assert around is not None
        head = manual.head(rest, self.meshes)
        given = self.parameters(head.parameters)
        body = f"manual.{self.at}"
        block = self.block(given, _RETURNS)
        self.bodies[body] = head.mesh
        self.computations[body] = block.tuple(body, self.at)
        end = re.fullmatch(r"\} : (\(.*\)) -> (.*)", self.next())
        if end is None:
            raise InvalidInput("a manual computation that goes on after its return")
        ins, outs = types(end.group(1)), types(end.group(2))
        counts = (len(head.operands), len(given), len(head.outs), len(block.values))
        if counts != (len(ins), len(ins), len(outs), len(outs)) or len(outs) != len(names):
            raise InvalidInput("a manual computation with another number of types")
        parts = [f"{_OWN}{self.at}.{n}" for n in range(len(ins))]
        for n, (own, operand, whole) in enumerate(zip(parts, head.operands, ins, strict=True)):
            part = manual.divided(whole, head.ins[n], head.mesh)
            if part != given[n].type:
                raise InvalidInput(f"{whole} is divided into {part}, not {given[n].type}")
            left = around.parts.get(operand)
            if left is not None and left[1:] == (head.mesh, head.ins[n]):
                # Gathered and cut in the same way again: what the rank has.
                yield Instruction(own, "copy", part, (left[0],), line=self.at)
            else:
                at = self.at
                yield from manual.entered(own, operand, whole, head.ins[n], head.mesh, at)
        returned = self.computations[body].instructions[-1].type
        call = f"{_OWN}{self.at}"
        yield Instruction(call, "call", returned, tuple(parts), {"to_apply": body}, line=self.at)
        results = [f"{call}.result{n}" for n in range(len(outs))]
        yield from self.elements(call, results, returned.parts or ())
        for own, result, whole, division, part in zip(
            results, names, outs, head.outs, returned.parts or (), strict=True
        ):
            if manual.divided(whole, division, head.mesh) != part:
                raise InvalidInput(f"{whole} is divided into other parts than {part}")
            around.parts[result] = (own, head.mesh, division)
            around.types[result] = whole
            around.waiting[result] = manual.left(result, own, part, division, head.mesh, self.at)


#: How names begin that are ours, around manual computations.
_OWN = "manual computation "
