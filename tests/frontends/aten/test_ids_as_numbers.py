"""Whole-number functions of ids as floating-point numbers (times of diffusion, ages), against
PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from tests.frontends.aten.evaluated import evaluated

COUNT = 6


def called(lo: Lowering, name: str, *args: Any, **kwargs: Any) -> Any:
    rule = rule_of(name)
    assert rule is not None
    return rule(lo, *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "number", "function"),
    [
        ("aten.add.Tensor", 1, lambda t: t + 1),
        ("aten.sub.Tensor", 3, lambda t: t - 3),
        ("aten.mul.Tensor", 2, lambda t: t * 2),
        ("aten.floor_divide.default", 4, lambda t: t // 4),
        ("aten.remainder.Scalar", 4, lambda t: t % 4),
    ],
)
def test_functions_of_ids_as_floats_are_pytorchs(
    name: str, number: int, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    lo = Lowering()
    shard = Shard("ids", (COUNT,), (COUNT,), (ZERO,), "int64", domain=(0, 20))
    ids, given = lo.hold(shard), np.random.default_rng(7).integers(0, 20, size=COUNT)
    lo.expected = (((COUNT,), "int64"),)
    whole = called(lo, name, ids, number)
    lo.expected = (((COUNT,), "float32"),)
    result = lo.real(called(lo, "aten._to_copy.default", whole, dtype="float32"))
    assert result.dtype == "float32"
    made = evaluated(lo, {ids.number: given})[result.number]
    expected = function(torch.tensor(given)).float().numpy()
    np.testing.assert_array_equal(np.asarray(made, float), expected)
