"""Lineages of every value of a program: the rows of an unrolled side, read one by one."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import prod
from typing import NamedTuple

from engine.affine import ZERO, Affine, affine
from engine.conclusions import scaled
from engine.errors import InvalidInput, ShapeMismatch, Unsupported
from engine.findings import Finding
from engine.ir import MICROBATCH, Plan, Program
from engine.lineage import Lineage, NodeTable, Term, box_view
from engine.ops import apply_backward, apply_forward
from engine.rows import Row, Unrolled
from partition.communicate import gather, own_slice, total
from partition.forms import Forms
from partition.infer import LineageReading
from partition.repeat import Repeat, Repeats

#: The name of the incoming gradient of the loss, among inputs; and those of batch tensors.
SEED = "loss gradient"
RESERVED = re.compile(r"batch\.[0-9]+")

#: The kind of a finding about an operator without a meaning; other findings are contradictions.
UNSUPPORTED = "unsupported operator"


class Reference(NamedTuple):
    """What the single-device side defines for the other one: the full shapes of parameters,
    buffers and batch tensors by name."""

    shards: dict[str, tuple[int, ...]]
    batch: dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Trace:
    """``lineages[v]``: of tensor v, None where an operator on its way is not supported;
    ``repeats[r]``: what row r repeats, where it does; ``partial``: functions that are undefined
    somewhere, and what they were taken of; ``guessed``: values were matched by what they multiply
    out to."""

    lineages: list[Lineage | None]
    repeats: dict[int, Repeat] = field(default_factory=dict)
    partial: list[tuple[str, Term]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    guessed: bool = False


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

    def run(self, unrolled: Unrolled) -> Trace:
        trace = Trace([None] * len(unrolled.tensors))
        for number, row in enumerate(unrolled.rows):
            inputs = [trace.lineages[v] if v >= 0 else None for v in row.inputs]
            if any(x is None and v >= 0 for x, v in zip(inputs, row.inputs, strict=True)):
                continue
            try:
                outputs = self.outputs(number, row, inputs, unrolled)
                self.check_shapes(row, outputs, unrolled)
            except Unsupported as error:
                trace.findings.append(self.finding(UNSUPPORTED, row, str(error)))
                continue
            except (IndexError, ValueError, ArithmeticError) as error:
                message = f"it does not take these operands ({error})"
                trace.findings.append(self.finding("shape", row, message))
                continue
            except ShapeMismatch as error:
                trace.findings.append(self.finding("shape", row, str(error)))
                continue
            for value, lineage in zip(row.outputs, outputs, strict=True):
                trace.lineages[value] = lineage
        trace.repeats = self.repeats.rows
        trace.partial = self.reading.partial
        trace.guessed = self.reading.matcher is not None and self.reading.matcher.matched
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
        if row.kind == "recv":
            return present
        if row.kind == "accumulate":
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
        return self.table.node("input", (name,), tuple(n for n in full if n != 1))

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
        members = len(row.programs)
        kind = str(row.attrs.get("op", "sum"))
        known = ("sum", "max") if row.kind in ("all_reduce", "reduce") else ("sum",)
        if kind not in known:
            raise Unsupported(f"{row.kind} with {kind}")
        if row.kind == "broadcast":
            if row.over:
                raise Unsupported("a broadcast along mesh axes")
            if len(inputs) != 1:
                raise ShapeMismatch(f"{len(inputs)} sources in one broadcast")
            return [inputs[0]] * len(row.outputs)
        if len(inputs) != members:
            raise ShapeMismatch(f"{len(inputs)} inputs over {members} programs")
        shapes = {x.shape for x in inputs}
        if len(shapes) > 1 and row.kind != "all_gather":
            raise ShapeMismatch(f"ranks join {row.kind} with shapes {sorted(map(list, shapes))}")
        if row.kind in ("all_reduce", "reduce"):
            result = total(self.reading, inputs, row.over, kind)
            return [result] * len(row.outputs)
        if row.over and members > 1:
            raise Unsupported(f"{row.kind} over explicit ranks and mesh axes together")
        if row.kind == "all_gather":
            result = gather(self.reading, inputs, row.over, self.dim(row, inputs[0], "dim"))
            return [result] * len(row.outputs)
        if row.kind == "reduce_scatter":
            dim = self.dim(row, inputs[0], "dim")
            self.even(row, inputs[0], dim)
            result = total(self.reading, inputs, row.over)
            return [
                own_slice(self.reading, result, row.over, dim, i, members) for i in range(members)
            ]
        return self.all_to_all(row, inputs)

    def all_to_all(self, row: Row, inputs: Sequence[Lineage]) -> list[Lineage]:
        split = self.dim(row, inputs[0], "split_dim")
        joined = self.dim(row, inputs[0], "concat_dim")
        self.even(row, inputs[0], split)
        if row.over:
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
        count = len(row.programs) * prod(extent for _, extent in row.over)
        if x.shape[dim] % count:
            raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")

    @staticmethod
    def dim(row: Row, x: Lineage, key: str) -> int:
        value = row.attrs.get(key)
        if not isinstance(value, int) or not -len(x.shape) <= value < len(x.shape):
            raise ShapeMismatch(f"{key} {value} of a tensor of shape {list(x.shape)}")
        return value % len(x.shape)
