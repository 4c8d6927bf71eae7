"""What the devices of a generated plan run, in order: segments, what is moved between stages, the
losses at the end, reducers."""

from __future__ import annotations

import random

from tests.frontends.pickles import Obj
from tests.frontends.plan_layouts import REPLICATED, crossing, cut, each_its_own
from tests.frontends.plan_records import paired
from tests.frontends.plan_stages import Stage, Writer
from tests.frontends.plan_values import Model, Value


def wire(made: Model, teams: list[Stage], loss: Value, cuts: random.Random | None = None) -> None:
    """What each stage is given and gives: a value goes from stage to stage up to its last
    reader.  ``cuts``: draws in which layout, where all stages have as many devices."""
    counts = {stage.count for stage in teams}
    for value in made.batches:
        readers = {op.output.stage for op in made.operations if value in op.inputs}
        for number in sorted(readers or {0}):
            teams[number].inputs.append(value)
            teams[number].layouts[value] = REPLICATED
    for op in made.operations:
        for value in op.outputs:
            stage = op.output.stage
            if cuts is not None and len(counts) == 1:
                layout = _drawn_cut(value, teams[0].count, cuts)
                for team in teams:
                    team.border[value] = layout
            while made.read_later(value, stage):
                teams[stage].outputs.append(value)
                teams[stage + 1].inputs.append(value)
                teams[stage + 1].layouts[value] = teams[stage + 1].at(value)
                stage += 1
    teams[-1].border.pop(loss, None)
    teams[-1].outputs.append(loss)


def _drawn_cut(value: Value, count: int, draw: random.Random) -> str:
    """A layout in which a value may go from stage to stage."""
    even = [d for d, n in enumerate(value.shape) if n % count == 0 and n >= count]
    return cut(draw.choice(even)) if count > 1 and even and draw.random() < 0.6 else REPLICATED


class Schedule:
    """What the devices run, in order: microbatch after microbatch, or all forward first."""

    def __init__(
        self,
        writer: Writer,
        teams: list[Stage],
        bodies: list[list[tuple[Obj, Obj]]],
        *,
        in_turns: bool = False,
    ) -> None:
        self.in_turns = in_turns
        self.writer, self.teams, self.bodies = writer, teams, bodies
        devices = [d for stage in teams for d in stage.team.devices]
        self.sequences: dict[int, list[Obj]] = {d: [] for d in devices}
        # Whoever reads a part of the batch loads all of it.
        batches = writer.model.batches
        loaded = [teams[0].part(x, REPLICATED, 0) for x in batches]
        self.loads = {
            d: writer.build.data(loaded)
            for stage in teams
            for d in stage.team.devices
            if stage.number == 0 or any(x in stage.inputs for x in batches)
        }
        self.over = {
            (number, value, backward): _cross(writer, teams, number, value, backward)
            for number in range(len(teams) - 1)
            for value in teams[number].outputs
            for backward in (False, True)
        }
        self.forwards: dict[tuple[int, int, int], Obj] = {}
        self.loaded: set[tuple[int, int]] = set()

    def run(self, microbatches: int) -> dict[int, list[Obj]]:
        numbers = range(microbatches)
        if self.in_turns:
            self.turns(microbatches)
            return self.sequences
        if self.writer.draw.random() < 0.5:
            for m in numbers:
                self.forth(m)
                self.back(m)
        else:
            for m in numbers:
                self.forth(m)
            for m in numbers:
                self.back(m)
        return self.sequences

    def use(self, cell: Obj, m: int) -> Obj:
        loads_batch = cell.name == "IRDataOperation"
        ins = [] if loads_batch else [self.writer.again(x, m) for x in cell.state["_inputs"]]
        outs = [self.writer.again(x, m) for x in cell.state["_outputs"]]
        return self.writer.build.use(cell, ins, outs)

    def move(self, number: int, backward: bool, m: int) -> None:
        for value in self.teams[number].outputs:
            for device, adapter in self.over[number, value, backward]:
                self.sequences[device].append(self.use(adapter, m))

    def turns(self, microbatches: int) -> None:
        """One forward, one backward (1F1B): each stage as soon as it can, in its own order."""
        waiting = []
        for number in range(len(self.teams)):
            ahead = min(microbatches, len(self.teams) - number)
            order = [(False, m) for m in range(ahead)]
            for m in range(microbatches):
                order.append((True, m))
                order += [(False, m + ahead)] if m + ahead < microbatches else []
            waiting.append(order)
        done: set[tuple[int, bool, int]] = set()
        while any(waiting):
            for number, order in enumerate(waiting):
                if not order:
                    continue
                backward, m = order[0]
                last = number == len(self.teams) - 1
                before = (number, False, m) if last else (number + 1, True, m)
                if not backward:
                    before = (number - 1, False, m)
                if before[0] >= 0 and before not in done:
                    continue
                order.pop(0)
                done.add((number, backward, m))
                (self.stage_back if backward else self.stage_forth)(number, m)

    def forth(self, m: int) -> None:
        for number in range(len(self.teams)):
            self.stage_forth(number, m)

    def stage_forth(self, number: int, m: int) -> None:
        stage = self.teams[number]
        for place, device in enumerate(stage.team.devices):
            if device in self.loads and (device, m) not in self.loaded:
                self.loaded.add((device, m))
                self.sequences[device].append(self.use(self.loads[device], m))
            made = self.use(self.bodies[number][place][0], m)
            self.forwards[number, place, m] = made
            self.sequences[device].append(made)
        if number < len(self.teams) - 1:
            self.move(number, False, m)

    def back(self, m: int) -> None:
        for number in range(len(self.teams) - 1, -1, -1):
            self.stage_back(number, m)

    def stage_back(self, number: int, m: int) -> None:
        for place, device in enumerate(self.teams[number].team.devices):
            made = self.use(self.bodies[number][place][1], m)
            paired(self.forwards[number, place, m], made)
            self.sequences[device].append(made)
        if number:
            self.move(number - 1, True, m)


