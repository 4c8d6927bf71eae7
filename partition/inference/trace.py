"""Lineages of every value of a program: the rows of an unrolled side, read one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.findings import UNSUPPORTED, Finding
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Lineage, Term, box_view
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import COPIES, TABLE, Effect, group_size, refused
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.schedule.instances import Row, Unrolled
from shardproof.engine.specification.conclusions import scaled
from shardproof.partition.inference.collectives import gather, own_slice, total
from shardproof.partition.inference.forms import Forms
from shardproof.partition.inference.interpreter import LineageReading
from shardproof.partition.inference.repeat import Repeat, Repeats

#: The name of the incoming gradient of the loss, among inputs; and those of batch tensors.
SEED = "loss gradient"
RESERVED = re.compile(r"batch\.[0-9]+")

#: After so many rows each it is told how many are done.
ROWS_TOLD = 64


class Reference(NamedTuple):
    """What the single-device side defines for the other one: the full shapes of parameters,
    buffers and batch tensors by name."""

    shards: dict[str, tuple[int, ...]]
    batch: dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Trace:
    """``lineages[v]``: of tensor v, None where an operator on its way is not supported;
    ``repeats[r]``: what row r repeats, where it does; ``partial``: by row, functions that are
    undefined somewhere, and what they were taken of; ``guessed``: values were matched by what they
    multiply out to, or written otherwise by a law; ``counted``: over how many positions what does
    not vary was summed (`engine.lineage.sums.SOME`: some number)."""

    lineages: list[Lineage | None]
    repeats: dict[int, Repeat] = field(default_factory=dict)
    partial: dict[int, list[tuple[str, Term]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    guessed: bool = False
    counted: frozenset[int] = frozenset()


def reference(program: Program, unrolled: Unrolled) -> Reference:
    """The names and full shapes that the single-device side defines; raises `InvalidInput` where
    two inputs would be one."""
    loads = [row for row in unrolled.rows if row.kind == "load"]
    if len(loads) > 1:
        raise InvalidInput(f"the single-device plan loads the batch {len(loads)} times, expected 1")
    batch = {
        name: unrolled.tensors[value].shape
        for row in loads
        for name, value in zip(batch_names(row), row.outputs, strict=True)
    }
    for shard in program.shards:
        if shard.name == SEED or RESERVED.fullmatch(shard.name):
            raise InvalidInput(f"a parameter is called {shard.name}, which names another input")
    return Reference({s.name: s.full_shape for s in program.shards}, batch)


def batch_names(row: Row) -> list[str]:
    """The names of the batch tensors that a load gives, in order."""
    return [f"batch.{position}" for position in range(len(row.outputs))]


class Tracer:
    """Reads rows over lineages; ``table`` is shared by both sides of a plan."""

    def __init__(
        self,
        plan: Plan,
        programs: Sequence[Program],
        table: NodeTable,
        known: Reference,
        reference_size: int | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.plan = plan
        self.programs = programs
        self.table = table
        self.known = known
        self.mesh = {MICROBATCH: plan.microbatches}
        for program in programs:
            for axis, extent in program.extents.items():
                self.mesh[axis] = max(extent, self.mesh.get(axis, 1))
        self.reading = LineageReading(table, reference_size, self.mesh)
        self.repeats = Repeats(self.reading, forms or Forms(table), reference_size)
        self.extents = [tuple(program.extents.items()) for program in programs]

    def run(self, unrolled: Unrolled, tell: Callable[[int], None] = lambda done: None) -> Trace:
        """The lineages of all rows; ``tell`` is told now and then how many are read."""
        trace = Trace([None] * len(unrolled.tensors))
        empty = any(0 in tensor.shape for tensor in unrolled.tensors)
        for number, row in enumerate(unrolled.rows):
            if number % ROWS_TOLD == 0:
                tell(number)
            inputs = [trace.lineages[v] if v >= 0 else None for v in row.inputs]
            if any(x is None and v >= 0 for x, v in zip(inputs, row.inputs, strict=True)):
                continue
            already = len(self.reading.partial)
            try:
                if empty:
                    self.check_sizes(row, unrolled)
                outputs = self.outputs(number, row, inputs, unrolled)
                self.check_shapes(row, outputs, unrolled)
            except Unsupported as error:
                trace.findings.append(self.finding(UNSUPPORTED, row, str(error)))
                continue
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # A fault of ours, and no word about the plan.
                error.add_note(self.finding("", row, "while this row was read").message)
                raise
            except ShapeMismatch as error:
                trace.findings.append(self.finding("shape", row, str(error)))
                continue
            if len(self.reading.partial) > already:
                trace.partial[number] = self.reading.partial[already:]
            for value, lineage in zip(row.outputs, outputs, strict=True):
                trace.lineages[value] = lineage
        trace.repeats = self.repeats.rows
        matcher = self.reading.matcher
        trace.guessed = self.reading.rewrote or (matcher is not None and matcher.matched)
        trace.counted = frozenset(self.reading.counted)
        return trace

    def outputs(
        self, number: int, row: Row, inputs: Sequence[Lineage | None], unrolled: Unrolled
    ) -> list[Lineage]:
        """As `read`, which is asked for the first row of those that repeat."""
        read = partial(self.read, row, inputs, unrolled)
        return self.repeats.read(number, row, inputs, self.told(row, unrolled), read)

    def told(self, row: Row, unrolled: Unrolled) -> Hashable:
        """What a claim about a row says beside its operator, its attributes and lineages."""
        batched = (
            tuple(unrolled.tensors[v].batched for v in row.inputs if v >= 0)
            if row.kind == "accumulate"
            else ()
        )
        return self.extents[row.programs[0]], batched

    def finding(self, kind: str, row: Row, message: str) -> Finding:
        ranks = tuple(self.programs[p].base for p in row.programs)
        name = f"backward of {row.name}" if row.backward else row.name
        where = f"rank {ranks[0]}: {name}" + (
            f" in {row.source.module}" if row.source.module else ""
        )
        return Finding(
            kind,
            f"{where}: {message}",
            name,
            row.source.module,
            row.source.location or row.source.cell,
            ranks,
            (row.microbatch,) if row.microbatch >= 0 else (),
        )

    @staticmethod
    def check_sizes(row: Row, unrolled: Unrolled) -> None:
        """Raise `Unsupported` for a tensor without entries: a sum over none is zero, a maximum has
        no value, and lineages are views of entries."""
        for value in (*row.inputs, *row.outputs):
            if value >= 0 and 0 in unrolled.tensors[value].shape:
                shape = list(unrolled.tensors[value].shape)
                raise Unsupported(f"a tensor of shape {shape}, which has no entries")

    def check_shapes(self, row: Row, outputs: Sequence[Lineage], unrolled: Unrolled) -> None:
        """The declared true sizes must be those that the operator gives."""
        if len(outputs) != len(row.outputs):
            raise ShapeMismatch(f"{len(row.outputs)} outputs, expected {len(outputs)}")
        for value, lineage in zip(row.outputs, outputs, strict=True):
            declared = unrolled.tensors[value].shape
            if declared != lineage.shape:
                raise ShapeMismatch(
                    f"output {unrolled.tensors[value].name} is declared {list(declared)}, "
                    f"the operator gives {list(lineage.shape)}"
                )

    def read(self, row: Row, inputs: Sequence[Lineage | None], unrolled: Unrolled) -> list[Lineage]:
        """The lineages of a row's outputs; raises `Unsupported`, `ShapeMismatch`,
        `InvalidInput`."""
        if row.kind in ("op", "slice"):
            if row.backward:
                return self.backward(row, inputs)
            return list(apply_forward(self.reading, row.name, inputs, row.attrs))
        if row.kind == "shard":
            return [self.shard(row)]
        if row.kind == "load":
            return [
                self.batch(n, unrolled.tensors[v].shape, row)
                for n, v in zip(batch_names(row), row.outputs, strict=True)
            ]
        if row.kind == "seed":
            return [self.seed(unrolled.tensors[row.outputs[0]].shape, row)]
        present = [x for x in inputs if x is not None]
        if row.kind == "accumulate":
            if not present:
                return [Lineage(unrolled.tensors[row.outputs[0]].shape, ())]
            return [self.accumulate(row, present, unrolled)]
        return self.collective(row, present)

    def backward(self, row: Row, inputs: Sequence[Lineage | None]) -> list[Lineage]:
        wrt = row.attrs.get("wrt")
        arity = row.attrs.get("arity")
        if not isinstance(wrt, tuple) or not isinstance(arity, int):
            raise Unsupported("a backward operator without wrt and arity")
        positions = [w for w in wrt if isinstance(w, int)]
        return list(
            apply_backward(
                self.reading, row.name, inputs[:arity], inputs[arity:], row.attrs, positions
            )
        )

    def accumulate(self, row: Row, inputs: Sequence[Lineage], unrolled: Unrolled) -> Lineage:
        batched = [
            x for x, v in zip(inputs, row.inputs, strict=True) if unrolled.tensors[v].batched
        ]
        once = [
            x for x, v in zip(inputs, row.inputs, strict=True) if not unrolled.tensors[v].batched
        ]
        shapes = {x.shape for x in inputs}
        if len(shapes) > 1:
            raise ShapeMismatch(f"gradients of shapes {sorted(map(list, shapes))} accumulate")
        if batched and row.over:
            batched = [total(self.reading, batched, row.over)]
        return total(self.reading, [*once, *batched], ())

    # -- assumptions ----------------------------------------------------------------------------

    def shard(self, row: Row) -> Lineage:
        program = self.programs[row.programs[0]]
        number = row.attrs["shard"]
        assert isinstance(number, int)
        shard = program.shards[number]
        full = self.known.shards.get(shard.name)
        if full is None:
            raise InvalidInput(
                f"parameter {shard.name} is not in the single-device plan",
                f"rank {program.base}",
            )
        if full != shard.full_shape:
            raise InvalidInput(
                f"parameter {shard.name} has full shape {list(shard.full_shape)}, "
                f"expected {list(full)} as in the single-device plan",
                f"rank {program.base}",
            )
        node = self.input_node(shard.name, full)
        offset = tuple(start.settled(program.extents) for start in shard.offset)
        return box_view(node, full, shard.shape, offset)

    def input_node(self, name: str, full: tuple[int, ...]) -> int:
        return self.table.define(Input(name), tuple(n for n in full if n != 1))

    def slice_number(self, row: Row) -> tuple[Affine, int]:
        """Which slice of the batch a load reads, and of how many."""
        extents = {**self.programs[row.programs[0]].extents, MICROBATCH: self.plan.microbatches}
        replica: Affine = affine(0)
        count = 1
        for axis in self.plan.replica_axes:
            extent = extents.get(axis, 1)
            replica = replica * extent
            if axis in extents:
                replica = replica + affine(0, {axis: 1})
            count *= extent
        microbatch = affine(0, {MICROBATCH: 1}) if row.microbatch < 0 else affine(row.microbatch)
        number = replica * self.plan.microbatches + microbatch
        return number.settled(extents), count * self.plan.microbatches

    def batch(self, name: str, shape: tuple[int, ...], row: Row) -> Lineage:
        full = self.known.batch.get(name)
        where = f"rank {self.programs[row.programs[0]].base}"
        if full is None or len(full) != len(shape):
            raise InvalidInput(
                f"batch tensor {name} of shape {list(shape)}, the single-device plan has "
                f"{'none' if full is None else list(full)}",
                where,
            )
        number, count = self.slice_number(row)
        offset = []
        for n, local in zip(full, shape, strict=True):
            if n == local:
                offset.append(ZERO)
            elif n == local * count:
                offset.append(number * local)
            else:
                raise InvalidInput(
                    f"batch tensor {name} has shape {list(shape)}, expected {list(full)} or its "
                    f"{count} slices (replicas x microbatches)",
                    where,
                )
        return box_view(self.input_node(name, full), full, shape, tuple(offset))

    def seed(self, shape: tuple[int, ...], row: Row) -> Lineage:
        node = self.input_node(SEED, ())
        if any(n != 1 for n in shape):
            raise ShapeMismatch(f"the loss has shape {list(shape)}, expected one element")
        lineage = box_view(node, shape, shape, tuple(ZERO for _ in shape))
        if self.plan.loss != "mean":
            return lineage
        _, count = self.slice_number(row)
        return scaled(lineage, Fraction(1, count))

    # -- communication --------------------------------------------------------------------------

    def collective(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        """What communication gives every member; raises `Unsupported` where there is no rule."""
        reason = refused(row.kind, row.attrs, row.over, len(row.programs))
        if reason:
            raise Unsupported(reason)
        if row.kind in COPIES:
            return self.copied(row, inputs)
        members = len(row.programs)
        if len(inputs) != members:
            raise ShapeMismatch(f"{len(inputs)} inputs over {members} programs")
        declared = TABLE[row.kind]
        shapes = {x.shape for x in inputs}
        alike = len({len(shape) for shape in shapes}) == 1
        if len(shapes) > 1 and not (alike and declared.effect is Effect.GATHER):
            raise ShapeMismatch(f"ranks join {row.kind} with shapes {sorted(map(list, shapes))}")
        return RULES[declared.effect](self, row, inputs)

    def copied(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        if len(inputs) != 1:
            raise ShapeMismatch(f"{len(inputs)} sources in one {row.kind}")
        return [inputs[0]] * len(row.outputs)

    def totals(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        result = total(self.reading, inputs, row.over, str(row.attrs.get("op", "sum")))
        return [result] * len(row.outputs)

    def gathers(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        result = gather(self.reading, inputs, row.over, self.dim(row, inputs[0], "dim"))
        return [result] * len(row.outputs)

    def scatters(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        members = len(row.programs)
        dim = self.dim(row, inputs[0], "dim")
        self.even(row, inputs[0], dim)
        result = total(self.reading, inputs, row.over)
        return [own_slice(self.reading, result, row.over, dim, i, members) for i in range(members)]

    def exchanges(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        split = self.dim(row, inputs[0], "split_dim")
        joined = self.dim(row, inputs[0], "concat_dim")
        self.even(row, inputs[0], split)
        if row.over:
            if split == joined:
                raise Unsupported("an all-to-all that splits and joins the same dimension")
            whole = gather(self.reading, inputs, row.over, joined)
            return [own_slice(self.reading, whole, row.over, split, 0, 1)]
        count = len(inputs)
        return [
            self.reading.concat(
                [own_slice(self.reading, x, (), split, i, count) for x in inputs], joined
            )
            for i in range(count)
        ]

    @staticmethod
    def even(row: Row, x: Lineage, dim: int) -> None:
        """Raise `ShapeMismatch` unless every rank gets an equal part of a dimension."""
        count = group_size(row.over, len(row.programs))
        if x.shape[dim] % count:
            raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")

    @staticmethod
    def dim(row: Row, x: Lineage, key: str) -> int:
        value = row.attrs.get(key)
        if not isinstance(value, int) or not -len(x.shape) <= value < len(x.shape):
            raise ShapeMismatch(f"{key} {value} of a tensor of shape {list(x.shape)}")
        return value % len(x.shape)


#: What the members of a collective have, by its effect.
RULES: Mapping[Effect, Callable[[Tracer, Row, Sequence[Lineage]], list[Lineage]]] = {
    Effect.TOTAL: Tracer.totals,
    Effect.COPY: Tracer.copied,
    Effect.GATHER: Tracer.gathers,
    Effect.SCATTER: Tracer.scatters,
    Effect.EXCHANGE: Tracer.exchanges,
}
