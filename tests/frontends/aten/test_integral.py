"""Whole numbers that are computed are whole, or PyTorch cuts them: then they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, Real, rule_of
from shardproof.frontends.aten.rules import typed
from tests.frontends.aten.evaluated import evaluated

IDS = torch.tensor([[3, 0, 2, 5], [1, 7, 4, 6]])
ROWS = torch.tensor([1, 0])
FLAGS = IDS > 2
BYTES = (IDS * 40).to(torch.uint8)

#: Calls whose result is not what real numbers give, since PyTorch's is whole.
CUT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten.avg_pool1d.default", (IDS, (2,)), {}),
    ("aten.avg_pool2d.default", (IDS[None], (2, 2)), {}),
    ("aten.addmm.default", (IDS[:, :2], IDS[:, :2], IDS[:, 2:]), {"alpha": 1.5}),
    ("aten.addcmul.default", (IDS, IDS, IDS), {"value": 0.5}),
    ("aten.index_add.default", (IDS, 0, ROWS, IDS), {"alpha": 1.5}),
    ("aten.hardtanh.default", (IDS, 0, 2.5), {}),
    ("aten.mse_loss_backward.default", (torch.tensor(1), IDS, IDS.flip(0), 1), {}),
    ("aten.diff.default", (FLAGS,), {}),
    ("aten.embedding_dense_backward.default", (BYTES, torch.tensor([0, 0]), 2, -1, False), {}),
]
#: Calls with a number, or a tensor, that PyTorch makes whole before it is written.
WRITTEN: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten.index_fill.int_Scalar", (IDS, 0, ROWS[:1], 1.5), {}),
    ("aten.index_fill.int_Scalar", (IDS, 0, ROWS[:1], -0.5), {}),
    ("aten.index_fill.int_Tensor", (IDS, 0, ROWS[:1], torch.tensor(2.75)), {}),
    ("aten.constant_pad_nd.default", (IDS, [1, 0], 1.25), {}),
    ("aten.select_scatter.default", (IDS, torch.tensor([0.5, 2.5]), 1, 2), {}),
    ("aten.slice_scatter.default", (IDS, torch.full((2, 2), -1.5), 1, 1, 3), {}),
    ("aten.slice_scatter.default", (FLAGS, IDS[:, 1:3], 1, 1, 3), {}),
    ("aten.threshold.default", (IDS, 2.5, 0.5), {}),
    ("aten.threshold_backward.default", (IDS, IDS - 3, -0.5), {}),
    ("aten.masked_fill.Scalar", (IDS, FLAGS, 1.5), {}),
]
#: Their twins: what is whole as real numbers are.
WHOLE: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten.addmm.default", (IDS[:, :2], IDS[:, :2], IDS[:, 2:]), {"alpha": 2}),
    ("aten.addcmul.default", (IDS, IDS, IDS), {"value": 3}),
    ("aten.index_add.default", (IDS, 0, ROWS, IDS), {"alpha": -2}),
    ("aten.hardtanh.default", (IDS, 0, 2), {}),
    ("aten.mse_loss_backward.default", (torch.tensor(1), IDS, IDS.flip(0), 2), {}),
    ("aten.diff.default", (IDS,), {}),
    ("aten.embedding_dense_backward.default", (IDS, torch.tensor([0, 0]), 2, -1, False), {}),
    ("aten.slice_scatter.default", (IDS, IDS[:, 1:3], 1, 1, 3), {}),
    ("aten.select_scatter.default", (IDS, ROWS, 1, 2), {}),
    ("aten.index_fill.int_Scalar", (IDS, 0, ROWS[:1], -7), {}),
    ("aten.constant_pad_nd.default", (IDS, [1, 0], 3), {}),
    ("aten.sort.default", (IDS,), {}),
    ("aten.floor_divide.Scalar", (IDS, 2), {}),
    ("aten.cumsum.default", (IDS, 1), {}),
    ("aten.avg_pool1d.default", (IDS.double(), (2,)), {}),
]


def _lowered(name: str, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    """The results of a rule, of the types that PyTorch gives, in numbers; and PyTorch's."""
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part)
    expected = overload(*args, **kwargs)
    several = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    lo = Lowering()
    given: dict[int, Any] = {}

    def operand(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        dtype, start = str(x.dtype).removeprefix("torch."), tuple(affine(0) for _ in x.shape)
        domain = {"int64": None if bool((x < 0).any()) else (0, 8), "bool": (0, 2)}.get(dtype)
        shape = tuple(x.shape)
        real = lo.hold(Shard(f"x{len(given)}", shape, shape, start, dtype, domain=domain))
        given[real.number] = x.numpy()
        return real

    rule = rule_of(name)
    assert rule is not None
    operands = [operand(x) for x in args]
    lo.expected = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in several]
    found = rule(lo, *operands, **kwargs)
    results = list(found) if isinstance(found, tuple) else [found]
    made = [
        lo.real(typed(lo, x, dtype)) for x, (_, dtype) in zip(results, lo.expected, strict=True)
    ]
    values = evaluated(lo, given)
    assert all(isinstance(x, Real) for x in made)
    return [values[x.number] for x in made], several


@pytest.mark.parametrize(("name", "args", "kwargs"), CUT)
def test_fractions_that_pytorch_cuts_are_refused(name: str, args: Any, kwargs: Any) -> None:
    with pytest.raises(Unsupported):
        _lowered(name, args, kwargs)


@pytest.mark.parametrize(("name", "args", "kwargs"), [*WRITTEN, *WHOLE])
def test_whole_numbers_are_what_pytorch_says(name: str, args: Any, kwargs: Any) -> None:
    made, expected = _lowered(name, args, kwargs)
    for x, y in zip(made, expected, strict=True):
        np.testing.assert_allclose(x, y.numpy().astype(float))
