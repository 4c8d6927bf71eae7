"""Random plans as nnScaler's planner would write them: small models, placements and adapters.

A model is a chain of small operators over [batch, sequence, hidden] with residual connections, cut
into stages; each stage runs on a team of devices, each operator in one of the layouts that it has
(replicated, along a dimension, over its weight).  What `plan_changes.changed` alters afterwards may make a plan
wrong; `tests.frontends.lockstep` says whether it does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from tests.frontends.pickles import Obj
from tests.frontends.plan_blocks import Blocks
from tests.frontends.plan_chunks import ChunkedStage, sizes_of
from tests.frontends.plan_families import Families, family
from tests.frontends.plan_grids import GridStage, grid_reducers
from tests.frontends.plan_layouts import REPLICATED
from tests.frontends.plan_models import model
from tests.frontends.plan_schedule import Schedule, reducers, returned, wire
from tests.frontends.plan_seldom import Seldom
from tests.frontends.plan_stages import Stage, Writer
from tests.frontends.plan_structure import copied, homes_of, staged, tied
from tests.frontends.plan_values import Model, Value
from tests.frontends.plan_wider import Wider

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


def single_plan(draw: random.Random, made: Model) -> Obj:
    """The model on one device."""
    writer = Writer(draw, made)
    stage = Stage(writer, 0, [0])
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
KINDS: dict[str, type[Families] | None] = {
    "small": None, "families": Families, "blocks": Blocks, "pipelines": None, "wider": Wider,
    "seldom": Seldom,
}  # fmt: skip


def plans(seed: int, kind: str = "small") -> Plans:
    """A pair of plans; the parallel one is right.  ``kind``: of small operators at random, of models
    that people train (`tests.frontends.plan_families`), of further blocks (`plan_blocks`), or of
    either kind in pipelines as `pipelines` makes them (the rest of the registry: `plan_wider`;
    calls that are seldom written: `plan_seldom`), or of any of these on grids of devices, or on
    devices that run operators part by part (`plan_chunks`)."""
    draw = random.Random(seed)
    if kind in ("pipelines", "wider", "seldom"):
        return pipelines(draw, KINDS[kind])
    if kind == "grids":
        return grids(draw)
    if kind == "chunks":
        return chunks(draw)
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
    made = grown(draw, unit, stages, KINDS[kind])
    return placed(draw, made, sizes, microbatches, replicas)


def pipelines(draw: random.Random, of: type[Families] | None) -> Plans:
    """Stages that share devices, one-forward-one-backward schedules, values that cross in pieces,
    copies for several readers, shared parameters."""
    stages = draw.choice((1, 2, 3, 3, 4))
    homes, devices = homes_of(draw, stages)
    made = grown(draw, len(homes[0]), stages, of)
    if draw.random() < 0.4:
        tied(draw, made, homes)
    if draw.random() < 0.6:
        copied(draw, made)
    if len(set(homes)) < stages or draw.random() < 0.7:
        staged(made)
    microbatches, replicas = draw.choice((1, 2, 2, 4)), draw.choice((1, 1, 2))
    return laid_out(draw, made, homes, devices, microbatches, replicas, in_pieces=True)


def grids(draw: random.Random) -> Plans:
    """Stages on grids of devices, cut in two ways at once (`plan_grids`)."""
    stages = draw.choice((1, 1, 2))
    sizes = [draw.choice(((2, 2), (2, 2), (2, 3), (3, 2)))]
    if stages == 2:
        sizes = draw.sample([(2, 2), draw.choice(((2, 2), (1, 2), (1, 1)))], 2)
    unit = 6 if 3 in sizes[0] else 2
    of = draw.choice((None, Families, Families, Blocks, Wider, Seldom))
    made = grown(draw, unit, stages, of)
    microbatches, replicas = draw.choice((1, 1, 2)), draw.choice((1, 1, 2))
    ends = list(accumulate((rows * columns for rows, columns in sizes), initial=0))
    writer = Writer(draw, made)
    teams: list[Stage] = [
        GridStage(writer, n, list(range(low, high)), columns)
        for n, ((low, high), (_, columns)) in enumerate(zip(pairwise(ends), sizes, strict=True))
    ]
    return written(writer, teams, ends[-1], microbatches, replicas)


def chunks(draw: random.Random) -> Plans:
    """Stages whose devices run operators part by part (`plan_chunks`)."""
    stages = draw.choice((1, 1, 2))
    sizes = sizes_of(draw, stages)
    of = draw.choice((None, None, Families, Families, Blocks, Wider))
    made = grown(draw, 2 * max(sizes), stages, of)
    if draw.random() < 0.7:
        copied(draw, made)
        staged(made)
    ends = list(accumulate(sizes, initial=0))
    writer = Writer(draw, made)
    teams: list[Stage] = [
        ChunkedStage(writer, n, list(range(low, high)))
        for n, (low, high) in enumerate(pairwise(ends))
    ]
    return written(writer, teams, ends[-1], draw.choice((1, 1, 2)), draw.choice((1, 1, 2)))


def grown(draw: random.Random, unit: int, stages: int, of: type[Families] | None) -> Model:
    """A model of blocks, or of small operators at random."""
    if of is not None:
        return family(of(draw, unit), stages)
    shape = [unit * draw.choice((1, 2)) for _ in range(3)]
    return model(draw, (shape[0], shape[1], shape[2]), stages)


def placed(
    draw: random.Random, made: Model, sizes: list[int], microbatches: int, replicas: int
) -> Plans:
    """A model with each stage on as many devices as ``sizes`` says, and on one device."""
    ends = list(accumulate(sizes, initial=0))
    homes = [tuple(range(low, high)) for low, high in pairwise(ends)]
    return laid_out(draw, made, homes, ends[-1], microbatches, replicas)


def laid_out(
    draw: random.Random, made: Model, homes: list[tuple[int, ...]], devices: int,
    microbatches: int, replicas: int, *, in_pieces: bool = False,
) -> Plans:  # fmt: skip
    """``in_pieces``: values may cross between stages in parts, in turns of the microbatches."""
    writer = Writer(draw, made)
    teams = [Stage(writer, number, list(home)) for number, home in enumerate(homes)]
    return written(writer, teams, devices, microbatches, replicas, in_pieces=in_pieces)


def written(
    writer: Writer, teams: list[Stage], devices: int, microbatches: int, replicas: int,
    *, in_pieces: bool = False,
) -> Plans:  # fmt: skip
    """The records of a model on these teams, and of it on one device."""
    draw, made = writer.draw, writer.model
    loss = made.operations[-1].output
    wire(made, teams, loss, draw if in_pieces else None)
    for stage in teams:
        for op in made.operations:
            if op.output.stage == stage.number:
                stage.operation(op)
    bodies = [stage.segments() for stage in teams]
    in_turns = in_pieces and draw.random() < 0.6
    sequences = Schedule(writer, teams, bodies, in_turns=in_turns).run(microbatches)
    outputs = returned(writer, teams, loss, sequences, microbatches)
    (grid_reducers if isinstance(teams[0], GridStage) else reducers)(writer, sequences, replicas)
    for team in teams:
        if isinstance(team, ChunkedStage):
            team.reducers(sequences, replicas)
    root = writer.build.root(sequences, outputs, devices * replicas)
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
