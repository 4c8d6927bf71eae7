"""StableHLO text, as JAX's ``lower().as_text()`` prints it, in HLO's words.

A program before XLA's partitioner: what it says is what one device computes; annotations of
shardings mean nothing for values.  One statement is one line, but for loops and operators with a
region.  For example::

    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [1] : (...) -> T

becomes ``2 = f32[4] reduce(1, cst), dimensions={1}, to_apply=add.computation``.  A manual
computation (shard_map) is refused by name: its ranks' program is what the partitioner writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.hlo.literals import array_type, numbers
from shardproof.frontends.hlo.module import UNREAD, Array, Computation, Instruction, Module, Type
from shardproof.frontends.hlo.opcodes import ELEMENTWISE
from shardproof.frontends.hlo.text import MOST_BYTES, MOST_DEPTH, MOST_LINES

_VALUE = r"%[\w.]+(?:#\d+)?"
_STATEMENT = re.compile(
    r"(?:(%[\w.]+(?:, %[\w.]+)*)(?::(\d+))? = )?\"?((?:[a-z]+\.)?[a-z_][\w\-]*)\"?(.*)"
)
_FUNCTION = re.compile(r"func\.func (?:public |private )?@([\w.$-]+)\((.*)")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-z]\w*|complex<f(?:32|64)>)>")
_ELEMENTS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_ELEMENTS |= {f"{u}i{n}": f"{u or 's'}{n}" for u in ("", "u") for n in (2, 4, 8, 16, 32, 64)}
#: A value with its type, of a head of a function or region.
_GIVEN = re.compile(r"(%[\w.]+): (tensor<(?:[^<>]|<[^<>]*>)*>)")
_LISTS = re.compile(r"(\w+) = (?:array<i64(?:: )?)?\[?([\d, ]*)[\]>]")
_RENAMED = {"optimization_barrier": "opt-barrier", "broadcast_in_dim": "broadcast"}
#: Operators that are no elementwise ones, and whose operands say all of them.
_PLAIN = frozenset(
    [
        *("opt-barrier", "reshape", "dynamic-update-slice", "tuple", "real", "imag", "complex"),
        *("partition-id", "replica-id", "convert"),
    ]
)


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


def tensor(text: str) -> Type:
    """The type that MLIR writes as ``tensor<4x8xf32>``.

    Example: that is float32 of shape (4, 8); ``tensor<?x8xf32>`` is refused.
    """
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"type {text.strip()[:60]!r} is not understood")
    dims, element = match.groups()
    return array_type(_ELEMENTS.get(element, element.lower()), ",".join(dims.split("x")[:-1]))


def _types(text: str) -> list[Type]:
    """All types in a text, in order; tokens are empty tuples."""
    written = re.findall(r"tensor<(?:[^<>]|<[^<>]*>)*>|!stablehlo\.token", text)
    return [tensor(t) if t.startswith("tensor") else Type(parts=()) for t in written]


def _numbers(text: str) -> str:
    return "{" + text.replace(" ", "") + "}"


class _Reader:
    """Lines one after another; ``at`` is the number of the one that was read last."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.computations: dict[str, Computation] = {}
        self.depth = 0

    def next(self) -> str:
        while self.at < len(self.lines):
            line = re.sub(r" loc\(.*\)$", "", self.lines[self.at].strip())
            self.at += 1
            if line and not line.startswith(("#loc", "//")):
                return line
        raise InvalidInput("the text ends early")

    def module(self) -> Module:
        head = self.next()
        match = re.fullmatch(r"module(?: @([\w.$-]+))?(?: attributes \{(.*)\})? \{", head)
        if match is None:
            raise InvalidInput("expected module @NAME {")
        partitions = re.search(r"mhlo\.num_partitions = (\d{1,9})", match.group(2) or "")
        while (line := self.next()) != "}":
            if line.startswith("sdy.mesh "):
                continue
            function = _FUNCTION.fullmatch(line)
            if function is None:
                raise InvalidInput(f"expected a function, found {line[:60]!r}")
            self.function(function.group(1), function.group(2))
        if "main" not in self.computations:
            raise InvalidInput("no function @main")
        header = {"unpartitioned": partitions.group(1)} if partitions else {}
        name = match.group(1) or "module"
        return Module(name, "stablehlo", self.computations, "main", header=header)

    def function(self, name: str, rest: str) -> None:
        if not rest.endswith("{"):
            raise InvalidInput(f"the head of @{name} goes on in another line")
        own = rest[: _close(rest)]
        given = self.parameters(own)
        if name in self.computations:
            raise InvalidInput(f"@{name} is given twice")
        self.computations[name] = Computation(name, (), "")
        self.computations[name] = self.block(name, given, ("return", "func.return"))
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

    def block(self, name: str, given: Sequence[Instruction], returns: Sequence[str]) -> Computation:
        """Statements up to the return, which is a tuple where it gives several."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise InvalidInput(f"regions are nested deeper than {MOST_DEPTH} times")
        instructions = list(given)
        types = {i.name: i.type for i in instructions}
        while True:
            line = self.next()
            word = line.split(" ", 1)[0]
            if word in returns:
                values = re.findall(_VALUE, line.split(" : ")[0])
                root = self.root(instructions, types, values)
                self.depth -= 1
                return Computation(name, tuple(instructions), root)
            for instruction in self.statement(line):
                missing = [x for x in instruction.operands if x not in types]
                if missing:
                    raise InvalidInput(f"%{missing[0]} is read before it is given")
                if instruction.name in types:
                    raise InvalidInput(f"%{instruction.name} is given twice")
                types[instruction.name] = instruction.type
                instructions.append(instruction)

    def root(
        self, instructions: list[Instruction], types: dict[str, Type], values: Sequence[str]
    ) -> str:
        names = [v[1:] for v in values]
        if any(n not in types for n in names):
            raise InvalidInput("a return of what is not given")
        if len(names) == 1:
            return names[0]
        type = Type(parts=tuple(types[n] for n in names))
        instructions.append(Instruction("return", "tuple", type, tuple(names), line=self.at))
        return "return"

    def statement(self, line: str) -> Iterator[Instruction]:
        match = _STATEMENT.fullmatch(line)
        if match is None or match.group(1) is None:
            raise InvalidInput(f"expected %NAME = OPERATOR, found {line[:60]!r}")
        result, count, operator, rest = match.groups()
        names = [n[1:] for n in result.split(", ")]
        name = names[0] if len(names) == 1 else f"{names[0]}.all"
        if operator == "stablehlo.while":
            yield from self.loop(name, rest)
            return
        region = ""
        if operator == "stablehlo.scatter" and rest.endswith("({"):
            rest, region = self.region(rest)
        elif rest.endswith("({"):
            rest = self.behind(rest)
        elif operator == "stablehlo.reduce" and " applies " not in rest:
            rest, region = self.reducer(rest)
        body, types = _signature(rest)
        made = self.instruction(name, operator, body, types, region)
        if count is None and len(names) == 1:
            yield made
            return
        parts = tuple(_types(types.split("->")[-1]))
        if len(names) == 1:
            names = [f"{name}#{n}" for n in range(int(count))]
        if len(parts) != len(names):
            raise InvalidInput(f"{len(names)} results of {len(parts)} types")
        whole = Type(parts=parts)
        opcode = "tuple" if made.opcode == "opt-barrier" else made.opcode
        yield Instruction(made.name, opcode, whole, made.operands, made.attrs, line=made.line)
        yield from self.elements(name, names, parts)

    def elements(
        self, name: str, names: Sequence[str], parts: Sequence[Type]
    ) -> Iterator[Instruction]:
        """The parts of a tuple by names of their own."""
        for n, (own, part) in enumerate(zip(names, parts, strict=True)):
            yield Instruction(own, "get-tuple-element", part, (name,), number=n, line=self.at)

    def region(self, rest: str) -> tuple[str, str]:
        """The region of an operator as a computation of its own, and what follows it."""
        head = self.next()
        if not head.startswith("^bb0("):
            raise InvalidInput("a region without a head")
        given = self.parameters(head)
        name = f"region.{self.at}"
        self.computations[name] = self.block(name, given, ("stablehlo.return",))
        end = self.next()
        if not end.startswith("})"):
            raise InvalidInput("a region that goes on after its return")
        return rest[: -len("({")] + end[len("})") :], name

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

    def reducer(self, rest: str) -> tuple[str, str]:
        """The computation of a reduction of several tensors: HLO has the operands of the left side
        first, then those of the right side."""
        head = self.next()
        if not head.startswith("reducer("):
            raise InvalidInput("a reduction without its computation")
        pairs = self.parameters(head)
        order = [*range(0, len(pairs), 2), *range(1, len(pairs), 2)]
        given = [replace(pairs[at], number=n) for n, at in enumerate(order)]
        name = f"region.{self.at}"
        self.computations[name] = self.block(name, given, ("stablehlo.return",))
        if self.next() != "}":
            raise InvalidInput("a region that goes on after its return")
        return rest, name

    def loop(self, name: str, rest: str) -> Iterator[Instruction]:
        """``stablehlo.while(%a = %x, ...) : types cond { ... } do { ... }``."""
        body, types = _signature(rest)
        pairs = re.findall(rf"(%[\w.]+) = ({_VALUE})", body)
        parts = tuple(_types(types))
        if len(pairs) != len(parts) or not pairs:
            raise InvalidInput("a loop with another number of types")
        whole = Type(parts=parts)
        attrs = {}
        for key, head in (("condition", "cond {"), ("body", "} do {")):
            if self.next() != head:
                raise InvalidInput(f"expected {head!r}")
            own = [Instruction("state", "parameter", whole, (), {}, None, 0, self.at)]
            for n, ((inner, _), part) in enumerate(zip(pairs, parts, strict=True)):
                own.append(
                    Instruction(
                        inner[1:], "get-tuple-element", part, ("state",), number=n, line=self.at
                    )
                )
            attrs[key] = f"{key}.{self.at}"
            made = self.block(attrs[key], own, ("stablehlo.return",))
            self.computations[attrs[key]] = _as_tuple(made) if key == "body" else made
        if self.next() != "}":
            raise InvalidInput("a loop that goes on after its return")
        start = f"{name}.start"
        yield Instruction(start, "tuple", whole, tuple(x[1:] for _, x in pairs), line=self.at)
        single = len(parts) == 1
        loop = f"{name}.loop" if single else name
        yield Instruction(loop, "while", whole, (start,), attrs, line=self.at)
        if single:
            yield Instruction(name, "get-tuple-element", parts[0], (loop,), number=0, line=self.at)
        else:
            names = [f"{name}#{n}" for n in range(len(parts))]
            yield from self.elements(name, names, parts)

    def instruction(
        self, name: str, operator: str, body: str, types: str, region: str
    ) -> Instruction:
        dialect, _, word = operator.rpartition(".")
        results = _types(types.split("->")[-1]) or [Type(parts=())]
        type = results[-1]
        operands = tuple(v[1:] for v in re.findall(_VALUE, body))
        if word == "reduce":
            operands = operands[::2] + operands[1::2]
        opcode = _RENAMED.get(word, word.replace("_", "-"))
        attrs: dict[str, str] = {}
        literal: Array | None = None
        if word == "call" and dialect in ("", "func"):
            attrs = {"to_apply": body.split("(")[0].strip().removeprefix("@")}
        elif dialect == "chlo" and word == "square":
            opcode, operands = "multiply", operands * 2
        elif dialect not in ("stablehlo", "chlo"):
            opcode = operator
        elif word == "constant":
            literal = None if type.dtype in UNREAD else _dense(body, type)
        elif opcode not in ELEMENTWISE or word == "convert":
            opcode, attrs = self.attributes(word, opcode, body, region, type.dtype)
        return Instruction(name, opcode, type, operands, attrs, literal, -1, self.at)

    def attributes(
        self, word: str, opcode: str, body: str, region: str, dtype: str
    ) -> tuple[str, dict[str, str]]:
        """The operator in HLO's words, with its attributes."""
        lists = {key: _numbers(value) for key, value in _LISTS.findall(body)}
        match word:
            case "broadcast_in_dim" | "transpose" | "reverse":
                return opcode, {"dimensions": lists.get("dims", "{}")}
            case "concatenate":
                return opcode, {"dimensions": "{" + _number(body, "dim") + "}"}
            case "iota":
                return opcode, {"iota_dimension": _number(body, "dim")}
            case "compare":
                direction, *rest = [p.strip() for p in body.split(",")]
                return opcode, {"direction": direction, "type": rest[-1]}
            case "dot_general":
                return "dot", _dot(body)
            case "reduce":
                return opcode, self.reduction(body, lists, region, dtype)
            case "dynamic_slice":
                return opcode, {"dynamic_slice_sizes": lists.get("sizes", "{}")}
            case "pad":
                return opcode, {"padding": _padding(body)}
            case "gather" | "scatter":
                return opcode, _rows(body, lists, region)
        if word in _BODIES:
            return opcode, _BODIES[word](body)
        return opcode if opcode in _PLAIN else f"stablehlo.{word}", {}

    def reduction(
        self, body: str, lists: dict[str, str], region: str, dtype: str
    ) -> dict[str, str]:
        """``applies stablehlo.add across dimensions = [1]``, or a computation behind it."""
        if region:
            return {"to_apply": region, "dimensions": lists.get("dimensions", "{}")}
        match = re.search(r"applies stablehlo\.([a-z_]+) across", body)
        if match is None:
            return {"to_apply": "a region", "dimensions": lists.get("dimensions", "{}")}
        word = match.group(1)
        name = f"{word}.{dtype}"
        number = Type((), dtype)
        parameters = [
            Instruction(n, "parameter", number, (), {}, None, i, self.at)
            for i, n in enumerate(("x", "y"))
        ]
        root = Instruction("r", word.replace("_", "-"), number, ("x", "y"), line=self.at)
        self.computations.setdefault(name, Computation(name, (*parameters, root), "r"))
        return {"to_apply": name, "dimensions": lists.get("dimensions", "{}")}


