"""Plans read from graphs, run rank by rank, give what PyTorch gives for the graphs as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import worst
from shardproof.engine.reference_runtime.runtime import crews, execute
from shardproof.engine.reference_runtime.values import Values
from shardproof.frontends.fx.read import joined
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx import lockstep
from tests.frontends.fx.graphs import Change, argument, model, target

CHANGES: dict[str, Change | None] = {
    "none": None,
    "scale": argument("scaled", 1, 0.25),
    "operator": target("gelu", "aten.silu.default"),
    "dropout": argument("dropout", 1, 0.5),
}


def read(graph: dict[str, Any]) -> Graph:
    return msgspec.convert(graph, Graph)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("what", CHANGES)
def test_every_rank_has_what_pytorch_gives(ranks: int, what: str) -> None:
    change = CHANGES[what]
    raw = [model(rank, ranks) for rank in range(ranks)]
    for graph in raw if change is not None else ():
        change(graph)  # type: ignore[misc]
    graphs = [read(graph) for graph in raw]
    plan = joined(read(model()), graphs, Relations())
    found, inputs, masks = _run(plan)
    expected = lockstep.run(graphs, inputs, masks)
    for rank, outputs in enumerate(found):
        for name, value in outputs.items():
            np.testing.assert_allclose(value, expected[rank][name].numpy(), atol=1e-9)
    off, where = worst(plan, 3)
    assert (off < 1e-9) == (change is None), where


def _run(plan: Plan) -> tuple[Any, Any, Any]:
    """By rank: results by name of the output, inputs by name, masks in order."""
    values = Values(plan, np.random.default_rng(5))
    many = crews(plan, values, together=False, original=plan)
    execute(many)
    found, inputs, masks = [], [], []
    for crew in many:
        program = plan.programs[max(crew.number, 0)]
        for place, at in enumerate(crew.places):
            rows = [r for r in plan.expectations if r.parallel[0].program == max(crew.number, 0)]
            found.append(
                {
                    row.name: crew.results[0, row.parallel[0].value][0].of(place).data[0]
                    for row in rows
                }
            )
            held = {s.name: values.box(s, [at]).data[0] for s in program.shards}
            given = {
                s.name: torch.tensor(
                    held[s.name], dtype=torch.int64 if s.integer else torch.float64
                )
                for s in program.shards
            }
            inputs.append(given)
            masks.append([x for name, x in given.items() if name.startswith("mask of")])
    return found, inputs, masks
