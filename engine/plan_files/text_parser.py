"""A plan from its text, as `engine.plan_files.text` writes it.

The text is read strictly: what is not understood is an `InvalidInput` that says the line, what was
expected and what was found.  Nothing is evaluated.  The smallest plan is a page of text::

    plan "two" loss=sum microbatches=1 replicas=()
    single "one"
      ...

Whether the plan makes sense is `engine.plan_files.wellformed.check`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import (
    ACCUMULATED,
    COMBINATIONS,
    INPUT_KINDS,
    Addend,
    Attr,
    Body,
    Call,
    Expectation,
    Group,
    Op,
    Plan,
    Program,
    Shard,
    Source,
    Value,
)
from shardproof.engine.plan_files.text_lines import Line, tokens

#: Longer texts are no plans that somebody wrote down.
MOST_CHARACTERS: Final = 1 << 27
MOST_DEPTH: Final = 16


def parse_plan(text: str, name: str = "text") -> Plan:
    """The plan that ``text`` writes down; errors call it ``name``.  Raises `InvalidInput`.

    Example: ``parse_plan(plan_text(plan)) == plan`` but for what the text leaves out; of the text
    ``body 0`` alone, "text:1: expected 'plan', found 'body'".
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(
            f"expected at most {MOST_CHARACTERS} characters, found {len(text)}", name
        )
    reader = _Plan()
    for number, source in enumerate(text.splitlines(), 1):
        if source.strip() and not source.lstrip().startswith("#"):
            line = Line(tokens(source, f"{name}:{number}"), f"{name}:{number}")
            reader.line(line)
            line.end()
    return reader.finish(name)


@dataclass(slots=True)
class _Body:
    name: str
    mirror: int
    values: dict[int, Value] = field(default_factory=dict)
    parts: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, part: str, item: Any) -> None:
        self.parts.setdefault(part, []).append(item)

    def declared(self, line: Line) -> int:
        """A value, with its type where it is written for the first time."""
        number = line.value()
        if line.has(":"):
            dtype = line.word("an element type")
            shape = line.sizes()
            named = line.at < len(line.tokens) and line.tokens[line.at][0] == "text"
            if number in self.values:
                line.fail(f"%{number} with a type once")
            self.values[number] = Value(shape, dtype, line.text() if named else "")
        elif number not in self.values:
            line.fail(f"the type of %{number}")
        return number

    def built(self, where: str) -> Body:
        if sorted(self.values) != list(range(len(self.values))):
            raise InvalidInput(
                f"expected values numbered from 0, found {sorted(self.values)}", where
            )
        part = {key: tuple(self.parts.get(key, ())) for key in _PARTS}
        reads = dict(self.parts.get("reads", ()))
        reduced = []
        for written, read, shard in part.pop("reduced"):
            if reads.get(read) != shard:
                raise InvalidInput(f"%{read} is not read as the gradient of shard {shard}", where)
            reduced.append((read, written, shard))
        return Body(
            self.name,
            tuple(self.values[v] for v in range(len(self.values))),
            forward_body=self.mirror,
            reduced=tuple(reduced),
            **part,
        )


_PARTS: Final = (
    "ops", "inputs", "outputs", "shards", "saved", "gradients", "reduced", "losses", "results",
)  # fmt: skip


@dataclass(slots=True)
class _Program:
    name: str
    base: int
    axes: tuple[tuple[str, int, int], ...]
    where: str
    shards: list[Shard] = field(default_factory=list)
    bodies: list[_Body] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    seeds: list[tuple[int, int]] = field(default_factory=list)

    def built(self) -> Program:
        return Program(
            self.name,
            tuple(body.built(self.where) for body in self.bodies),
            tuple(self.calls),
            tuple(self.shards),
            self.base,
            self.axes,
            tuple(self.seeds),
        )


