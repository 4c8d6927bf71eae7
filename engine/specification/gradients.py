"""The single-device values that a plan is held against, as operator instances of our own.

What a gradient has to be follows from the forward program alone, unless the plan's expectations
name a value of the single-device program for it.  A plan's backward operators, the single-device
plan's included, are held against these.  Where a value is several addends (a loss of several
terms), their sum is an operator instance, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.ops import lookup
from shardproof.engine.plan.expectations import GRADIENT, LOSS, table
from shardproof.engine.plan.ir import Addend, Attr, Expectation, Plan, Program, Source
from shardproof.engine.schedule.instances import Instance, Tensor, Unrolled
from shardproof.engine.specification.given import Given


class Derived(NamedTuple):
    """The single-device side with all that its plan is held against.

    Example: of 17 instances with two parameters ``gradients`` is ``{0: 25, 1: 23}``, ``loss`` 8,
    ``seed`` 18, and ``unrolled`` has 24 instances.

    ``unrolled``: the given rows, then sums of addends, then the derivative's; ``gradients``: by
    number of the single-device program's shard (the first one that holds this box) its value;
    ``loss``: the loss's value, ``seed``: that of its incoming gradient (-1: none); ``given``: how
    many rows were given; ``values``: by kind and name of expectations the value that they are
    about.
    """

    unrolled: Unrolled
    gradients: dict[int, int]
    loss: int
    seed: int
    given: int
    values: dict[tuple[str, str], int]


@dataclass(slots=True)
class _Deriver:
    instances: list[Instance]
    tensors: list[Tensor]
    arriving: dict[int, list[int]]

    def value(self, like: int, name: str) -> int:
        self.tensors.append(self.tensors[like]._replace(name=name))
        return len(self.tensors) - 1

    def made(
        self, operator: str, inputs: Sequence[int], like: int, name: str, **attrs: Attr
    ) -> int:
        """The result of one more operator, of the shape of ``like``."""
        result = self.value(like, name)
        self.instances.append(
            Instance("op", operator, (0,), tuple(inputs), (result,), attrs, Source())
        )
        return result

    def gradient(self, value: int) -> int:
        """The gradient of a value from all its uses (-1: none)."""
        parts = self.arriving.get(value, [])
        if not parts:
            return -1
        if len(parts) > 1:
            name = f"gradient of {self.tensors[value].name}"
            self.arriving[value] = [self.made("add_n", parts, value, name)]
        return self.arriving[value][0]

    def total(self, name: str, parts: Sequence[int]) -> int:
        """The gradient of a parameter that is read in several places."""
        if len(parts) == 1:
            return parts[0]
        return self.made("add_n", parts, parts[0], f"gradient of {name}")

    def unrolled(self, single: Unrolled) -> Unrolled:
        """All rows, of a side whose given ones are those of ``single``."""
        return replace(single, instances=self.instances, tensors=self.tensors, symbolic=True)

    def sum(self, name: str, parts: Sequence[tuple[int, Fraction]]) -> int:
        """A value that several addends make; one element is one element, however it is written."""
        first = parts[0][0]
        shape = self.tensors[first].shape
        addends = []
        for value, weight in parts:
            if self.tensors[value].shape != shape:
                value = self.made("view", (value,), first, name, size=shape)
            if weight != 1:
                value = self.made("mul", (value,), value, name, other=weight)
            addends.append(value)
        return addends[0] if len(addends) == 1 else self.made("add_n", addends, first, name)


def recorded(plan: Plan, single: Unrolled) -> Derived:
    """The single-device side with the gradients that its own backward accumulates, in place of the
    derivative of its forward.

    Example: of a single-device program with a backward of its own ``gradients`` is
    ``{0: 16, 1: 17}``, what it accumulates, and no instance is added.
    """
    rows = table(plan)
    work, values = _values(plan, single, rows)
    loss = next((values.get((r.kind, r.name), -1) for r in rows if r.kind == LOSS), -1)
    first = first_of_box(plan.single)
    gradients = {first[shard]: value for _, shard, value in single.gradients}
    return Derived(work.unrolled(single), gradients, loss, -1, len(single.instances), values)


def derive(plan: Plan, single: Unrolled) -> Derived:
    """The single-device side, and after it the instances of what expectations are about: sums of
    addends, and the derivative of the loss.

    Example: 17 instances of ``y = w2 silu(w1 x)``, its own backward among them, and 7 of the
    derivative of its loss, with respect to w1 and w2.

    Raises `Unsupported` if a gradient is expected and there is no loss, or an operator has no
    declaration; `InvalidInput` if a value that is expected is computed nowhere, or several times.
    """
    rows = table(plan)
    work, values = _values(plan, single, rows)
    loss = next((values.get((r.kind, r.name), -1) for r in rows if r.kind == LOSS), -1)
    gradients: dict[int, int] = {}
    seed = -1
    if any(row.kind == GRADIENT and not row.single for row in rows) or not plan.expectations:
        if loss < 0:
            raise Unsupported("a single-device program with 0 losses, expected one")
        gradients, seed = _differentiate(plan.single, work, loss)
    return Derived(work.unrolled(single), gradients, loss, seed, len(single.instances), values)


def _values(
    plan: Plan, single: Unrolled, rows: Sequence[Expectation]
) -> tuple[_Deriver, dict[tuple[str, str], int]]:
    """The given rows with the sums that expectations are about, and by kind and name where."""
    read = Given(plan, single)
    work = _Deriver(list(single.instances), list(single.tensors), {})
    values: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row.kind, row.name)
        if row.single and key not in values:
            values[key] = work.sum(row.name, _addends(read, row.kind, row.single))
    return work, values


def _addends(read: Given, kind: str, addends: Sequence[Addend]) -> list[tuple[int, Fraction]]:
    """The tensors of a single-device value, each with its weight."""
    result = []
    for addend in addends:
        tensors = [tensor for tensor, _ in read.of(addend)]
        if kind != LOSS and len(tensors) != 1:
            raise InvalidInput(
                f"the single-device plan computes a value that is expected {len(tensors)} times",
                kind,
            )
        result += [(tensor, addend.weight) for tensor in tensors]
    if not result:
        raise Unsupported("a single-device program with 0 losses, expected one")
    return result


def _differentiate(program: Program, work: _Deriver, loss: int) -> tuple[dict[int, int], int]:
    """Append the reverse derivative of a loss: the gradient of every parameter, by the first shard
    that holds it, and the seed."""
    tensors = work.tensors
    forward = list(work.instances)
    needed = _needing_gradients(program, forward)
    seed = work.value(loss, "loss gradient")
    work.instances.append(Instance("seed", "loss gradient", (0,), (), (seed,), {}, Source()))
    work.arriving[loss] = [seed]
    for instance in reversed([r for r in forward if r.kind == "op" and not r.backward]):
        data = lookup(instance.name).index_data(len(instance.inputs))
        wrt = [i for i, v in enumerate(instance.inputs) if v in needed and i not in data]
        outputs = [work.gradient(v) for v in instance.outputs]
        if not wrt or all(g < 0 for g in outputs):
            continue
        results = [
            work.value(instance.inputs[i], f"gradient of {tensors[instance.inputs[i]].name}")
            for i in wrt
        ]
        attrs = {**instance.attrs, "wrt": tuple(wrt), "arity": len(instance.inputs)}
        inputs = (*instance.inputs, *outputs)
        work.instances.append(
            Instance(
                "op", instance.name, (0,), inputs, tuple(results), attrs, instance.source, True
            )
        )
        for i, result in zip(wrt, results, strict=True):
            work.arriving.setdefault(instance.inputs[i], []).append(result)
    _disjoint(program)
    first = first_of_box(program)
    uses: dict[int, list[int]] = {}
    for instance in forward:
        number = instance.attrs.get("shard")
        if instance.kind == "shard" and isinstance(number, int) and instance.outputs[0] in needed:
            gradient = work.gradient(instance.outputs[0])
            if gradient >= 0:
                uses.setdefault(first[number], []).append(gradient)
    return {n: work.total(program.shards[n].name, parts) for n, parts in uses.items()}, seed


def first_of_box(program: Program) -> list[int]:
    """For every shard the first one that is the same box of the same parameter.

    Example: of shards w, v and w again ``[0, 1, 0]``.
    """
    known: dict[object, int] = {}
    return [
        known.setdefault((shard.name, shard.offset, shard.shape), number)
        for number, shard in enumerate(program.shards)
    ]


def _disjoint(program: Program) -> None:
    """Raise `Unsupported` where a parameter is held in boxes that overlap: the gradient of neither
    is that of what it holds."""
    boxes: dict[str, set[tuple[tuple[int, int], ...]]] = {}
    for shard in program.shards:
        box = tuple((o.const, o.const + n) for o, n in zip(shard.offset, shard.shape, strict=True))
        if not shard.trainable:
            continue
        for other in boxes.setdefault(shard.name, set()) - {box}:
            if len(other) != len(box):
                raise Unsupported(
                    f"a single-device program that holds {shard.name} with {len(other)} and with "
                    f"{len(box)} dimensions"
                )
            if all(a < d and c < b for (a, b), (c, d) in zip(box, other, strict=True)):
                raise Unsupported(
                    f"a single-device program that holds parts of {shard.name} that overlap"
                )
        boxes[shard.name].add(box)


def _needing_gradients(program: Program, instances: Sequence[Instance]) -> set[int]:
    """Values that depend on a trainable parameter otherwise than as index data."""
    needed: set[int] = set()
    for instance in instances:
        if instance.kind == "shard":
            number = instance.attrs["shard"]
            if isinstance(number, int) and program.shards[number].trainable:
                needed.update(instance.outputs)
        elif instance.kind == "op" and not instance.backward:
            data = lookup(instance.name).index_data(len(instance.inputs))
            if any(v in needed and i not in data for i, v in enumerate(instance.inputs)):
                needed.update(instance.outputs)
    return needed
