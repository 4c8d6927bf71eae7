"""Programs of XLA evaluated in NumPy beside their translation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.frontends.graphs.sides import Side
from shardproof.frontends.hlo import read, replay
from tests.frontends.hlo.test_read import SAMPLES

Sides = tuple[read.Plan, Side, Side]


def sides(name: str) -> Sides:
    single = read.read(str(SAMPLES / f"{name}.single.hlo"))
    parallel = read.read(str(SAMPLES / f"{name}.parallel.hlo"), partitioned=True)
    return read.paired(single, parallel, name)


@pytest.mark.parametrize("name", ["mlp", "fsdp", "block", "language", "ring", "experts", "scanned"])
def test_a_translation_is_what_the_evaluator_computes(name: str) -> None:
    found = replay.validated(*sides(name))
    assert (found.replayed, found.agrees) == (True, True), found
    assert found.compared > 0


def test_a_wrong_translation_is_seen() -> None:
    """The plan of one program beside the other's: of outputs that have changed places."""
    plan, single, parallel = sides("mlp")
    first, second, *others = parallel.outputs
    swapped = replace(parallel, outputs=(second, first, *others))
    found = replay.validated(plan, single, swapped)
    assert not found.agrees
