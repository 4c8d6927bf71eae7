"""What inputs are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.engine.simulation import inputs
from shardproof.engine.simulation.inputs import Inputs


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("classes", [6, 1 << 20])
def test_ids_of_many_classes_are_drawn_without_an_order_of_all(
    classes: int, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A billion classes (a plan that wraps ids around at rows of its own) took minutes and 8 GiB."""
    ordered: list[int] = []

    class Random(np.random.Generator):
        def permutation(self, x: Any, axis: int = 0) -> Any:
            ordered.append(x)
            return super().permutation(x, axis)

    random = Random(np.random.PCG64(0))
    sizes: Any = None
    drawn = Inputs(sizes, frozenset(), frozenset(), random, repeated=repeated, wide=repeated)
    ids = drawn._ids([3, 4], classes)
    assert ids.shape == (3, 4)
    assert ids.min() >= 0
    assert ids.max() < classes
    assert repeated or all(len(set(row)) == 4 for row in ids.tolist())
    assert max(ordered, default=0) <= inputs.MOST_ORDERED


@pytest.mark.parametrize(
    ("domain", "classes"), [(None, 0), ((0, 1 << 30), 0), ((1, 4), 0), (None, 1), ((0, 1), 1)]
)
def test_integers_that_are_no_ids_are_two_numbers_now_and_then(domain: Any, classes: int) -> None:
    """A mask of integers hides everything, or nothing, where it is any number; one that is compared
    with 0 alone was 0 throughout, as ids of a table of one row are."""
    sizes: Any = SimpleNamespace(
        classes=lambda axis: classes, divisor=lambda axis: 1, step=lambda axis: 1
    )
    shard = Shard("mask", (4, 4), (4, 4), (ZERO, ZERO), "int64", domain=domain)
    random = np.random.default_rng(0)
    drawn = Inputs(sizes, frozenset(), frozenset(), random, repeated=True)
    low = 0 if domain is None else domain[0]
    dims: Any = (((1, 1, 1, 1),), ((1, 1, 1, 1),))
    expected = {low} if domain == (0, 1) else {low, low + 1}
    assert set(drawn._integers(shard, 0, dims).reshape(-1)) == expected