def _cross(
    writer: Writer, teams: list[Stage], number: int, value: Value, backward: bool
) -> list[tuple[int, Obj]]:
    """The adapters between two stages, by device."""
    team, there = teams[number].team, teams[number + 1].team
    if team.devices == there.devices or (backward and not value.graded):
        # What a device has it does not send.
        return []
    senders, receivers = (there, team) if backward else (team, there)
    replicated = teams[number].at(value) == REPLICATED
    if replicated:
        out, into = crossing(senders, receivers, writer.full(value), backward)
    parts = [
        teams[number].at_border(value, place)
        for place in range(1 if replicated else len(team.devices))
    ]
    tensors = [x.state["_grad"] if backward else x for x in parts]
    if replicated:
        tensors *= max(len(senders.devices), len(receivers.devices))
    else:
        out, into = each_its_own(senders, receivers, tensors)
    ident = next(writer.build.numbers)
    found = []
    for device, prims, tensor in zip(senders.devices, out, tensors, strict=False):
        if prims:
            adapter = writer.build.adapter(not backward, prims, [tensor], [], device, ident)
            found.append((device, adapter))
    for device, prims, tensor in zip(receivers.devices, into, tensors, strict=False):
        adapter = writer.build.adapter(not backward, prims, [], [tensor], device, ident)
        found.append((device, adapter))
    writer.communications.append([x for each in (*out, *into) for x in each])
    return found


def returned(
    writer: Writer,
    teams: list[Stage],
    loss: Value,
    sequences: dict[int, list[Obj]],
    microbatches: int,
) -> list[Obj]:
    """The losses, brought to all devices at the end of the step."""
    build = writer.build
    part = teams[-1].part(loss, REPLICATED, 0)
    root = teams[-1].team.devices[0]
    others = {d for stage in teams[:-1] for d in stage.team.devices} - {*teams[-1].team.devices}
    outputs = [writer.again(part, m) for m in range(microbatches)]
    ranks = sorted([root, *others])
    kwargs = {"src": root, "ranks": ranks, "shape": (1,), "dtype": "torch.float32"}
    for tensor in outputs if others else ():
        ident = next(build.numbers)
        for device in ranks:
            given = [tensor] if device == root else []
            prim = build.prim("BroadcastPrim", given, [tensor], device, **kwargs)
            sequences[device].append(build.adapter(True, [prim], given, [tensor], device, ident))
    return outputs


def reducers(writer: Writer, sequences: dict[int, list[Obj]], replicas: int) -> None:
    for (value, layout), (stage, partial) in writer.weights.items():
        count = stage.count
        full = writer.full(value)
        holders = sorted(writer.holders[value])
        if len(holders) > count:
            # Stages of one device each read it: what each has of its gradient is an addend.
            weight = stage.team.part(full, layout, 0)
            for device in holders:
                reducer = writer.build.reducer([weight], holders)
                sequences[device].append(reducer)
                writer.reducers.append(reducer)
        elif partial and count > 1:
            weight = stage.team.part(full, layout, 0)
            for device in stage.team.devices:
                reducer = writer.build.reducer([weight], stage.team.devices)
                sequences[device].append(reducer)
                writer.reducers.append(reducer)
        elif replicas > 1:
            for place, device in enumerate(stage.team.devices):
                weight = stage.team.part(full, layout, place)
                reducer = writer.build.reducer([weight], [device])
                sequences[device].append(reducer)
                writer.reducers.append(reducer)
