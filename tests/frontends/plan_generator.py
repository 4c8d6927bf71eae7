"""Random plans as nnScaler's planner would write them: small models, placements and adapters.

A model is a chain of small operators over [batch, sequence, hidden] with residual connections, cut
into stages; each stage runs on a team of devices, each operator in one of the layouts that it has
(replicated, along a dimension, over its weight).  What `plan_changes.changed` alters afterwards may make a plan
wrong; `tests.frontends.lockstep` says whether it does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_blocks import Blocks
from tests.frontends.plan_families import Families, family
from tests.frontends.plan_layouts import PARTIAL, REPLICATED, Team, crossing, fused, local, ways
from tests.frontends.plan_models import choices, model
from tests.frontends.plan_records import Builder, paired
from tests.frontends.plan_values import Choice, Model, Operation, Thing, Value

# -- records
# -----------------------------------------------------------------------------------------


@dataclass
class Plans:
    """The records of a single-device plan and a parallel one, and what can be changed in the
    latter: primitives of one communication (a list for each device), operators, reducers."""

    single: Obj
    parallel: Obj
    weights: dict[str, tuple[int, ...]]
    batches: list[Value]
    microbatches: int
    replicas: int
    mean: bool = False
    communications: list[list[Obj]] = field(default_factory=list)
    operators: list[list[Obj]] = field(default_factory=list)
    reducers: list[Obj] = field(default_factory=list)


class _Stage:
    """The forward and backward segments of one stage, device by device."""

    def __init__(self, writer: _Writer, number: int, devices: list[int]) -> None:
        self.writer = writer
        self.number = number
        self.team = Team(writer.build, devices, writer.draw)
        self.forward: list[list[Obj]] = [[] for _ in devices]
        self.backward: list[list[Obj]] = [[] for _ in devices]
        self.layouts: dict[Value, str] = {}
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
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
                partial = graded == PARTIAL
                self.writer.held(value, self, layout, partial)
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

    def arrange(self, value: Value, layout: str, graded: str, *, output: bool = False) -> None:
        """An adapter to the layout in which a value is needed, if it needs one."""
        source = self.layouts[value]
        idle = source == layout and (not value.graded or graded in (REPLICATED, layout))
        if self.count == 1 or (idle and source != PARTIAL):
            return
        key = (value, layout, graded)
        if key in self.made and self.writer.draw.random() < 0.7:
            return
        self.made[key] = True
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

    def segments(self) -> list[tuple[Obj, Obj]]:
        """The forward and backward segments of the devices."""
        build, found = self.writer.build, []
        for value in self.outputs:
            self.arrange(value, REPLICATED, REPLICATED, output=True)
        for place in range(self.count):
            ins = [self.part(x, REPLICATED, place) for x in self.inputs]
            outs = [self.part(x, REPLICATED, place) for x in self.outputs]
            forward = build.segment(self.forward[place], ins, outs)
            given = [x.state["_grad"] for x in outs]
            taken = [x.state["_grad"] for x in ins if x.state["_grad"] is not None]
            backward = build.segment(self.backward[place], given, taken)
            paired(forward, backward)
            found.append((forward, backward))
        return found


def _with(place: int, layouts: tuple[str, str]) -> tuple[str, int, str]:
    return layouts[0], place, layouts[1]


class _Writer:
    def __init__(self, draw: random.Random, model: Model) -> None:
        self.draw = draw
        self.model = model
        self.build = Builder()
        self.fulls: dict[Value, Obj] = {}
        self.things: dict[Thing, Obj] = {}
        self.copies: dict[tuple[int, int], Obj] = {}
        self.of_gradient: dict[int, Obj] = {}
        self.weights: dict[tuple[Value, str], tuple[_Stage, bool]] = {}
        self.kept: dict[Value, tuple[str, bool]] = {}
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

    def held(self, value: Value, stage: _Stage, layout: str, partial: bool) -> None:
        self.weights[value, layout] = (stage, partial)
        self.kept[value] = (layout, partial)

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


def single_plan(draw: random.Random, made: Model) -> Obj:
    """The model on one device."""
    writer = _Writer(draw, made)
    stage = _Stage(writer, 0, [0])
    stage.layouts.update(dict.fromkeys(made.batches, REPLICATED))
    stage.inputs = list(made.batches)
    for op in made.operations:
        stage.operation(op)
    loss = made.operations[-1].output
    stage.outputs = [loss]
    ((forward, backward),) = stage.segments()
    data = writer.build.data([stage.part(x, REPLICATED, 0) for x in made.batches])
    output = stage.part(loss, REPLICATED, 0)
    return writer.build.root({0: [data, forward, backward]}, [output])


def scaled(made: Model, slices: int) -> Model:
    """The model on a batch that is so many times larger."""
    import copy

    whole = copy.deepcopy(made)
    values = [*whole.batches, *(x for op in whole.operations for x in op.outputs)]
    for value in values:
        if value.batched:
            sizes = list(value.shape)
            sizes[value.along] *= slices
            value.shape = tuple(sizes)
    return whole


#: Of what random models are made: small operators, or the blocks of these.
KINDS: dict[str, type[Families] | None] = {"small": None, "families": Families, "blocks": Blocks}


def plans(seed: int, kind: str = "small") -> Plans:
    """A pair of plans; the parallel one is right.  ``kind``: of small operators at random, of models
    that people train (`tests.frontends.plan_families`), or of further blocks (`plan_blocks`)."""
    draw = random.Random(seed)
    stages = draw.choice((1, 1, 2, 2, 3))
    sizes = [draw.choice((1, 2, 2, 3) if stages == 1 else (1, 2, 2)) for _ in range(stages)]
    if stages == 1 and sizes[0] < 3 and draw.random() < 0.2:
        sizes = [4]
    if draw.random() < 0.5:
        sizes = [sizes[0]] * stages
    replicas = draw.choice((1, 1, 2))
    microbatches = draw.choice((1, 1, 2))
    unit = 1
    for size in sizes:
        unit = unit * size if unit % size else unit
    of = KINDS[kind]
    if of is not None:
        made = family(of(draw, unit), stages)
    else:
        shape = [unit * draw.choice((1, 2)) for _ in range(3)]
        made = model(draw, (shape[0], shape[1], shape[2]), stages)
    return placed(draw, made, sizes, microbatches, replicas)


def placed(
    draw: random.Random, made: Model, sizes: list[int], microbatches: int, replicas: int
) -> Plans:
    """A model with each stage on as many devices as ``sizes`` says, and on one device."""
    writer = _Writer(draw, made)
    teams: list[_Stage] = []
    first = 0
    for number, size in enumerate(sizes):
        teams.append(_Stage(writer, number, list(range(first, first + size))))
        first += size
    loss = made.operations[-1].output
    _wire(made, teams, loss)
    for stage in teams:
        for op in made.operations:
            if op.output.stage == stage.number:
                stage.operation(op)
    bodies = [stage.segments() for stage in teams]
    sequences = _Schedule(writer, teams, bodies).run(microbatches)
    outputs = _returned(writer, teams, loss, sequences, microbatches)
    _reducers(writer, sequences, replicas)
    root = writer.build.root(sequences, outputs, first * replicas)
    whole = scaled(made, microbatches * replicas)
    return Plans(
        single_plan(draw, whole),
        root,
        {w.name: w.shape for w in made.weights},
        whole.batches,
        microbatches,
        replicas,
        made.mean,
        writer.communications,
        writer.operators,
        writer.reducers,
    )


def _wire(made: Model, teams: list[_Stage], loss: Value) -> None:
    """What each stage is given and gives: a value goes from stage to stage up to its last
    reader."""
    for value in made.batches:
        readers = {op.output.stage for op in made.operations if value in op.inputs}
        for number in sorted(readers or {0}):
            teams[number].inputs.append(value)
            teams[number].layouts[value] = REPLICATED
    for op in made.operations:
        for value in op.outputs:
            stage = op.output.stage
            while made.read_later(value, stage):
                teams[stage].outputs.append(value)
                teams[stage + 1].inputs.append(value)
                teams[stage + 1].layouts[value] = REPLICATED
                stage += 1
    teams[-1].outputs.append(loss)


class _Schedule:
    """What the devices run, in order: microbatch after microbatch, or all forward first."""

    def __init__(
        self, writer: _Writer, teams: list[_Stage], bodies: list[list[tuple[Obj, Obj]]]
    ) -> None:
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

    def run(self, microbatches: int) -> dict[int, list[Obj]]:
        numbers = range(microbatches)
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

    def forth(self, m: int) -> None:
        for number, stage in enumerate(self.teams):
            for place, device in enumerate(stage.team.devices):
                if device in self.loads:
                    self.sequences[device].append(self.use(self.loads[device], m))
                made = self.use(self.bodies[number][place][0], m)
                self.forwards[number, place, m] = made
                self.sequences[device].append(made)
            if number < len(self.teams) - 1:
                self.move(number, False, m)

    def back(self, m: int) -> None:
        for number in range(len(self.teams) - 1, -1, -1):
            for place, device in enumerate(self.teams[number].team.devices):
                made = self.use(self.bodies[number][place][1], m)
                paired(self.forwards[number, place, m], made)
                self.sequences[device].append(made)
            if number:
                self.move(number - 1, True, m)


def _cross(
    writer: _Writer, teams: list[_Stage], number: int, value: Value, backward: bool
) -> list[tuple[int, Obj]]:
    """The adapters between two stages, by device."""
    team, there = teams[number].team, teams[number + 1].team
    senders, receivers = (there, team) if backward else (team, there)
    out, into = crossing(senders, receivers, writer.full(value), backward)
    part = teams[number].part(value, REPLICATED, 0)
    tensor = part.state["_grad"] if backward else part
    ident = next(writer.build.numbers)
    found = []
    for device, prims in zip(senders.devices, out, strict=True):
        if prims:
            adapter = writer.build.adapter(not backward, prims, [tensor], [], device, ident)
            found.append((device, adapter))
    for device, prims in zip(receivers.devices, into, strict=True):
        adapter = writer.build.adapter(not backward, prims, [], [tensor], device, ident)
        found.append((device, adapter))
    writer.communications.append([x for each in (*out, *into) for x in each])
    return found


def _returned(
    writer: _Writer,
    teams: list[_Stage],
    loss: Value,
    sequences: dict[int, list[Obj]],
    microbatches: int,
) -> list[Obj]:
    """The losses, brought to all devices at the end of the step."""
    build = writer.build
    part = teams[-1].part(loss, REPLICATED, 0)
    root = teams[-1].team.devices[0]
    others = [d for stage in teams[:-1] for d in stage.team.devices]
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


def _reducers(writer: _Writer, sequences: dict[int, list[Obj]], replicas: int) -> None:
    for (value, layout), (stage, partial) in writer.weights.items():
        count = stage.count
        full = writer.full(value)
        if partial and count > 1:
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