class _Plan:
    """What has been read so far."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._notes: list[str] = []
        self._single: list[_Program] = []
        self._programs: list[_Program] = []
        self._now: _Program | None = None
        self._expectations: list[Expectation] = []

    def line(self, line: Line) -> None:
        if not self._head:
            line.need("plan")
            self._begin(line)
        elif line.has("note"):
            self._notes.append(line.text())
        elif line.has("single"):
            self._single.append(self._program(line))
        elif line.has("program"):
            self._programs.append(self._program(line))
        elif line.has("expect"):
            self._expectations.append(_expectation(line))
        elif self._now is None:
            line.fail("note, single or program")
        else:
            _inside(self._now, line)

    def finish(self, name: str) -> Plan:
        if not self._head:
            raise InvalidInput("expected a plan, found no text", name)
        if len(self._single) != 1:
            raise InvalidInput(
                f"expected one single-device program, found {len(self._single)}", name
            )
        return Plan(
            single=self._single[0].built(),
            programs=tuple(program.built() for program in self._programs),
            notes=tuple(self._notes),
            expectations=tuple(self._expectations),
            **self._head,
        )

    def _begin(self, line: Line) -> None:
        name = line.text()
        line.need("loss", "=")
        loss = line.word("sum or mean")
        line.need("microbatches", "=")
        microbatches = line.number()
        line.need("replicas", "=")
        axes = line.items("(", ")", line.word, comma=False)
        self._head = {
            "name": name,
            "loss": loss,
            "microbatches": microbatches,
            "replica_axes": axes,
        }

    def _program(self, line: Line) -> _Program:
        name, base, axes = line.text(), 0, []
        if line.has("base"):
            line.need("=")
            base = line.number()
        if line.has("axes"):
            line.need(":")
            while line.at < len(line.tokens):
                axis = line.word("an axis")
                line.need("=")
                extent = line.number("how many ranks lie along it")
                line.need("*")
                axes.append((axis, extent, line.number("the rank stride")))
        self._now = _Program(name, base, tuple(axes), line.where)
        return self._now


def _inside(program: _Program, line: Line) -> None:
    """A line of a program."""
    if line.has("body"):
        number = line.number()
        if number != len(program.bodies):
            line.at -= 1
            line.fail(f"body {len(program.bodies)}")
        name, mirror = line.text(), -1
        if line.has("backward_of"):
            line.need("=")
            mirror = line.number()
        program.bodies.append(_Body(name, mirror))
    elif line.has("call"):
        program.calls.append(_call(line))
    elif line.has("seed"):
        slot = line.number("a slot")
        line.need("of")
        program.seeds.append((slot, line.number("a slot")))
    elif line.tokens[0][1] in _SHARDS and not program.bodies:
        program.shards.append(_shard(line))
    elif not program.bodies:
        line.fail("a parameter, another input, or a body")
    else:
        _statement(program.bodies[-1], line)


_SHARDS: Final = ("parameter", "buffer", *filter(None, INPUT_KINDS))


def _shard(line: Line) -> Shard:
    kind = line.word()
    name, dtype, shape = line.text(), line.word("an element type"), line.sizes()
    full, offset = shape, (ZERO,) * len(shape)
    if line.has("of"):
        full = line.sizes()
        line.need("at")
        offset = line.items("(", ")", lambda: _affine(line))
    trainable = kind == "parameter" or line.has("trainable")
    domain = None
    if line.has("in"):
        low = line.number()
        line.need("..")
        domain = (low, line.number())
    updated = -1
    if line.has("updated_as"):
        line.need("=")
        updated = line.number()
    named = "" if kind in ("parameter", "buffer") else kind
    return Shard(name, full, shape, offset, dtype, trainable, updated, named, domain)


def _call(line: Line) -> Call:
    body = line.number("the number of a body")
    inputs = line.items("(", ")", lambda: line.number("a slot"))
    outputs = []
    if line.has("->"):
        outputs.append(line.number("a slot"))
        while line.has(","):
            outputs.append(line.number("a slot"))
    microbatch = -1
    if line.has("microbatch"):
        line.need("=")
        microbatch = line.number()
    return Call(body, inputs, tuple(outputs), microbatch)


def _statement(body: _Body, line: Line) -> None:
    """A line of a body."""
    for word, part in (("output", "outputs"), ("loss", "losses"), ("result", "results")):
        if line.has(word):
            body.add(part, line.value())
            return
    if line.has("accumulate"):
        value = line.value()
        line.need("into")
        body.add("gradients", (value, line.number("the number of a shard")))
    elif line.has("reduced"):
        written = line.value()
        line.need("replaces")
        read = line.value()
        line.need("of")
        body.add("reduced", (written, read, line.number("the number of a shard")))
    else:
        _assignment(body, line)


def _assignment(body: _Body, line: Line) -> None:
    """Values and where they come from."""
    outputs: list[int] = []
    if line.tokens[0][1] == "%":
        outputs.append(body.declared(line))
        while line.has(","):
            outputs.append(body.declared(line))
        line.need("=")
    if len(outputs) == 1 and line.has("input"):
        body.add("inputs", outputs[0])
    elif len(outputs) == 1 and line.has("nothing"):
        pass
    elif len(outputs) == 1 and line.has("shard"):
        body.add("shards", (outputs[0], line.number("the number of a shard")))
    elif len(outputs) == 1 and line.has("saved"):
        body.add("saved", (outputs[0], line.number("the number of a value")))
    elif len(outputs) == 1 and line.has("gradient"):
        body.add("reads", (outputs[0], line.number("the number of a shard")))
    else:
        body.add("ops", _op(tuple(outputs), line))


def _op(outputs: tuple[int, ...], line: Line) -> Op:
    backward = line.has("backward")
    name = line.word("the name of an operator")
    inputs = line.items("(", ")", line.value)
    attrs: dict[str, Attr] = {}
    if line.has("{"):
        line.at -= 1
        for key, value in line.items("{", "}", lambda: _pair(line)):
            if key in attrs:
                line.fail(f"attribute {key} once")
            attrs[key] = value
    source = Source()
    if line.has("@"):
        source = Source(line.text(), line.text(), line.text())
    return Op(name, inputs, outputs, attrs, backward, source)


def _pair(line: Line) -> tuple[str, Attr]:
    key = line.word("the name of an attribute")
    line.need("=")
    return key, _attribute(line, 0)


_CONSTANTS: Final[dict[str, Attr]] = {"none": None, "true": True, "false": False}


def _attribute(line: Line, depth: int) -> Attr:
    if depth > MOST_DEPTH or line.at >= len(line.tokens):
        line.fail("an attribute")
    kind, token = line.tokens[line.at]
    if kind == "text":
        return line.text()
    if kind == "number":
        number = line.number()
        return _fraction(line, number) if line.has("/") else number
    if token in _CONSTANTS:
        line.at += 1
        return _CONSTANTS[token]
    if token == "<":
        return _affine(line)
    if token == "(":
        return line.items("(", ")", lambda: _attribute(line, depth + 1))
    return _group(line)


def _fraction(line: Line, numerator: int) -> Fraction:
    denominator = line.number("a denominator")
    if denominator < 1:
        line.at -= 1
        line.fail("a positive denominator")
    return Fraction(numerator, denominator)


def _group(line: Line) -> Group:
    line.need("group", "(", "ranks", "=")
    ranks = line.items("(", ")", lambda: line.number("a rank"), comma=False)
    line.need(",", "axes", "=")
    axes = line.items("(", ")", line.word, comma=False)
    line.need(")")
    return Group(ranks, axes)


def _affine(line: Line) -> Affine:
    """``<8*tp + 4>``"""
    line.need("<")
    total = ZERO
    while True:
        total += _term(line)
        if not line.has("+"):
            line.need(">")
            return total


def _term(line: Line) -> Affine:
    if line.at < len(line.tokens) and line.tokens[line.at][0] == "word":
        return affine(0, {line.word(): 1})
    number = line.number()
    return affine(0, {line.word("an axis"): number}) if line.has("*") else affine(number)


def _expectation(line: Line) -> Expectation:
    kind, name = line.text(), line.text()
    required = not line.has("optional")
    line.need(":")
    single = line.items("[", "]", lambda: _addend(line))
    line.need("is")
    addends = line.items("[", "]", lambda: _addend(line))
    offset: tuple[Affine, ...] = ()
    if line.has("at"):
        offset = line.items("(", ")", lambda: _affine(line))
    return Expectation(kind, name, single, addends, offset, required)


def _addend(line: Line) -> Addend:
    weight = Fraction(1)
    program = line.number("the number of a program")
    if line.has("/"):
        weight = _fraction(line, program)
        line.need("*")
        program = line.number("the number of a program")
    line.need(".")
    if line.has("gradient"):
        body = ACCUMULATED
    else:
        body = line.number("the number of a body")
        line.need("%")
    value = line.number("the number of a value")
    over = []
    while line.at < len(line.tokens) and line.tokens[line.at][1] in COMBINATIONS:
        how = line.word()
        line.need("(")
        over.append((line.word("an axis"), how))
        line.need(")")
    return Addend(program, body, value, weight, tuple(over))
