"""Windows that are read by slices, against PyTorch; what they are put together of, too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of, windows
from shardproof.frontends.aten.lowering import Real
from shardproof.frontends.aten.patterns import Over, Pattern, divided
from shardproof.frontends.aten.taps import joints
from tests.frontends.aten.evaluated import evaluated
from tests.frontends.aten.test_table import test_overload_is_what_pytorch_says as compared

NAMES = ["convolution.default", "convolution_backward.default", "im2col.default", "col2im.default"]


def held(lo: Lowering, name: str, *shape: int) -> Real:
    return lo.hold(Shard(name, shape, shape, (affine(0),) * len(shape), "float64"))


@pytest.mark.parametrize("name", NAMES)
def test_slices_are_what_taps_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "is_sliced", lambda lo, axis, dim: True)
    compared(f"aten.{name}")


@pytest.mark.parametrize(("taps", "stride", "dilation"), list(product((2, 3), (1, 2, 3), (1, 2))))
def test_halos_are_parts_of_what_taps_read(taps: int, stride: int, dilation: int) -> None:
    """A convolution, and what comes back, over an edge of a neighbour's and a rank's own rows."""
    sizes = (dilation * (taps - 1), 8)
    lo = Lowering()
    pieces = [held(lo, f"x{number}", 2, 3, n) for number, n in enumerate(sizes)]
    weight = held(lo, "w", 4, 3, taps)
    whole = lo.concat(pieces, 2)
    assert joints(lo, whole, 2) == sizes
    lo.windows.sliced = {Pattern(0, taps, stride, dilation)}
    given = [torch.randn(2, 3, n, dtype=torch.float64, requires_grad=True) for n in sizes]
    kernel = torch.randn(4, 3, taps, dtype=torch.float64, requires_grad=True)
    joined = torch.cat(given, 2)
    y = torch.conv1d(joined, kernel, stride=stride, dilation=dilation)
    g = torch.randn_like(y)
    expected = torch.autograd.grad(y, (joined, kernel), g)
    attributes = ([stride], [0], [dilation], False, [0], 1)
    gradient = held(lo, "g", *y.shape)
    forward, backward = (
        rule_of(f"aten.{n}.default") for n in ("convolution", "convolution_backward")
    )
    assert forward is not None
    assert backward is not None
    made = forward(lo, whole, weight, None, *attributes)
    back = backward(lo, gradient, whole, weight, None, *attributes, [True, True, False])
    numbers = [*(x.number for x in pieces), weight.number, gradient.number]
    arrays = [x.detach().numpy() for x in (*given, kernel, g)]
    values = evaluated(lo, dict(zip(numbers, arrays, strict=True)))
    for own, right in zip((made, *back[:2]), (y, *expected), strict=True):
        assert isinstance(own, Real)
        np.testing.assert_allclose(values[own.number], right.detach().numpy(), rtol=1e-9)
    assert not lo.contents


def test_windows_are_divided_where_both_sides_have_other_positions() -> None:
    three, five = Pattern(0, 3, 1, 1), Pattern(1, 5, 1, 1)
    single = [Over(three, 16, 16), Over(five, 16, 16)]
    assert divided(single, [Over(three, 6, 4), Over(five, 16, 16)]) == {three}
    assert divided(single, [Over(three, 16, 14), Over(five, 16, 16)]) == {three}
    assert divided(single, single) == frozenset()
    assert divided(single, [Over(Pattern(1, 3, 1, 1), 6, 4)]) == frozenset()