def _box(body: str) -> dict[str, str]:
    parts = re.findall(r"[\d:]+", body[body.index("[") :] if "[" in body else "")
    return {"slice": "{" + ", ".join(f"[{p}]" for p in parts) + "}"}


def _target(body: str) -> dict[str, str]:
    target = re.match(r"\s*@([\w.$-]+)", body)
    return {"custom_call_target": target.group(1) if target else ""}


def _precision(body: str) -> dict[str, str]:
    bits = re.search(r"format = e(\d+)m(\d+)", body)
    if bits is None:
        raise InvalidInput("no format = eNUMBERmNUMBER")
    return {"exponent_bits": bits.group(1), "mantissa_bits": bits.group(2)}


#: Attributes of operators, from what stands before the types.
_BODIES: Mapping[str, Callable[[str], dict[str, str]]] = {
    "slice": _box,
    "custom_call": _target,
    "reduce_precision": _precision,
}


def _as_tuple(made: Computation) -> Computation:
    """A body of a loop gives a tuple, of one tensor too."""
    root = next(i for i in made.instructions if i.name == made.root)
    if root.type.parts is not None and root.opcode == "tuple":
        return made
    last = Instruction("return", "tuple", Type(parts=(root.type,)), (made.root,), line=root.line)
    return Computation(made.name, (*made.instructions, last), "return")


