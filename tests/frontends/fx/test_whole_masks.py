"""Masks as whole numbers: what a capacity keeps, times one-hot rows of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified


def kept(rows: int = 6, rank: int = 0, wrong: bool = False) -> dict[str, Any]:
    """Each row's largest entry, where the entry is positive."""
    w = Writer(rank)
    shape = (rows, 4)
    x = w.given("x", shape)
    mask = w.call("gt", "aten.ge.Scalar" if wrong else "aten.gt.Scalar", [x, 0.5], shape, "bool")
    if wrong:
        mask = w.call("not", "aten.logical_not.default", [mask], shape, "bool")
    place = w.call("argmax", "aten.argmax.default", [x, 1], (rows,), "int64")
    hot = w.call("one_hot", "aten.one_hot.default", [place, 4], shape, "int64")
    product = w.call("product", "aten.mul.Tensor", [hot, mask], shape, "int64")
    numbers = w.call("to", "aten._to_copy.default", [product], shape, dtype="torch.float32")
    return w.output(w.call("y", "aten.mul.Tensor", [numbers, x], shape))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_mask_is_multiplied_with_whole_numbers(wrong: bool, tmp_path: Path) -> None:
    result = verified(tmp_path, kept(), [kept(3, rank, wrong) for rank in range(2)])
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok
