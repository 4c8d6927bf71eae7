"""The segments of a generated plan: operators in their layouts, adapters between them, and the
records of each microbatch's tensors."""

from __future__ import annotations

import random
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_layouts import PARTIAL, REPLICATED, Team, fused, local, ways
from tests.frontends.plan_models import choices
from tests.frontends.plan_records import Box, Builder, paired
from tests.frontends.plan_values import Choice, Model, Operation, Thing, Value


class Stage:
    """The forward and backward segments of one stage, device by device."""

    def __init__(self, writer: Writer, number: int, devices: list[int]) -> None:
        self.writer = writer
        self.number = number
        self.team = Team(writer.build, devices, writer.draw)
        self.forward: list[list[Obj]] = [[] for _ in devices]
        self.backward: list[list[Obj]] = [[] for _ in devices]
        self.layouts: dict[Value, str] = {}
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        #: In which layout a value is at the stage's border, where that is not replicated.
        self.border: dict[Value, str] = {}
        self.made: dict[tuple[Value, str, str], bool] = {}

    @property
    def count(self) -> int:
        return len(self.team.devices)

    def part(self, value: Value, layout: str, place: int, graded: str = REPLICATED) -> Obj:
        return self.team.part(self.writer.full(value), layout, place, graded)

    def operation(self, op: Operation) -> None:
        choice = self.writer.draw.choice(self.possible(op))
        values = [x for x in op.inputs if isinstance(x, Value)]
        for value, layout, graded in zip(values, choice.inputs, choice.gradients, strict=True):
            if value.weight:
                self.hold(value, layout, graded)
            else:
                self.arrange(value, layout, graded)
        made = []
        for place in range(self.count):
            layouts = iter(zip(choice.inputs, choice.gradients, strict=True))
            inputs = [
                self.part(x, *_with(place, next(layouts)))
                if isinstance(x, Value)
                else self.writer.named(x)
                for x in op.inputs
            ]
            outputs = [
                self.part(x, layout, place)
                for x, layout in zip(op.outputs, choice.outputs, strict=True)
            ]
            kwargs = {k: self.writer.named(v) for k, v in local(op, inputs, outputs).items()}
            given = outputs or [self.writer.named(op.output)]
            node = self.writer.build.op(
                op.signature, inputs, given, f"stage{self.number}", **kwargs
            )
            if op.anno:
                node.state["_annos_candidates"] = (op.anno,)
            self.forward[place].append(node)
            if any(x.graded for x in op.outputs):
                self.backward[place].insert(0, self.writer.build.backward(node))
            made.append(node)
        self.writer.operators.append(made)
        self.layouts.update(zip(op.outputs, choice.outputs, strict=True))

    def hold(self, value: Value, layout: str, graded: str) -> None:
        """A parameter that an operator reads, in the layouts of it and of its gradient."""
        self.writer.held(value, self, layout, graded == PARTIAL)

    def possible(self, op: Operation) -> list[Choice]:
        """The layouts of an operation, in which a weight that was read before is as it was."""
        found = []
        for choice in choices(op, self.count):
            values = [x for x in op.inputs if isinstance(x, Value)]
            rows = zip(values, choice.inputs, choice.gradients, strict=True)
            if all(
                self.writer.kept.get(value, (layout, graded == PARTIAL))
                == (layout, graded == PARTIAL)
                for value, layout, graded in rows
                if value.weight
            ):
                found.append(choice)
        return found

    def is_kept(self, value: Value, layout: str, graded: str) -> bool:
        """Whether the adapter that was made to this layout before is drawn to serve again."""
        key = (value, layout, graded)
        if key in self.made and self.writer.draw.random() < 0.7:
            return True
        self.made[key] = True
        return False

    def arrange(self, value: Value, layout: str, graded: str, *, output: bool = False) -> None:
        """An adapter to the layout in which a value is needed, if it needs one."""
        source = self.layouts[value]
        idle = source == layout and (not value.graded or graded in (REPLICATED, layout))
        if self.count == 1 or (idle and source != PARTIAL):
            return
        if self.is_kept(value, layout, graded):
            return
        build, full, draw = self.writer.build, self.writer.full(value), self.writer.draw
        # The gradient that the producer needs: of an addend, the whole one.
        back = REPLICATED if source in (REPLICATED, PARTIAL) else source
        whole = value.graded and draw.random() < 0.6
        number = next(build.numbers)
        forth = ways(self.team, full, source, layout)
        backs = ways(self.team, full.state["_grad"], graded, back) if value.graded else []
        prims: list[list[Obj]] = []
        for place, device in enumerate(self.team.devices):
            into = self.part(value, source, place)
            out = self.part(value, layout, place, graded)
            if whole:
                kind, kwargs = fused(source, layout, graded, self.team.devices)
                own = [build.prim(kind, [into], [out], device, **kwargs)]
                gradient = own
            else:
                own = self.team.prims(device, into, out, *forth[place])
                if not own:
                    own = [build.prim("IdentityPrim", [into], [out], device)]
                gradient = []
            adapter = build.adapter(True, own, [into], [out], device, number)
            self.forward[place].append(adapter)
            prims.append(own)
            if not value.graded:
                continue
            given, taken = out.state["_grad"], into.state["_grad"]
            if not whole:
                gradient = self.team.prims(device, given, taken, *backs[place])
                gradient = gradient or [build.prim("IdentityPrim", [given], [taken], device)]
            mirror = build.adapter(False, gradient, [given], [taken], device, number + 1_000_000)
            paired(adapter, mirror)
            self.backward[place].insert(0, mirror)
            if not whole:
                prims.append(gradient)
        self.writer.communications.append([x for each in prims for x in each])

    def at(self, value: Value) -> str:
        """The layout of a value, and of its gradient, at the stage's border."""
        return self.border.get(value, REPLICATED)

    def at_border(self, value: Value, place: int) -> Obj:
        return self.part(value, self.at(value), place, self.at(value))

    def segments(self) -> list[tuple[Obj, Obj]]:
        """The forward and backward segments of the devices."""
        build, found = self.writer.build, []
        for value in self.outputs:
            self.arrange(value, self.at(value), self.at(value), output=True)
        for place in range(self.count):
            ins = [self.at_border(x, place) for x in self.inputs]
            outs = [self.at_border(x, place) for x in self.outputs]
            forward = build.segment(self.forward[place], ins, outs)
            given = [x.state["_grad"] for x in outs]
            taken = [x.state["_grad"] for x in ins if x.state["_grad"] is not None]
            backward = build.segment(self.backward[place], given, taken)
            paired(forward, backward)
            found.append((forward, backward))
        return found


