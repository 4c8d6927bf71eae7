"""Stages on a grid of devices: each operator in one layout along the rows and in another one along
the columns, as a planner writes it that replicates, cuts and sums up at once (``graph/gener/rvd``).

A layout is ``D0|V``: cut along the rows, addends along the columns; ``R`` is ``R|R``.  Both never
cut one dimension, and devices that have one part of a parameter alike all read it by parts of one
operator or all by copies of it (``IRAdapterGener.gen_weight`` refuses anything between).
"""

from __future__ import annotations

import random
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_layouts import (
    PARTIAL,
    REPLICATED,
    Rows,
    Team,
    box_of,
    dim_of,
    fused,
)
from tests.frontends.plan_models import choices
from tests.frontends.plan_records import paired
from tests.frontends.plan_stages import Stage, Writer
from tests.frontends.plan_values import Choice, Operation, Value


def pair(layout: str) -> list[str]:
    """The layouts along the rows and along the columns."""
    return layout.split("|") if "|" in layout else [layout, layout]


def named(rows: str, columns: str) -> str:
    return rows if rows == columns else f"{rows}|{columns}"


def fits(layout: str) -> bool:
    """Whether a tensor may be laid out so: both axes never cut one dimension."""
    rows, columns = pair(layout)
    return rows != columns or not rows.startswith("D")


class GridTeam(Team):
    """Devices in rows and columns: ``sizes`` of them."""

    sizes: tuple[int, int] = (1, 1)

    def places(self, place: int) -> tuple[int, int]:
        return divmod(place, self.sizes[1])

    def line(self, place: int, axis: int) -> list[int]:
        """The devices that lie along one axis with that of a place."""
        here = self.places(place)[1 - axis]
        return [d for n, d in enumerate(self.devices) if self.places(n)[1 - axis] == here]

    def part(self, full: Obj, layout: str, place: int, graded: str = REPLICATED) -> Obj:
        shape = full.state["_shape"]
        box = [(0, n) for n in shape]
        for own, at, count in zip(pair(layout), self.places(place), self.sizes, strict=True):
            if own.startswith("D"):
                box[dim_of(own)] = box_of(shape, own, at, count)[dim_of(own)]
        addend = self.addend(layout, place)
        return self.build.part(full, tuple(box), addend, graded=self.addend(graded, place))

    def addend(self, layout: str, place: int) -> tuple[int, int]:
        number, count = 0, 1
        for own, at, size in zip(pair(layout), self.places(place), self.sizes, strict=True):
            if own == PARTIAL:
                number, count = number * size + at, count * size
        return number, count


