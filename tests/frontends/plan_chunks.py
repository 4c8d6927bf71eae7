"""Operators that a device runs part by part, one after the other, each with its part of a weight.

A planner that partitions an operator and assigns several parts to one device gives each of them a
copy of what they read (``graph/gener/gen.py``, ``local_consumer_multiref``) and joins what they
make by ``cat`` or ``accum`` (``local_producer_fusion``).  Parts may differ in size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_layouts import PARTIAL, REPLICATED, addend_of, dim_of, local
from tests.frontends.plan_models import choices
from tests.frontends.plan_records import Box
from tests.frontends.plan_stages import Stage
from tests.frontends.plan_values import Choice, Operation, Value

_RUNTIME = "nnscaler.runtime.function"
#: Attributes that are the same for each part, or told by the part of a table.
_ANY_SIZE = (None, "rows", "experts")


#: From where to where a part is, of all of it.
Share = tuple[Fraction, Fraction]


def within(box: Box, dim: int, share: Share) -> Box:
    """A share of a box along one dimension."""
    start, end = box[dim]
    low, high = (start + int(x * (end - start)) for x in share)
    return (*box[:dim], (low, high), *box[dim + 1 :])


class ChunkedStage(Stage):
    """The segments of a stage on devices some of whose operators are in parts."""

    def operation(self, op: Operation) -> None:
        every = [x for x in choices(op, 2 * self.count) if self.may_chunk(op, x)]
        if not every or self.writer.draw.random() < 0.3:
            super().operation(op)
            return
        self.chunked(op, self.writer.draw.choice(every))

    def may_chunk(self, op: Operation, choice: Choice) -> bool:
        """Whether all weights are cut, each read by this operator alone, and nothing else is."""
        values = [x for x in op.inputs if isinstance(x, Value)]
        readers = [x for each in self.writer.model.operations for x in each.inputs]
        weights = [x for x in values if x.weight]
        return (
            bool(weights)
            and len(op.outputs) == 1
            and op.output.graded
            and not op.output.loss
            and all(
                layout.startswith("D") if value.weight else layout == REPLICATED
                for value, layout in zip(values, choice.inputs, strict=True)
            )
            and all(readers.count(x) == 1 for x in weights)
        )

    def chunked(self, op: Operation, choice: Choice) -> None:
        """The operator in parts on each device, between copies and what joins its results."""
        build, made = self.writer.build, []
        values = [x for x in op.inputs if isinstance(x, Value)]
        rows = list(zip(values, choice.inputs, choice.gradients, strict=True))
        for value, layout, graded in rows:
            if not value.weight:
                self.arrange(value, layout, graded)
        whole = build.full(f"{op.output.name}_parts", *op.output.shape)
        cuts = self.cuts(op, rows, choice.outputs[0])
        for place in range(self.count):
            copies = {v: self.copies(v, place, g, len(cuts)) for v, _, g in rows if not v.weight}
            results = []
            for number, share in enumerate(cuts):
                inputs: list[Any] = []
                for x in op.inputs:
                    if not isinstance(x, Value):
                        inputs.append(self.writer.named(x))
                    elif not x.weight:
                        inputs.append(copies[x][number])
                    else:
                        layout = choice.inputs[values.index(x)]
                        box = within(self.box(x, layout, place), dim_of(layout), share)
                        inputs.append(build.part(self.writer.full(x), box))
                        self.writer.pieces.append((x, box, self.team.devices[place]))
                out = self.result(op.output, whole, choice.outputs[0], place, number, cuts)
                kwargs = {k: self.writer.named(v) for k, v in local(op, inputs, [out]).items()}
                made.append(self.run(place, op.signature, inputs, [out], op.anno, **kwargs))
                results.append(out)
            self.joined(op.output, choice.outputs[0], place, results)
        self.writer.operators.append(made)
        self.layouts[op.output] = choice.outputs[0]

    def box(self, value: Value, layout: str, place: int) -> Box:
        part = self.part(value, layout, place)
        box: Box = part.state["_indmap"].state["_indices"]
        return box

    def cuts(
        self, op: Operation, rows: Sequence[tuple[Value, str, str]], output: str
    ) -> list[Share]:
        """The share of each part: of equal sizes, or not."""
        sizes = {
            high - low
            for value, layout, _ in rows
            if value.weight
            for low, high in [self.box(value, layout, 0)[dim_of(layout)]]
        }
        if output != PARTIAL:
            low, high = self.box(op.output, output, 0)[dim_of(output)]
            sizes.add(high - low)
        at = Fraction(1, 2)
        if len(sizes) == 1 and op.local in _ANY_SIZE and self.writer.draw.random() < 0.5:
            (size,) = sizes
            at = Fraction(self.writer.draw.randint(1, size - 1), size)
        return [(Fraction(0), at), (at, Fraction(1))]

    def copies(self, value: Value, place: int, graded: str, count: int) -> list[Obj]:
        """What each part reads of a value."""
        build, own = self.writer.build, self.part(value, REPLICATED, place, graded)
        if not value.graded:
            return [own] * count
        box = own.state["_indmap"].state["_indices"]
        made = [
            build.part(build.full(f"{value.name}_copy{n}", *value.shape), box) for n in range(count)
        ]
        self.run(place, f"{_RUNTIME}.multiref", [own], made, times=count)
        return made

    def result(
        self, value: Value, whole: Obj, layout: str, place: int, number: int,
        cuts: Sequence[Share],
    ) -> Obj:  # fmt: skip
        """What one part makes: the positions of it, or one addend of as many as there are parts."""
        build = self.writer.build
        box = self.box(value, layout, place)
        if layout == PARTIAL:
            count = len(cuts)
            addend = addend_of(PARTIAL, place * count + number, self.count * count)
            return build.part(whole, box, addend)
        return build.part(whole, within(box, dim_of(layout), cuts[number]))

    def joined(self, value: Value, layout: str, place: int, parts: list[Obj]) -> None:
        out = self.part(value, layout, place)
        if layout == PARTIAL:
            self.run(place, f"{_RUNTIME}.accum", parts, [out])
        else:
            self.run(place, f"{_RUNTIME}.cat", parts, [out], dim=dim_of(layout))

    def run(
        self, place: int, signature: str, inputs: list[Any], outputs: list[Obj], anno: str = "",
        **kwargs: Any,
    ) -> Obj:  # fmt: skip
        """An operator of one device, forward and backward."""
        build = self.writer.build
        node = build.op(signature, inputs, outputs, f"stage{self.number}", **kwargs)
        if anno:
            node.state["_annos_candidates"] = (anno,)
        self.forward[place].append(node)
        self.backward[place].insert(0, build.backward(node))
        return node

    def reducers(self, sequences: dict[int, list[Obj]], replicas: int) -> None:
        """A reducer for each part of a weight, where there are replicas."""
        build = self.writer.build
        for value, box, device in self.writer.pieces if replicas > 1 else ():
            if device in self.team.devices:
                reducer = build.reducer([build.part(self.writer.full(value), box)], [device])
                sequences[device].append(reducer)
                self.writer.reducers.append(reducer)


def sizes_of(draw: random.Random, stages: int) -> list[int]:
    """How many devices each stage has."""
    return [draw.choice((1, 2, 2)) for _ in range(stages)]