def _close(text: str) -> int:
    """Where the bracket that is open at the beginning closes."""
    depth = 1
    for at, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if not depth:
            return at
    raise InvalidInput("a bracket that does not close")


def _signature(rest: str) -> tuple[str, str]:
    """What stands before the types, and the types: behind the last colon outside of brackets."""
    depth, last = 0, -1
    for at, c in enumerate(rest):
        if c in "({[":
            depth += 1
        elif c in ")}]":
            depth -= 1
        elif c == ":" and not depth and rest[at - 1 : at + 2] == " : ":
            last = at
    if last < 0:
        raise InvalidInput("a statement without types")
    return rest[: last - 1], rest[last + 1 :]


def _dense(body: str, type: Type) -> Array:
    """``dense<1.0>``, ``dense<[1, 2]>``, ``dense<0xFF800000>``: bits of floats."""
    match = re.fullmatch(r"\s*dense<(.*)>\s*", body)
    if match is None:
        raise InvalidInput(f"constant {body.strip()[:60]!r}, expected dense<...>")
    if type.parts is not None:
        raise InvalidInput("a constant that is no tensor")
    words = re.findall(r"[^\s\[\],]+", match.group(1))
    if any(w.startswith('"') for w in words):
        raise InvalidInput("a constant printed as bytes")
    paired = type.dtype.startswith("complex")
    words = words if paired else [_bits(w, type) for w in words]
    count = int(np.prod(type.shape, dtype=np.int64))
    if len(words) == 1 + paired and count != 1:
        one = numbers(words, Type((1,), type.dtype))
        return np.broadcast_to(one, type.shape) if type.shape else one.reshape(())
    if len(words) != count * (1 + paired):
        raise InvalidInput(f"a constant of {type} with {len(words)} values")
    return numbers(words, type)


