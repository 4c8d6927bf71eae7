"""Parameters of the single-device program that are held in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.errors import Unsupported
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.gradients import derive
from tests.faults.plans import llama


def test_one_name_with_two_numbers_of_dimensions_is_refused() -> None:
    """A norm's weight under the name of a matrix; as they are, both have their gradients."""
    plan = llama()
    matrix = next(s for s in plan.single.shards if len(s.shape) == 2)
    shards = tuple(
        replace(s, name=matrix.name) if len(s.shape) == 1 else s for s in plan.single.shards
    )
    single = replace(plan.single, shards=shards)
    side = unroll([single], 1)
    with pytest.raises(Unsupported, match=f"holds {matrix.name} with 2 and with 1 dimensions"):
        derive(replace(plan, single=single), side)
    assert derive(plan, unroll([plan.single], 1)).gradients
