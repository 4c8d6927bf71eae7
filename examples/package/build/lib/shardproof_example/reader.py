"""One graph format: a training step as JSON, and over how many replicas it runs.

    {"tiny": 1, "replicas": 2, "batch": [8, 4], "weights": {"w": [4, 4]},
     "ops": [["h", "linear", "x", "w"], ["y", "example_gated", "x", "h"]], "reduce": ["w"]}

``x`` is the batch; every operation names its result, its operator and its operands; the loss is the
sum of the last result.  Each replica has its rows of the batch, and sums the gradients of the
weights in ``reduce`` with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import DecodeError, Meta, Struct, json

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.plan_files import store
from shardproof.engine.storage import files
from shardproof.frontends.builder.builder import ProgramBuilder, along
from shardproof.frontends.untrusted.child import run_bounded

Size = Annotated[int, Meta(ge=1, le=1 << 20)]


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    tiny: int
    replicas: Size
    batch: tuple[Size, Size]
    weights: dict[str, tuple[Size, Size]]
    ops: list[tuple[str, str, str, str]]
    reduce: list[str]


class TinyGraph:
    """See `shardproof.frontends.frontend.Frontend`."""

    name = "tiny-graph"
    files = "a tiny graph (.tiny.json)"
    suffixes = (".tiny.json",)
    sides = 1
    table = ""
    options: Mapping[str, Mapping[str, str]] = {}

    def accepts(self, path: Path, head: bytes) -> bool:
        return head.lstrip().startswith(b'{"tiny":')

    def read_side(self, path: Path) -> Plan:
        return store.from_bytes(run_bounded("shardproof_example.reader:read", [str(path)]))

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        raise InvalidInput(f"expected {self.files} alone, it holds both sides", str(parallel))

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        return ()


FRONTEND = TinyGraph()


def read(path: str) -> bytes:
    """The plan in a file, as bytes; called in a bounded child."""
    try:
        graph = json.decode(files.contents(Path(path)), type=Graph)
    except (OSError, DecodeError) as error:
        raise InvalidInput(f"expected a tiny graph: {error}", path) from error
    if graph.batch[0] % graph.replicas or not graph.ops:
        raise InvalidInput("expected operations, and a batch that replicas divide", path)
    ranks = program(graph, graph.replicas, path)
    plan = Plan(Path(path).name, program(graph, 1, path), (ranks,), 1, ("dp",))
    return store.to_bytes(plan)


def program(graph: Graph, replicas: int, path: str) -> Program:
    """What each of so many replicas runs; one is the single device."""
    axes = (("dp", replicas, 1),) if replicas > 1 else ()
    made = ProgramBuilder("ranks" if axes else "single", axes=axes)
    weights = {name: made.parameter(name, shape) for name, shape in graph.weights.items()}
    body = made.body("forward")
    rows, columns = graph.batch
    (x,) = body.load_batch(("x", (rows // replicas, columns), "float32"))
    values = {"x": x}
    for result, operator, *operands in graph.ops:
        for name in operands:
            if name in weights and name not in values:
                values[name] = body.parameter(weights[name])
            if name not in values:
                raise InvalidInput(f"expected the name of a value, found {name!r}", path)
        values[result] = getattr(body, operator)(*(values[name] for name in operands))
    body.loss(body.sum(values[graph.ops[-1][0]]))
    made.schedule(body, body.backward(), 1)
    reduced = [(weights[name], along("dp")) for name in graph.reduce if name in weights]
    if axes and reduced:
        made.reduce(reduced)
    return made.build()