def _bits(word: str, type: Type) -> str:
    """A float that is written as its bits, as a decimal."""
    width = {"float64": 16, "float32": 8, "float16": 4, "bfloat16": 4}.get(type.dtype)
    if width is None or not re.fullmatch(rf"0x[0-9A-Fa-f]{{{width}}}", word):
        return word
    number = int(word, 16)
    if type.dtype == "bfloat16":
        return repr(float(np.array(number << 16, dtype=np.uint32).view(np.float32)))
    kind = {16: np.uint64, 8: np.uint32, 4: np.uint16}[width]
    return repr(float(np.array(number, dtype=kind).view(type.dtype)))


def _number(body: str, key: str) -> str:
    match = re.search(rf"\b{key} = (\d+)", body)
    if match is None:
        raise InvalidInput(f"no {key} = NUMBER")
    return match.group(1)


def _dot(body: str) -> dict[str, str]:
    attrs = {}
    for key, ours in (("batching_dims", "batch_dims"), ("contracting_dims", "contracting_dims")):
        match = re.search(rf"{key} = \[([\d, ]*)\] x \[([\d, ]*)\]", body)
        if match is not None:
            attrs[f"lhs_{ours}"], attrs[f"rhs_{ours}"] = map(_numbers, match.groups())
    return attrs


def _padding(body: str) -> str:
    matches = [re.search(rf"{k} = \[([-\d, ]*)\]", body) for k in ("low", "high", "interior")]
    if any(f is None for f in matches):
        raise InvalidInput("padding without low, high and interior")
    columns = [f.group(1).split(",") for f in matches if f is not None]
    return "x".join("_".join(x.strip() for x in row) for row in zip(*columns, strict=True))


def _rows(body: str, lists: dict[str, str], region: str) -> dict[str, str]:
    """Dimension numbers of gathers and scatters; those that are not printed are empty."""
    kept = {k: v for k, v in lists.items() if not k.startswith(("indices", "unique"))}
    if "gather" in body:
        kept.setdefault("offset_dims", "{}")
    kept["index_vector_dim"] = _number(body, "index_vector_dim") if "index_vector" in body else "0"
    return {**kept, "to_apply": region} if region else kept
