"""Numbers beside tensors of whole numbers of few bits: they have these bits, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from tests.frontends.aten.evaluated import evaluated

IDS = torch.tensor([[3, 0, 2, 1], [1, 0, 4, 2]])
TYPES = {"uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32}

#: Calls of which real numbers give another result, the type, and a number.
CALLS = [
    ("aten.gt.Scalar", "uint8", -1),
    ("aten.lt.Scalar", "uint8", 258),
    ("aten.eq.Scalar", "uint8", 256),
    ("aten.ne.Scalar", "uint8", 257),
    ("aten.le.Scalar", "int8", 200),
    ("aten.ge.Scalar", "int16", -40000),
    ("aten.lt.Scalar", "int32", 2**40),
    ("aten.gt.Tensor", "uint8", torch.tensor(-1)),
    ("aten.eq.Tensor", "int8", torch.tensor(257)),
    ("aten.clamp_min.default", "uint8", -254),
    ("aten.bitwise_and.Scalar", "uint8", 259),
]
#: Calls of which they give the same.
TWINS = [
    ("aten.gt.Scalar", "uint8", 1),
    ("aten.eq.Scalar", "int8", 2),
    ("aten.lt.Scalar", "int16", 200),
    ("aten.ge.Tensor", "int8", torch.tensor(2)),
    ("aten.clamp_min.default", "int8", 2),
]


def _holds(lo: Lowering, x: Any, given: dict[int, Any]) -> Any:
    dtype, shape = str(x.dtype).removeprefix("torch."), tuple(x.shape)
    start = tuple(affine(0) for _ in shape)
    real = lo.hold(Shard("x", shape, shape, start, dtype, domain=(0, 5)))
    given[real.number] = x.numpy()
    return real


def _lowered(name: str, dtype: str, y: Any) -> tuple[Any, Any]:
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part)
    expected = overload(IDS.to(TYPES[dtype]), y)
    lo, given = Lowering(), dict[int, Any]()
    x = _holds(lo, IDS.to(TYPES[dtype]), given)
    if isinstance(y, torch.Tensor):
        lo.expected = [((), "int64")]
        y = rule_of("aten.full.default")(lo, [], int(y))  # type: ignore[misc]
    lo.expected = [(tuple(expected.shape), str(expected.dtype).removeprefix("torch."))]
    result = lo.real(rule_of(name)(lo, x, y))  # type: ignore[misc]
    return evaluated(lo, given)[result.number], expected


@pytest.mark.parametrize(("name", "dtype", "number"), [*CALLS, *TWINS])
def test_numbers_are_what_pytorch_makes_of_them(name: str, dtype: str, number: Any) -> None:
    made, expected = _lowered(name, dtype, number)
    np.testing.assert_array_equal(made, expected.numpy().astype(float))


def test_what_is_filled_keeps_its_lowest_bits() -> None:
    lo = Lowering()
    lo.expected = [((2,), "uint8")]
    assert rule_of("aten.full_like.default")(lo, None, -1).value == 255  # type: ignore[misc]
    lo.expected = [((2,), "int64")]
    assert rule_of("aten.full_like.default")(lo, None, -1).value == -1  # type: ignore[misc]


def test_a_number_that_nobody_knows_beside_few_bits_is_refused() -> None:
    lo, given = Lowering(), dict[int, Any]()
    few = _holds(lo, IDS.to(torch.int8), given)
    lo.expected = [((2, 4), "bool")]
    with pytest.raises(Unsupported, match="a number of int64 beside numbers of int8"):
        rule_of("aten.lt.Tensor")(lo, few, _holds(lo, torch.tensor(2), given))  # type: ignore[misc]


def test_bits_that_are_none_of_few_are_refused() -> None:
    """All bits of an int8 are the number -1 there."""
    for number in (255, 256, -2, 5):
        with pytest.raises(Unsupported, match="do not lie side by side"):
            _lowered("aten.bitwise_and.Scalar", "int8", number)
