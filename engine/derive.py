"""The reverse derivative of a single-device program, as operator instances of our own.

What a gradient has to be follows from the forward program alone.  A plan's backward operators, the
single-device plan's included, are held against these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import Unsupported
from engine.ir import Program, Source
from engine.ops import lookup
from engine.rows import Row, Tensor, Unrolled


class Derived(NamedTuple):
    """``unrolled``: the given rows, then those of the derivative; ``gradients``: parameter name ->
    value; ``loss``: the loss's value; ``seed``: the value of its incoming gradient; ``given``: how
    many rows were given."""

    unrolled: Unrolled
    gradients: dict[str, int]
    loss: int
    seed: int
    given: int


@dataclass(slots=True)
class _Deriver:
    rows: list[Row]
    tensors: list[Tensor]
    arriving: dict[int, list[int]]

    def value(self, like: int, name: str) -> int:
        self.tensors.append(self.tensors[like]._replace(name=name))
        return len(self.tensors) - 1

    def gradient(self, value: int) -> int:
        """The gradient of a value from all its uses (-1: none)."""
        parts = self.arriving.get(value, [])
        if len(parts) > 1:
            total = self.value(value, f"gradient of {self.tensors[value].name}")
            self.rows.append(Row("op", "add_n", (0,), tuple(parts), (total,), {}, Source()))
            self.arriving[value] = [total]
            return total
        return parts[0] if parts else -1

    def total(self, name: str, parts: list[int]) -> int:
        """The gradient of a parameter that is read in several places."""
        if len(parts) == 1:
            return parts[0]
        if len({self.tensors[v].shape for v in parts}) > 1:
            raise Unsupported(f"a single-device program that holds parts of {name}")
        result = self.value(parts[0], f"gradient of {name}")
        self.rows.append(Row("op", "add_n", (0,), tuple(parts), (result,), {}, Source()))
        return result


def derive(program: Program, single: Unrolled) -> Derived:
    """Append the reverse derivative of the forward rows of a single-device side.

    Raises `Unsupported` if there is not exactly one loss, or an operator has no declaration.
    """
    losses = {value for _, _, value in single.losses}
    if len(losses) != 1:
        raise Unsupported(f"a single-device program with {len(losses)} losses, expected one")
    loss = losses.pop()
    rows, tensors = list(single.rows), list(single.tensors)
    work = _Deriver(rows, tensors, {})
    needed = _needing_gradients(program, single)
    seed = work.value(loss, "loss gradient")
    rows.append(Row("seed", "loss gradient", (0,), (), (seed,), {}, Source()))
    work.arriving[loss] = [seed]
    for row in reversed([r for r in single.rows if r.kind == "op" and not r.backward]):
        data = lookup(row.name).index_data(len(row.inputs))
        wrt = [i for i, v in enumerate(row.inputs) if v in needed and i not in data]
        outputs = [work.gradient(v) for v in row.outputs]
        if not wrt or all(g < 0 for g in outputs):
            continue
        results = [
            work.value(row.inputs[i], f"gradient of {tensors[row.inputs[i]].name}") for i in wrt
        ]
        attrs = {**row.attrs, "wrt": tuple(wrt), "arity": len(row.inputs)}
        rows.append(
            Row(
                "op",
                row.name,
                (0,),
                (*row.inputs, *outputs),
                tuple(results),
                attrs,
                row.source,
                True,
            )
        )
        for i, result in zip(wrt, results, strict=True):
            work.arriving.setdefault(row.inputs[i], []).append(result)
    uses: dict[str, list[int]] = {}
    for row in single.rows:
        if row.kind == "shard" and row.outputs[0] in needed:
            found = work.gradient(row.outputs[0])
            if found >= 0:
                uses.setdefault(row.name, []).append(found)
    gradients = {name: work.total(name, parts) for name, parts in uses.items()}
    derived = Unrolled(
        rows, tensors, single.losses, single.gradients, symbolic=True, instances=single.instances
    )
    return Derived(derived, gradients, loss, seed, len(single.rows))


def _needing_gradients(program: Program, single: Unrolled) -> set[int]:
    """Values that depend on a trainable parameter otherwise than as index data."""
    needed: set[int] = set()
    for row in single.rows:
        if row.kind == "shard":
            number = row.attrs["shard"]
            if isinstance(number, int) and program.shards[number].trainable:
                needed.update(row.outputs)
        elif row.kind == "op" and not row.backward:
            data = lookup(row.name).index_data(len(row.inputs))
            if any(v in needed and i not in data for i, v in enumerate(row.inputs)):
                needed.update(row.outputs)
    return needed
