"""HLO text as XLA prints it: a module of computations, with or without ``%`` and signatures.

For example::

    HloModule jit_f, num_partitions=8
    %add (x: f32[], y: f32[]) -> f32[] {
      ...
    }
    ENTRY %main (p: f32[4,8]) -> f32[4] {
      %p = f32[4,8]{1,0} parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
      %zero = f32[] constant(0)
      ROOT %r = f32[4]{0} reduce(%p, %zero), dimensions={1}, to_apply=%add
    }

Every line is an instruction, a computation's head or end, a table of source lines, or empty; any
other is refused with its number.  Layouts have no meaning for values and are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.hlo import asynchronous, exchanges, layouts
from shardproof.frontends.hlo.groups import MESH
from shardproof.frontends.hlo.literals import parse_literal, parse_type
from shardproof.frontends.hlo.module import UNREAD, Array, Computation, Instruction, Module, Type

#: Text with more of these is refused.
MOST_BYTES = 1 << 28
MOST_LINES = 1 << 21
MOST_LINE = 1 << 24
MOST_DEPTH = 64

_NAME = r"%?[A-Za-z_][\w.\-]*"
_HEAD = re.compile(rf"(ENTRY\s+)?({_NAME})\s*(?:\(.*\)\s*->\s*.*)?\{{")
_LEFT = re.compile(rf"(ROOT\s+)?({_NAME})\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_KEY = re.compile(r"\s*([A-Za-z_][\w.-]*)=")
_TABLES = frozenset({"FileNames", "FunctionNames", "FileLocations", "StackFrames"})
_OPEN, _CLOSE = "({[", ")}]"


def parse(text: str) -> Module:
    """The module of an HLO text; raises `UnreadablePlan` with the line where text is no HLO that we
    know.

    Example: ``negate(z)`` in line 5 of a module without ``z`` is refused: "line 5: z is read before
    it is given".
    """
    if len(text) > MOST_BYTES:
        raise UnreadablePlan(f"{len(text)} characters, expected at most {MOST_BYTES}")
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        raise UnreadablePlan(f"{len(lines)} lines, expected at most {MOST_LINES}")
    reader = _Reader(lines)
    try:
        return reader.module()
    except InvalidInput as error:
        raise UnreadablePlan(str(error), f"line {reader.at}") from None


class _Reader:
    """Lines one after another; ``at`` is the number of the one that was read last."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0

    def next(self) -> str | None:
        """The next line that is not empty, stripped."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if len(line) > MOST_LINE:
                raise InvalidInput(f"{len(line)} characters in one line")
            if line.strip():
                return line.strip()
        return None

    def module(self) -> Module:
        head = self.next()
        if head is None or not head.startswith("HloModule "):
            raise InvalidInput("expected HloModule NAME")
        name, _, rest = head[len("HloModule ") :].partition(",")
        header = dict(attributes(rest, 0)) if rest.strip() else {}
        computations: dict[str, Computation] = {}
        tables: dict[str, dict[int, str]] = {}
        entry = ""
        while (line := self.next()) is not None:
            if line in _TABLES:
                tables[line] = self._table()
                continue
            match = _HEAD.fullmatch(line)
            if match is None:
                raise InvalidInput(f"expected a computation, found {line[:80]!r}")
            computation = self._computation(_bare(match.group(2)))
            if computation.name in computations:
                raise InvalidInput(f"computation {computation.name} is given twice")
            computations[computation.name] = computation
            if match.group(1):
                if entry:
                    raise InvalidInput("a second ENTRY computation")
                entry = computation.name
        if not entry:
            raise InvalidInput("no ENTRY computation")
        return Module(
            _bare(name.strip()),
            "hlo",
            computations,
            entry,
            _count(header, "num_partitions"),
            _count(header, "replica_count"),
            header,
            _frames(tables),
        )

    def _table(self) -> dict[int, str]:
        """A table of source lines: ``NUMBER TEXT`` up to an empty line."""
        table = {}
        while self.at < len(self.lines) and self.lines[self.at].strip():
            number, _, text = self.lines[self.at].strip().partition(" ")
            self.at += 1
            if not number.isdecimal():
                raise InvalidInput(f"expected a numbered line of a table, found {number[:40]!r}")
            table[int(number)] = text
        return table

    def _computation(self, name: str) -> Computation:
        instructions: list[Instruction] = []
        names: dict[str, Type] = {}
        begun: dict[str, Type] = {}
        root = ""
        while (line := self.next()) is not None:
            if line == "}" or line.startswith("}, execution_thread="):
                break
            is_root, instruction = parse_instruction(line, self.at)
            if instruction.name in names:
                raise InvalidInput(f"{instruction.name} is given twice")
            missing = [x for x in instruction.operands if x not in names]
            if missing:
                raise InvalidInput(f"{missing[0]} is read before it is given")
            opens = asynchronous.open_(instruction)
            instruction = asynchronous.whole(instruction, begun)
            if opens:
                begun[instruction.name] = instruction.type
            names[instruction.name] = instruction.type
            instructions += exchanges.of_one(layouts.with_layouts(instruction, names), names)
            if is_root:
                if root:
                    raise InvalidInput(f"computation {name} has two roots")
                root = instruction.name
        else:
            raise InvalidInput(f"computation {name} does not end")
        if not instructions:
            raise InvalidInput(f"computation {name} has no instruction")
        return Computation(name, tuple(instructions), root or instructions[-1].name)


def _bare(name: str) -> str:
    return name.removeprefix("%")


def _count(header: Mapping[str, str], key: str) -> int:
    text = header.get(key, "1")
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise InvalidInput(f"{key}={text[:40]}")
    return int(text)


def parse_instruction(line: str, number: int) -> tuple[bool, Instruction]:
    """The instruction of one line, and whether it is the computation's root.

    Example: ``ROOT %r = f32[4]{0} reduce(%p, %zero), dimensions={1}`` is True and the instruction
    ``r`` of ``p`` and ``zero``.
    """
    left = _LEFT.match(line)
    if left is None:
        raise InvalidInput(f"expected NAME = TYPE OPERATOR(...), found {line[:80]!r}")
    end = _type_end(line, left.end())
    type = parse_type(line[left.end() : end])
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        raise InvalidInput(f"expected OPERATOR(...) after the type, found {line[end : end + 60]!r}")
    close = _balanced(line, opcode.end() - 1)
    inner = line[opcode.end() : close - 1]
    attrs = dict(attributes(line, close))
    name = opcode.group(1)
    literal: Array | None = None
    operands: tuple[str, ...] = ()
    at = -1
    if name == "constant":
        literal = None if type.dtype in UNREAD else parse_literal(inner, type)
    elif name in ("parameter",):
        at = _integer(inner)
    else:
        operands = tuple(_operand(part) for part in _split(inner))
    if name == "get-tuple-element":
        at = _integer(attrs.get("index", ""))
    return bool(left.group(1)), Instruction(
        _bare(left.group(2)), name, type, operands, attrs, literal, at, number
    )


def _integer(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text.strip()):
        raise InvalidInput(f"expected a number, found {text[:40]!r}")
    return int(text)


def _type_end(line: str, at: int) -> int:
    """Where the type that begins at ``at`` ends."""
    if line.startswith("(", at):
        return _balanced(line, at)
    match = re.compile(r"[a-z]\w*\[[^\]]*\]").match(line, at)
    if match is None:
        raise InvalidInput(f"expected a type, found {line[at : at + 60]!r}")
    end = match.end()
    return _balanced(line, end) if line.startswith("{", end) else end


def _balanced(line: str, at: int) -> int:
    """Behind the bracket that closes the one at ``at``; text in quotes does not count."""
    depth = 0
    quoted = False
    while at < len(line):
        c = line[at]
        if quoted:
            at += c == "\\"
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c in _OPEN:
            depth += 1
            if depth > MOST_DEPTH:
                raise InvalidInput(f"brackets are nested deeper than {MOST_DEPTH} times")
        elif c in _CLOSE:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise InvalidInput("a bracket or a quotation that does not close")


def _split(text: str) -> Iterator[str]:
    """Parts between commas outside of brackets."""
    text = re.sub(r"/\*[^*]*\*/", "", text)
    depth = start = 0
    for at, c in enumerate(text):
        if c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            depth -= 1
        elif c == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def _operand(text: str) -> str:
    """``%a``, ``a``, ``f32[2]{0} %a``."""
    name = text.split()[-1] if text.split() else ""
    if not re.fullmatch(_NAME, name):
        raise InvalidInput(f"expected an operand, found {text[:60]!r}")
    return _bare(name)


def attributes(line: str, at: int) -> Iterator[tuple[str, str]]:
    """The ``, key=value`` pairs of an instruction, up to the end of the line.

    Example: ``, dimensions={1}, to_apply=%add`` is ``("dimensions", "{1}")`` and
    ``("to_apply", "%add")``.
    """
    while line[at:].strip():
        at += len(line) - at - len(line[at:].lstrip())
        if line[at] == ",":
            at += 1
        match = _KEY.match(line, at)
        if match is None:
            raise InvalidInput(f"expected KEY=VALUE, found {line[at : at + 60]!r}")
        mesh = MESH.match(line, match.end())
        end = mesh.end() if mesh is not None else _value_end(line, match.end())
        yield match.group(1), line[match.end() : end].strip()
        at = end


def _value_end(line: str, at: int) -> int:
    while at < len(line) and line[at] != ",":
        if line[at] == '"':
            end = re.compile(r'"(?:[^"\\]|\\.)*"').match(line, at)
            if end is None:
                raise InvalidInput("a quotation that does not close")
            at = end.end()
        elif line[at] in _OPEN:
            at = _balanced(line, at)
        else:
            at += 1
    return at


_LOCATION = re.compile(r"\{file_name_id=(\d+) function_name_id=\d+ line=(\d+)\b.*\}")
_FRAME = re.compile(r"\{file_location_id=(\d+)\b.*\}")


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, str]:
    """Stack frame -> ``file:line``, where the tables say so."""
    files = {n: text.strip('"') for n, text in tables.get("FileNames", {}).items()}
    places = {}
    for n, text in tables.get("FileLocations", {}).items():
        match = _LOCATION.fullmatch(text)
        if match is not None and int(match.group(1)) in files:
            places[n] = f"{files[int(match.group(1))]}:{match.group(2)}"
    frames = {}
    for n, text in tables.get("StackFrames", {}).items():
        match = _FRAME.fullmatch(text)
        if match is not None and int(match.group(1)) in places:
            frames[n] = places[int(match.group(1))]
    return frames


def subtypes(type: Type) -> tuple[Type, ...]:
    """The parts of a tuple, or the tensor itself.

    Example: of ``(f32[2], s32[])``, both; of ``f32[2]``, itself alone.
    """
    return (type,) if type.parts is None else type.parts
