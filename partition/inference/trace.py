"""Lineages of every value of a program: the instances of an unrolled side, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.findings import UNSUPPORTED, Finding
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Addend, Lineage, box_view
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import COPIES, TABLE, Effect, group_size, refused
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.specification.conclusions import scaled
from shardproof.partition.inference.collectives import gather, is_stray, own_slice, total
from shardproof.partition.inference.forms import Forms
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.memoise import Repeat, Repeats
from shardproof.partition.inference.references import SEED, Reference, batch_names

#: After so many instances each it is told how many are done.
ROWS_TOLD = 64


@dataclass(slots=True)
class Trace:
    """The lineages of one side, and what was noted on the way. ``lineages[v]``: of tensor v, None
    where an operator on its way is not supported; ``repeats[r]``: what instance r repeats, where it
    does; ``partial``: by instance, functions that are undefined somewhere, and what they were taken
    of; ``strayed``: tensors that are no single-device values though all that they are joined of
    is, behind which nothing is read; ``guessed``: values were matched by what they multiply
    out to, or written otherwise by a law; ``opened``: by instance, definitions that show it;
    ``counted``: over how many positions what does not vary was summed
    (`engine.lineage.sums.SOME`: some number).

    Example: ``lineages[38]`` of the GPT of examples/gpt.py, an embedding whose table is divided
    over the vocabulary, is ``n40[a1[<8*dp + 4*mb> +4 of 16], a2[32], a0[64]] part #0[<256*tp> +256
    of 512]``.
    """

    lineages: list[Lineage | None]
    repeats: dict[int, Repeat] = field(default_factory=dict)
    partial: dict[int, list[tuple[str, Addend]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    strayed: set[int] = field(default_factory=set)
    guessed: bool = False
    opened: dict[int, frozenset[int]] = field(default_factory=dict)
    counted: frozenset[int] = frozenset()

    def inputs(self, instance: Instance) -> list[Lineage | None] | None:
        """The lineages of an instance's inputs, None for an operand that is left out; None in all
        if one of them is not known, or strayed."""
        if not self.strayed.isdisjoint(instance.inputs):
            return None
        inputs = [self.lineages[v] if v >= 0 else None for v in instance.inputs]
        known = all(x is not None or v < 0 for x, v in zip(inputs, instance.inputs, strict=True))
        return inputs if known else None


class Tracer:
    """Reads instances over lineages; ``table`` is shared by both sides of a plan.

    Example: an ``all_reduce`` over ``tp`` of partial logits is read by `total`, an ``all_gather``
    by `gather`.
    """

    def __init__(
        self,
        plan: Plan,
        programs: Sequence[Program],
        table: NodeTable,
        known: Reference,
        reference_size: int | None = None,
        forms: Forms | None = None,
        reading: type[LineageInterpreter] = LineageInterpreter,
    ) -> None:
        """``reading``: how operators are read over lineages."""
        self.plan = plan
        self.programs = programs
        self.table = table
        self.known = known
        self.mesh = {MICROBATCH: plan.microbatches}
        for program in programs:
            for axis, extent in program.extents.items():
                self.mesh[axis] = max(extent, self.mesh.get(axis, 1))
        self.interpreter = reading(table, reference_size, self.mesh)
        self.repeats = Repeats(self.interpreter, forms or Forms(table), reference_size)
        self.extents = [tuple(program.extents.items()) for program in programs]

    def go_on_from(self, earlier: Tracer) -> None:
        """Know what another one, over the same table and mesh, has read.

        Example: of a plan in which one operator was exchanged, only the rows that depend on it are
        read.
        """
        self.interpreter = earlier.interpreter
        self.repeats = earlier.repeats
        self.repeats.rows = {}
        if self.interpreter.matcher is not None:
            self.interpreter.matcher.renew()

    def run(
        self,
        unrolled: Unrolled,
        tell: Callable[[int], None] = lambda done: None,
        past_strays: bool = True,
        demanded: Set[int] = frozenset(),
    ) -> Trace:
        """The lineages of all instances; ``tell`` is told now and then how many are read.

        ``demanded``: values that conclusions are about.  Without ``past_strays`` what is made of a
        stray is not read: parts of single-device values joined to what is none of them, as by an
        all-gather in another order.
        """
        trace = Trace([None] * len(unrolled.tensors))
        size = self.interpreter.reference_size
        empty = any(0 in tensor.shape for tensor in unrolled.tensors)
        for number, instance in enumerate(unrolled.instances):
            if number % ROWS_TOLD == 0:
                tell(number)
            inputs = trace.inputs(instance)
            if inputs is None:
                continue
            already = len(self.interpreter.partial)
            self.interpreter.opened.clear()
            try:
                if empty:
                    self.check_sizes(instance, unrolled)
                outputs = self.outputs(number, instance, inputs, unrolled)
                self.check_shapes(instance, outputs, unrolled)
            except (Unsupported, Misaligned) as error:
                why = str(error) or "its operands are parts of values that are cut unlike"
                trace.findings.append(self.finding(UNSUPPORTED, instance, why))
                continue
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # A fault of ours, and no word about the plan.
                error.add_note(self.finding("", instance, "while this row was read").message)
                raise
            except ShapeMismatch as error:
                trace.findings.append(self.finding("shape", instance, str(error)))
                continue
            if self.interpreter.opened:
                trace.opened[number] = frozenset(self.interpreter.opened)
            if len(self.interpreter.partial) > already:
                trace.partial[number] = self.interpreter.partial[already:]
            for value, lineage in zip(instance.outputs, outputs, strict=True):
                whole = self.interpreter.summed_up if value in demanded else _as_it_is
                trace.lineages[value] = whole(lineage)
            if not past_strays and is_stray(instance.kind, inputs, outputs, size):
                trace.strayed.update(instance.outputs)
        trace.repeats = self.repeats.rows
        matcher = self.interpreter.matcher
        trace.guessed = self.interpreter.rewrote or (matcher is not None and matcher.matched)
        trace.counted = frozenset(self.interpreter.counted)
        return trace

    def outputs(
        self, number: int, instance: Instance, inputs: Sequence[Lineage | None], unrolled: Unrolled
    ) -> list[Lineage]:
        """As `read`, which is asked for the first instance of those that repeat."""
        read = partial(self.read, instance, inputs, unrolled)
        return self.repeats.read(
            number, instance, inputs, self.claim_context(instance, unrolled), read
        )

    def claim_context(self, instance: Instance, unrolled: Unrolled) -> Hashable:
        """What a claim about an instance says beside its operator, its attributes and lineages."""
        batched = (
            tuple(unrolled.tensors[v].batched for v in instance.inputs if v >= 0)
            if instance.kind == "accumulate"
            else ()
        )
        return self.extents[instance.programs[0]], batched

    def finding(self, kind: str, instance: Instance, message: str) -> Finding:
        """A finding about an instance, with its operator, place and ranks."""
        ranks = tuple(self.programs[p].base for p in instance.programs)
        name = f"backward of {instance.name}" if instance.backward else instance.name
        where = f"rank {ranks[0]}: {name}" + (
            f" in {instance.source.module}" if instance.source.module else ""
        )
        return Finding(
            kind,
            f"{where}: {message}",
            name,
            instance.source.module,
            instance.source.location or instance.source.cell,
            ranks,
            (instance.microbatch,) if instance.microbatch >= 0 else (),
        )

    @staticmethod
    def check_sizes(instance: Instance, unrolled: Unrolled) -> None:
        """Raise `Unsupported` for a tensor without entries: a sum over none is zero, a maximum has
        no value, and lineages are views of entries."""
        for value in (*instance.inputs, *instance.outputs):
            if value >= 0 and 0 in unrolled.tensors[value].shape:
                shape = list(unrolled.tensors[value].shape)
                raise Unsupported(f"a tensor of shape {shape}, which has no entries")

    def check_shapes(
        self, instance: Instance, outputs: Sequence[Lineage], unrolled: Unrolled
    ) -> None:
        """The declared true sizes must be those that the operator gives."""
        if len(outputs) != len(instance.outputs):
            raise ShapeMismatch(f"{len(instance.outputs)} outputs, expected {len(outputs)}")
        for value, lineage in zip(instance.outputs, outputs, strict=True):
            declared = unrolled.tensors[value].shape
            if declared != lineage.shape:
                raise ShapeMismatch(
                    f"output {unrolled.tensors[value].name} is declared {list(declared)}, "
                    f"the operator gives {list(lineage.shape)}"
                )

    def read(
        self, instance: Instance, inputs: Sequence[Lineage | None], unrolled: Unrolled
    ) -> list[Lineage]:
        """The lineages of an instance's outputs; raises `Unsupported`, `ShapeMismatch`,
        `InvalidInput`."""
        if instance.kind in ("op", "slice"):
            if instance.backward:
                return self.backward(instance, inputs)
            return list(apply_forward(self.interpreter, instance.name, inputs, instance.attrs))
        if instance.kind == "shard":
            return [self.shard(instance)]
        if instance.kind == "load":
            return [
                self.batch(n, unrolled.tensors[v].shape, instance)
                for n, v in zip(batch_names(instance), instance.outputs, strict=True)
            ]
        if instance.kind == "seed":
            return [self.seed(unrolled.tensors[instance.outputs[0]].shape, instance)]
        present = [x for x in inputs if x is not None]
        if instance.kind == "accumulate":
            if not present:
                return [Lineage(unrolled.tensors[instance.outputs[0]].shape, ())]
            return [self.accumulate(instance, present, unrolled)]
        return self.collective(instance, present)

    def backward(self, instance: Instance, inputs: Sequence[Lineage | None]) -> list[Lineage]:
        """The gradients that an operator's derivative gives."""
        wrt = instance.attrs.get("wrt")
        arity = instance.attrs.get("arity")
        if not isinstance(wrt, tuple) or not isinstance(arity, int):
            raise Unsupported("a backward operator without wrt and arity")
        positions = [w for w in wrt if isinstance(w, int)]
        return list(
            apply_backward(
                self.interpreter,
                instance.name,
                inputs[:arity],
                inputs[arity:],
                instance.attrs,
                positions,
            )
        )

    def accumulate(
        self, instance: Instance, inputs: Sequence[Lineage], unrolled: Unrolled
    ) -> Lineage:
        """The sum of what arrives for one gradient, over microbatches where it is one for each."""
        batched = [
            x for x, v in zip(inputs, instance.inputs, strict=True) if unrolled.tensors[v].batched
        ]
        once = [
            x
            for x, v in zip(inputs, instance.inputs, strict=True)
            if not unrolled.tensors[v].batched
        ]
        shapes = {x.shape for x in inputs}
        if len(shapes) > 1:
            raise ShapeMismatch(f"gradients of shapes {sorted(map(list, shapes))} accumulate")
        if batched and instance.over:
            batched = [total(self.interpreter, batched, instance.over)]
        return total(self.interpreter, [*once, *batched], ())

    # -- assumptions ----------------------------------------------------------------------------

    def shard(self, instance: Instance) -> Lineage:
        """The box of a parameter or another named input."""
        program = self.programs[instance.programs[0]]
        number = instance.attrs["shard"]
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
        """The node of a named input, whose axes are its dimensions of more than one position."""
        return self.table.define(Input(name), tuple(n for n in full if n != 1))

    def slice_number(self, instance: Instance) -> tuple[Affine, int]:
        """Which slice of the batch a load reads, and of how many."""
        extents = {
            **self.programs[instance.programs[0]].extents,
            MICROBATCH: self.plan.microbatches,
        }
        replica: Affine = affine(0)
        count = 1
        for axis in self.plan.replica_axes:
            extent = extents.get(axis, 1)
            replica = replica * extent
            if axis in extents:
                replica = replica + affine(0, {axis: 1})
            count *= extent
        microbatch = (
            affine(0, {MICROBATCH: 1}) if instance.microbatch < 0 else affine(instance.microbatch)
        )
        number = replica * self.plan.microbatches + microbatch
        return number.settled(extents), count * self.plan.microbatches

    def batch(self, name: str, shape: tuple[int, ...], instance: Instance) -> Lineage:
        """The slice of a batch tensor that a microbatch reads."""
        full = self.known.batch.get(name)
        where = f"rank {self.programs[instance.programs[0]].base}"
        if full is None or len(full) != len(shape):
            raise InvalidInput(
                f"batch tensor {name} of shape {list(shape)}, the single-device plan has "
                f"{'none' if full is None else list(full)}",
                where,
            )
        number, count = self.slice_number(instance)
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

    def seed(self, shape: tuple[int, ...], instance: Instance) -> Lineage:
        """The incoming gradient of a loss."""
        node = self.input_node(SEED, ())
        if any(n != 1 for n in shape):
            raise ShapeMismatch(f"the loss has shape {list(shape)}, expected one element")
        lineage = box_view(node, shape, shape, tuple(ZERO for _ in shape))
        if self.plan.loss != "mean":
            return lineage
        _, count = self.slice_number(instance)
        return scaled(lineage, Fraction(1, count))

    # -- communication --------------------------------------------------------------------------

    def collective(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """What communication gives every member; raises `Unsupported` where there is no rule."""
        reason = refused(instance.kind, instance.attrs, instance.over, len(instance.programs))
        if reason:
            raise Unsupported(reason)
        if instance.kind in COPIES:
            return self.copied(instance, inputs)
        members = len(instance.programs)
        if len(inputs) != members:
            raise ShapeMismatch(f"{len(inputs)} inputs over {members} programs")
        declared = TABLE[instance.kind]
        shapes = {x.shape for x in inputs}
        alike = len({len(shape) for shape in shapes}) == 1
        if len(shapes) > 1 and not (alike and declared.effect is Effect.GATHER):
            raise ShapeMismatch(
                f"ranks join {instance.kind} with shapes {sorted(map(list, shapes))}"
            )
        return RULES[declared.effect](self, instance, inputs)

    def copied(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """The members' copies of one operand."""
        if len(inputs) != 1:
            raise ShapeMismatch(f"{len(inputs)} sources in one {instance.kind}")
        return [inputs[0]] * len(instance.outputs)

    def totals(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """All-reduce: the sum or maximum over the group."""
        result = total(
            self.interpreter, inputs, instance.over, str(instance.attrs.get("op", "sum"))
        )
        return [result] * len(instance.outputs)

    def gathers(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """All-gather: what the group has, one after the other."""
        result = gather(
            self.interpreter, inputs, instance.over, self.dim(instance, inputs[0], "dim")
        )
        return [result] * len(instance.outputs)

    def scatters(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """Reduce-scatter: each rank's part of the sum over the group."""
        members = len(instance.programs)
        dim = self.dim(instance, inputs[0], "dim")
        self.even(instance, inputs[0], dim)
        result = total(self.interpreter, inputs, instance.over)
        return [
            own_slice(self.interpreter, result, instance.over, dim, i, members)
            for i in range(members)
        ]

    def exchanges(self, instance: Instance, inputs: Sequence[Lineage]) -> list[Lineage]:
        """All-to-all: each rank's part of what every other one has."""
        split = self.dim(instance, inputs[0], "split_dim")
        joined = self.dim(instance, inputs[0], "concat_dim")
        self.even(instance, inputs[0], split)
        if instance.over:
            if split == joined:
                raise Unsupported("an all-to-all that splits and joins the same dimension")
            whole = gather(self.interpreter, inputs, instance.over, joined)
            return [own_slice(self.interpreter, whole, instance.over, split, 0, 1)]
        count = len(inputs)
        return [
            self.interpreter.concat(
                [own_slice(self.interpreter, x, (), split, i, count) for x in inputs], joined
            )
            for i in range(count)
        ]

    @staticmethod
    def even(instance: Instance, x: Lineage, dim: int) -> None:
        """Raise `ShapeMismatch` unless every rank gets an equal part of a dimension."""
        count = group_size(instance.over, len(instance.programs))
        if x.shape[dim] % count:
            raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")

    @staticmethod
    def dim(instance: Instance, x: Lineage, key: str) -> int:
        """The dimension that an attribute names, counted from the front."""
        value = instance.attrs.get(key)
        if not isinstance(value, int) or not -len(x.shape) <= value < len(x.shape):
            raise ShapeMismatch(f"{key} {value} of a tensor of shape {list(x.shape)}")
        return value % len(x.shape)


#: What the members of a collective have, by its effect.
RULES: Mapping[Effect, Callable[[Tracer, Instance, Sequence[Lineage]], list[Lineage]]] = {
    Effect.TOTAL: Tracer.totals,
    Effect.COPY: Tracer.copied,
    Effect.GATHER: Tracer.gathers,
    Effect.SCATTER: Tracer.scatters,
    Effect.EXCHANGE: Tracer.exchanges,
}


def _as_it_is(x: Lineage) -> Lineage:
    return x