class GridStage(Stage):
    """The segments of a stage on a grid."""

    def __init__(self, writer: Writer, number: int, devices: list[int], columns: int) -> None:
        super().__init__(writer, number, devices)
        self.grid = GridTeam(writer.build, devices, writer.draw)
        self.grid.sizes = (len(devices) // columns, columns)
        self.team = self.grid

    def hold(self, value: Value, layout: str, graded: str) -> None:
        super().hold(value, layout, graded)
        self.writer.graded[value] = graded

    def possible(self, op: Operation) -> list[Choice]:
        rows, columns = (choices(op, n) for n in self.grid.sizes)
        values = [x for x in op.inputs if isinstance(x, Value)]
        found = []
        for one in rows:
            for two in columns:
                inputs, outputs, gradients = (
                    [named(a, b) for a, b in zip(x, y, strict=True)]
                    for x, y in (
                        (one.inputs, two.inputs),
                        (one.outputs, two.outputs),
                        (one.gradients, two.gradients),
                    )
                )
                weights = [
                    row for row in zip(values, inputs, gradients, strict=True) if row[0].weight
                ]
                if all(map(fits, (*inputs, *outputs, *gradients))) and all(
                    self.may_hold(*row) for row in weights
                ):
                    found.append(Choice(inputs, outputs, gradients))
        mixed = [x for x in found if any("|" in each for each in (*x.inputs, *x.outputs))]
        return mixed or found

    def may_hold(self, value: Value, layout: str, graded: str) -> bool:
        alike = {g for x, g in zip(pair(layout), pair(graded), strict=True) if x == REPLICATED}
        kept = self.writer.kept.get(value, (layout, graded == PARTIAL))[0]
        return len(alike) < 2 and (kept, self.writer.graded.get(value, graded)) == (layout, graded)

    def arrange(self, value: Value, layout: str, graded: str, *, output: bool = False) -> None:
        source = self.layouts[value]
        back = named(*(x if x.startswith("D") else REPLICATED for x in pair(source)))
        if source == layout and (not value.graded or graded == back):
            return
        if self.is_kept(value, layout, graded):
            return
        build, full, draw = self.writer.build, self.writer.full(value), self.writer.draw
        number = next(build.numbers)
        ends = zip(*map(pair, (source, back, layout, graded)), strict=True)
        axes = [n for n, (a, b, c, d) in enumerate(ends) if (a, b) != (c, d)]
        whole = value.graded and len(axes) == 1 and draw.random() < 0.6
        forth = path(draw, source, layout)
        backs = path(draw, graded, back) if value.graded else []
        prims: list[list[Obj]] = []
        for place, device in enumerate(self.team.devices):
            into = self.part(value, source, place)
            out = self.part(value, layout, place, graded)
            if whole:
                one, two, last = (pair(x)[axes[0]] for x in (source, layout, graded))
                kind, kwargs = fused(one, two, last, self.grid.line(place, axes[0]))
                own = [build.prim(kind, [into], [out], device, **kwargs)]
            else:
                own = self.chain(full, place, into, out, source, forth)
            adapter = build.adapter(True, own, [into], [out], device, number)
            self.forward[place].append(adapter)
            prims.append(own)
            if not value.graded:
                continue
            given, taken = out.state["_grad"], into.state["_grad"]
            gradient = own
            if not whole:
                gradient = self.chain(full.state["_grad"], place, given, taken, graded, backs)
                prims.append(gradient)
            mirror = build.adapter(False, gradient, [given], [taken], device, number + 1_000_000)
            paired(adapter, mirror)
            self.backward[place].insert(0, mirror)
        self.writer.communications.append([x for each in prims for x in each])

    def chain(
        self,
        full: Obj,
        place: int,
        into: Obj,
        out: Obj,
        source: str,
        steps: list[tuple[int, str]],
    ) -> list[Obj]:
        """Plain primitives of one device along ``steps``: an axis and its next layout."""
        device, current = self.team.devices[place], pair(source)
        rows: Rows = []
        for axis, target in steps:
            ranks = {"ranks": self.grid.line(place, axis)}
            kind, kwargs = _step(current[axis], target, ranks)
            current[axis] = target
            rows.append((kind, self.team.part(full, named(*current), place), kwargs))
        if not rows:
            return [self.writer.build.prim("IdentityPrim", [into], [out], device)]
        return self.team.prims(device, into, out, *rows)


def _step(source: str, target: str, ranks: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The primitive that changes one axis of a layout."""
    if target == PARTIAL:
        return "VChunkPrim", ranks
    if target == REPLICATED:
        gathered = "AllGatherPrim", {"dim": dim_of(source) if source != PARTIAL else 0, **ranks}
        return ("AllReducePrim", ranks) if source == PARTIAL else gathered
    if source.startswith("D"):
        return "AllToAllPrim", {"idim": dim_of(source), "odim": dim_of(target), **ranks}
    kind = "ReduceScatterPrim" if source == PARTIAL else "ChunkPrim"
    return kind, {"dim": dim_of(target), **ranks}


def path(draw: random.Random, source: str, target: str) -> list[tuple[int, str]]:
    """Axis by axis from one layout to another, through layouts that fit."""
    orders = draw.sample([(0, 1), (1, 0)], 2)
    for order in orders:
        current, found = pair(source), []
        for axis in order:
            if current[axis] == pair(target)[axis]:
                continue
            if current[axis].startswith("D") and pair(target)[axis] == PARTIAL:
                # No primitive makes addends of parts.
                found.append((axis, REPLICATED))
            current[axis] = pair(target)[axis]
            found.append((axis, current[axis]))
            if not fits(named(*current)):
                break
        else:
            return found
    steps = [(n, REPLICATED) for n in orders[0] if pair(source)[n] != REPLICATED]
    return steps + [(n, x) for n, x in enumerate(pair(target)) if x != REPLICATED]


def grid_reducers(writer: Writer, sequences: dict[int, list[Obj]], replicas: int) -> None:
    """A reducer for the parameters that devices have alike and have addends of gradients of."""
    for (value, layout), (stage, _) in writer.weights.items():
        team = stage.team
        assert isinstance(team, GridTeam)
        summed = [
            own == REPLICATED and graded == PARTIAL
            for own, graded in zip(pair(layout), pair(writer.graded[value]), strict=True)
        ]
        for place, device in enumerate(team.devices):
            group = [
                d
                for n, d in enumerate(team.devices)
                if all(
                    over or a == b
                    for over, a, b in zip(summed, team.places(n), team.places(place), strict=True)
                )
            ]
            if len(group) > 1 or replicas > 1:
                weight = team.part(writer.full(value), layout, place)
                reducer = writer.build.reducer([weight], group)
                sequences[device].append(reducer)
                writer.reducers.append(reducer)
