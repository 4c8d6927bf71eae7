"""One rank's functional step as a program of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Body, Call, Program, Shard, Source
from shardproof.frontends.aten import Const, Lowered, Lowering, Real, chosen, rule_of
from shardproof.frontends.aten.arranged import settled
from shardproof.frontends.aten.ids import Narrow, marked
from shardproof.frontends.aten.labels import Labels
from shardproof.frontends.aten.levels import constant
from shardproof.frontends.aten.log_probabilities import picks
from shardproof.frontends.aten.lowering import Derived, Undefined, floating
from shardproof.frontends.aten.masks import FLAGS
from shardproof.frontends.aten.ordered import applied
from shardproof.frontends.aten.patterns import Pattern, Windows
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.aten.rules import typed, without_entries
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch import unwritten
from shardproof.frontends.torch.draws import ALONE_DRAWN, KINDS, Drawn, Draws, Parts
from shardproof.frontends.torch.memory import (
    CONSTANT,
    INPUT,
    SLICE,
    STILL,
    Compared,
    Functional,
    Input,
    Op,
    Value,
)
from shardproof.frontends.torch.trace import Arg, Items, Named, Ranks, Tensor, tensors_of


@dataclass(frozen=True, slots=True)
class Result:
    """What an expectation is about: ``value`` of the body (-1: there is none).

    Example: the loss, with value 16 of the body; of a parameter without a gradient the value is -1.
    """

    compared: Compared
    value: int


@dataclass(slots=True)
class Side:
    """One rank's step, or the single device's, as a program. ``gaps``: operators without a rule, by
    name, with why; ``derived``: inputs that are others, moved, and whether these are read as they
    are too; ``picks``: how losses are read beside what the program picks itself; ``reading``: how
    they are; ``notes``: printed with the verdict; ``still``: values that
    no gradient goes through; ``draws``: what its random operators draw; ``parts``: what each of
    these is (None: nothing says it); ``cuts``: rows of parameters, and those that a rank has;
    ``reads_memory``: whether memory that nothing has written was taken for numbers; ``alike``:
    whether ranks that add up chosen rows choose the same.

    Example: an MLP's step on one device: ``permute``, ``matmul``, ``add``, ``gelu``, ..., with five
    ``results``: the loss and four gradients.
    """

    program: Program
    results: list[Result]
    contents: dict[str, Any]
    gaps: dict[str, str] = field(default_factory=dict)
    derived: dict[str, tuple[Derived, bool]] = field(default_factory=dict)
    picks: Reading = Reading.SHIFTED
    reading: Reading = Reading.SHIFTED
    notes: tuple[str, ...] = ()
    still: frozenset[int] = frozenset()
    draws: tuple[Drawn, ...] = ()
    parts: Parts | None = None
    labels: Labels = field(default_factory=Labels)
    cuts: Set[tuple[int, int]] = frozenset()
    slices: dict[int, int] = field(default_factory=dict)
    reads_memory: bool = False
    alike: bool = False
    windows: Windows = field(default_factory=Windows)


#: What a rule raises for arguments that are not those of its operator.
_MALFORMED = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)


class _Rank:
    """Lowers the operators of one rank, in isolation from others."""

    def __init__(
        self,
        step: Functional,
        inference: Inference,
        marks: bool = False,
        parts: Parts | None = None,
        standing: bool = False,
        reads_memory: bool = False,
    ) -> None:
        self.step = step
        self.marks = marks
        self.lo = Lowering(inference)
        self.lo.wheres = dict.fromkeys(step.trace.counts)
        self.lo.unwritten = self.memory if reads_memory else None
        self.read = 0
        self.draws = Draws(self.lo, parts, standing)
        self.known: dict[int, Lowered] = {}
        self.inputs: dict[int, Input] = {i.value: i for i in step.inputs}
        self.gaps: dict[str, str] = {}
        self.slices: dict[int, int] = {}

    def run(self) -> None:
        for op in self.step.ops:
            self.lo.source = self.source(op)
            made = [self.step.values[v] if v >= 0 else Value((), "") for v in op.outputs]
            self.lo.expected = [(v.shape, v.dtype) for v in made]
            if op.name == INPUT:
                self.hold(op)
                continue
            try:
                results = self.lowered(op)
            except (Unsupported, ShapeMismatch, *_MALFORMED) as error:
                if isinstance(error, Narrow) and error.origin in self.lo.origins:
                    shard = self.lo.shards[self.lo.origins[error.origin]]
                    self.lo.labels.choosing(shard.name, error.rows)
                self.gap(op, str(error) or type(error).__name__)
                continue
            finally:
                self.draws.follow(op, self.known)
            for value, result in zip(op.outputs, results, strict=False):
                if value >= 0:
                    self.known[value] = result
                    if op.name == SLICE:
                        self.sliced(op, value)

    def sliced(self, op: Op, value: int) -> None:
        """Note a slice of floats that is one operator of the program."""
        x, result = self.argument(op.args[0]), self.known[value]
        if isinstance(x, Real) and isinstance(result, Real) and "float" in x.dtype:
            last = self.lo.ops[-1] if self.lo.ops else None
            if last is not None and (last.name, last.outputs) == ("slice", (result.number,)):
                self.slices[value] = len(self.lo.ops) - 1

    def source(self, op: Op) -> Source:
        event = self.step.trace.events[op.event]
        return Source(
            cell=event.name,
            module=self.step.trace.modules[event.module],
            location=self.step.trace.sources[event.source],
        )

    def hold(self, op: Op) -> None:
        """A named input becomes a shard."""
        (value,) = op.outputs
        given = self.inputs[value]
        tensor = self.step.values[value]
        if 0 in tensor.shape:  # a shard of a dimension that is too short for all ranks
            self.known[value] = Const(Fraction(0), tensor.shape, tensor.dtype)
            return
        real = self.lo.hold(shard_of(self.step, given))
        self.known[value] = real if given.mark is None else marked(real, given.mark)

    def memory(self, x: Undefined) -> Real:
        """Memory that an operator reads before it is written."""
        if 0 in x.shape:
            raise Unsupported(f"a tensor of shape {list(x.shape)}, which has no entries")
        if not floating(x.dtype):
            raise Unsupported(f"it reads {x.why}")
        self.read += 1
        return self.lo.hold(unwritten.numbers(self.read - 1, x))

    # -- operators ------------------------------------------------------------------------------

    def lowered(self, op: Op) -> list[Any]:
        if op.name == CONSTANT:
            (value,) = op.outputs
            tensor = self.step.values[value]
            return [constant(self.lo, self.step.constants[value], tensor.shape, tensor.dtype)]
        if op.name in KINDS:
            (value,) = op.outputs
            tensor = self.step.values[value]
            given = tuple(self.argument(a) for a in op.args[1:])
            return [self.draws.drawn(op, given, tensor.shape, tensor.dtype)]
        if op.name == STILL:
            x = self.argument(op.args[0])
            x = settled(self.lo, x) if self.marks else x
            return [self.stilled(x) if self.marks and isinstance(x, Real) else x]
        compared = self.draws.compared(op, self.lo.expected[0][1] if self.lo.expected else "")
        if compared is not None:
            return [compared]
        rule = rule_of(op.name)
        if op.name.startswith("aten.") and (results := without_entries(self.lo)):
            return results
        args = [self.argument(a) for a in op.args]
        kwargs: Mapping[str, Any] = {k: self.argument(v) for k, v in op.kwargs.items()}
        if chosen.concerns(self.lo, (*args, *kwargs.values())):
            result = chosen.applied(self.lo, op.name, args, kwargs)
        else:
            result = applied(self.lo, rule, op.name, args, kwargs)
        results = list(result) if isinstance(result, tuple) else [result]
        for i, (value, x, (shape, dtype)) in enumerate(
            zip(op.outputs, results, self.lo.expected, strict=False)
        ):
            if value >= 0 and x is not None and x.shape != shape:
                raise Unsupported(f"{op.name} is lowered to {list(x.shape)}, not {list(shape)}")
            results[i] = typed(self.lo, x, dtype)
        return results

    def stilled(self, x: Real) -> Real:
        """The same as a value of its own, through which no gradient goes."""
        copy: Real = self.lo.emit("view", x, size=x.shape)
        self.lo.shifts.add(copy.number)
        return copy

    def argument(self, arg: Arg) -> Any:
        if isinstance(arg, Tensor):
            if arg.number not in self.known:
                raise Unsupported("an operand without a value")
            return self.known[arg.number]
        if isinstance(arg, Items):
            return [self.argument(a) for a in arg.items]
        if isinstance(arg, Ranks):
            return arg.ranks
        if isinstance(arg, Named):
            return arg.text
        return arg

    def gap(self, op: Op, reason: str) -> None:
        """An operator that is not understood stands in the body under its own name."""
        self.gaps.setdefault(op.name, reason)
        inputs = []
        for number in _numbers(op):
            x = self.known.get(number)
            if isinstance(x, Real):
                inputs.append(x.number)
        outputs = []
        for value in op.outputs:
            if value >= 0:
                made = self.lo.value(*self.step.values[value], op.name)
                self.known[value] = made
                outputs.append(made.number)
        self.lo.append(op.name, inputs, outputs, {})

    def result(self, value: int) -> int:
        """The number of a value that is compared; -1 where there is none, or nothing in it."""
        if value < 0 or 0 in self.step.values[value].shape:
            return -1
        self.lo.source = Source()
        try:
            return self.lo.real(self.known[value]).number
        except (Unsupported, ShapeMismatch) as error:
            name = "a compared value"
            self.gaps.setdefault(name, str(error))
            made = self.lo.value(*self.step.values[value], name)
            self.lo.append(name, [], [made.number], {})
            return made.number


def shard_of(step: Functional, given: Input) -> Shard:
    """The part of a full tensor that a named input of a step is.

    Example: of ``up.weight`` rank 1 of two has the shard of shape (8, 8) from (8, 0) on.
    """
    tensor, box = step.values[given.value], given.box
    domain = None
    if given.low is not None and given.high is not None:
        domain = (given.low, given.high)
    elif tensor.dtype == "bool":
        domain = FLAGS
    offset = (0,) * len(tensor.shape) if box is None else box.offset
    return Shard(
        given.shard,
        tensor.shape if box is None else box.full_shape,
        tensor.shape,
        tuple(affine(n) for n in offset),
        tensor.dtype,
        trainable=given.trainable,
        kind="batch" if given.kind == "batch" else "",
        domain=domain,
    )


def _numbers(op: Op) -> list[int]:
    return list(tensors_of(*op.args, *op.kwargs.values()))


def lower(
    step: Functional,
    inference: Inference,
    shared: Mapping[str, Any] | None = None,
    reading: Reading = Reading.SHIFTED,
    marks: bool = False,
    parts: Parts | None = None,
    standing: bool = False,
    partners: bool = False,
    cuts: Set[tuple[int, int]] = frozenset(),
    reads_memory: bool = False,
    alike: bool = False,
    moved: frozenset[str] = frozenset(),
    sliced: Set[Pattern] = frozenset(),
) -> Side:
    """The program of one rank; raises `InvalidInput` where the step compares nothing.  ``shared``:
    tables of constants that the single side has (None: this is that side); ``reading``: how
    losses of labels are read; ``marks``: operands that no
    gradient goes to are values of their own; ``parts``: what is drawn (without them a random
    operator has no meaning); ``standing``: constants stand for all that is drawn; ``partners``:
    the operands that draws meet are results too; ``cuts``: rows of parameters, and those that a
    rank has of them; ``reads_memory``: memory that nothing has written is numbers of its own;
    ``alike``: ranks that add up rows, of which data says how many there are, choose the same ones;
    ``moved``: inputs of the single side that are others, moved, of which ranks have parts;
    ``sliced``: windows of which ranks divide the positions.

    Example: ``aten.addmm`` is ``matmul`` and ``add``; ``aten.mean`` is ``sum`` and ``mul`` by 1/32.
    """
    rank = _Rank(step, inference, marks, parts, standing, reads_memory)
    rank.lo.shared = shared
    rank.lo.reading = reading
    rank.lo.cuts, rank.lo.alike, rank.lo.moved = cuts, alike, moved
    rank.lo.windows.sliced = sliced
    rank.run()
    results = [Result(c, rank.result(c.value)) for c in step.compared]
    if not results:
        raise InvalidInput("the step compares nothing", f"rank {step.trace.rank}")
    values = tuple(rank.lo.values)
    draws = tuple(rank.draws.all.values())
    numbers = [r.value for r in results]
    numbers += [p.value for d in draws if partners for p in d.partners]
    own = tuple(dict.fromkeys(n for n in numbers if n >= 0))
    body = Body(
        "step",
        values,
        tuple(rank.lo.ops),
        shards=tuple(rank.lo.bound),
        results=own,
    )
    program = Program(
        f"rank {step.trace.rank}", (body,), (Call(0),), tuple(rank.lo.shards), step.trace.rank
    )
    derived = {name: (d, rank.lo.read(d.base)) for name, d in rank.lo.derived.items()}
    own_picks = picks(rank.lo)
    notes = tuple(rank.lo.notes)
    contents, gaps, still = rank.lo.contents, rank.gaps, frozenset(rank.lo.shifts)
    return Side(
        program,
        results,
        contents,
        gaps,
        derived,
        own_picks,
        reading,
        notes,
        still,
        draws,
        parts,
        rank.lo.labels,
        cuts,
        rank.slices,
        reads_memory,
        alike,
        rank.lo.windows,
    )


def with_tables(single: Side, ranks: Sequence[Side]) -> Program:
    """The single side's program, with tables of constants, and random numbers, that ranks alone
    have as inputs that it does not read.

    Example: the slopes of 2 heads, where the single-device step has those of 4.
    """
    shards = [shard for side in ranks for shard in side.program.shards]
    tables = {s.name: s for s in shards if s.kind == "constant" or s.name.startswith(ALONE_DRAWN)}
    own = [shard for name, shard in tables.items() if name not in single.contents]
    program = single.program
    return replace(program, shards=(*program.shards, *own)) if own else program
