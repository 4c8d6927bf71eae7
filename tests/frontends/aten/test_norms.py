"""The epsilon of a norm that is called without one, by the element type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from tests.frontends.aten.evaluated import evaluated


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_epsilon_is_that_of_the_type_in_which_it_is_computed(dtype: str) -> None:
    """Rows of the size of the epsilon's root, which a float of 16 bits has, too."""
    x = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]]) * 2.0 ** (
        -26 if dtype[-2:] == "64" else -12
    )
    given = x.to(getattr(torch, dtype))
    wanted = torch.rms_norm(given, [3]).double().numpy()
    lo = Lowering()
    rule = rule_of("aten.rms_norm.default")
    assert rule is not None
    held = lo.hold(Shard("x", (2, 3), (2, 3), (affine(0), affine(0)), dtype))
    lo.expected = [((2, 3), dtype)]
    made = rule(lo, held, [3])
    got = evaluated(lo, {held.number: given.double().numpy()})[made.number]
    np.testing.assert_allclose(got, wanted, rtol=1e-2 if dtype[-2:] == "16" else 1e-6)
