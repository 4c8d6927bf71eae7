"""Programs of XLA evaluated in NumPy beside their translation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.graphs.sides import Side
from shardproof.frontends.hlo import read, replay, semantics
from shardproof.frontends.hlo.module import Array
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


@pytest.mark.parametrize(
    ("old", "new"),
    [("reshape", [np.zeros(6)]), ("transpose", [np.zeros((2, 3))]), ("slice", [np.zeros(2)])],
)
def test_what_does_not_fit_is_no_fault_of_ours(old: str, new: list[Array]) -> None:
    with pytest.raises(InvalidInput, match=f"{old} does not fit"):
        semantics.apply(old, {}, new, (4, 2))


def test_a_wrong_translation_is_seen() -> None:
    """The plan of one program beside the other's: of outputs that have changed places."""
    plan, single, parallel = sides("mlp")
    first, second, *others = parallel.outputs
    swapped = replace(parallel, outputs=(second, first, *others))
    found = replay.validated(plan, single, swapped)
    assert not found.agrees