def _with(place: int, layouts: tuple[str, str]) -> tuple[str, int, str]:
    return layouts[0], place, layouts[1]


class Writer:
    def __init__(self, draw: random.Random, model: Model) -> None:
        self.draw = draw
        self.model = model
        self.build = Builder()
        self.fulls: dict[Value, Obj] = {}
        self.things: dict[Thing, Obj] = {}
        self.copies: dict[tuple[int, int], Obj] = {}
        self.of_gradient: dict[int, Obj] = {}
        self.weights: dict[tuple[Value, str], tuple[Stage, bool]] = {}
        self.kept: dict[Value, tuple[str, bool]] = {}
        #: On grids: the layout of a parameter's gradient.
        self.graded: dict[Value, str] = {}
        self.holders: dict[Value, set[int]] = {}
        #: Parts of weights that a device has several of, with the device.
        self.pieces: list[tuple[Value, Box, int]] = []
        self.communications: list[list[Obj]] = []
        self.operators: list[list[Obj]] = []
        self.reducers: list[Obj] = []

    def full(self, value: Value) -> Obj:
        if value not in self.fulls:
            made = self.build.full(
                value.name, *value.shape, attr=value.weight, loss=value.loss, kind=value.kind
            )
            if not value.graded:
                made.state["_grad"] = None
                made.state["_requires_grad"] = False
            self.fulls[value] = made
            self.of_gradient[id(made.state["_grad"])] = made
        return self.fulls[value]

    def named(self, value: Any) -> Any:
        """A constant, with records of what is no tensor in the place of these."""
        if isinstance(value, tuple):
            return tuple(map(self.named, value))
        if not isinstance(value, Thing):
            return value
        return self.things.setdefault(value, self.build.thing(value.name))

    def held(self, value: Value, stage: Stage, layout: str, partial: bool) -> None:
        self.weights[value, layout] = (stage, partial)
        self.kept[value] = (layout, partial)
        self.holders.setdefault(value, set()).update(stage.team.devices)

    def again(self, part: Obj, microbatch: int) -> Obj:
        """A microbatch's own tensor in the place of a body's."""
        if microbatch == 0:
            return part
        of = part.state["_full_tensor"]
        is_grad = of.state["_is_grad"]
        base = self.of_gradient[id(of)] if is_grad else of
        key = (id(base), microbatch)
        if key not in self.copies:
            made = self.build.full(
                base.state["name"],
                *base.state["_shape"],
                loss=base.state["_is_loss"],
                kind=base.state["_dtype"].name,
            )
            if base.state["_grad"] is None:
                made.state["_grad"], made.state["_requires_grad"] = None, False
            self.copies[key] = made
        copy = self.copies[key]
        box = part.state["_indmap"].state["_indices"]
        addend = part.state["_valmap"].state["_weight"]
        if is_grad:
            return self.build._sub(copy.state["_grad"], box, addend)
        return self.build.part(copy, box, addend)
