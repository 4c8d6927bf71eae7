"""A variance as the mean of squares without the square of the mean, beside one of what is centred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, COLUMNS = 8, 4


def normalised(rank: int = 0, ranks: int = 1, form: str = "centred", dim: int = 0) -> Any:
    """x [8, 4] without its mean along ``dim``, over its deviation; ranks have parts of that."""
    w = Writer(rank)
    shape = [ROWS, COLUMNS]
    count = float(shape[dim])
    shape[dim] //= ranks
    small = [1 if d == dim else n for d, n in enumerate(shape)]
    x = w.given("x", shape)

    def mean(name: str, value: Any, over: float = count) -> Any:
        total = w.call(f"sum_{name}", "aten.sum.dim_IntList", [value, [dim], True], small)
        if ranks > 1:
            reduce = "_c10d_functional.all_reduce.default"
            total = w.call(f"all_{name}", reduce, [total, "sum", "dp"], small)
        return w.call(f"mean_{name}", "aten.div.Tensor", [total, over], small)

    first = mean("x", x)
    centred = w.call("centred", "aten.sub.Tensor", [x, first], shape)
    if form == "centred":
        square = w.call("square", "aten.mul.Tensor", [centred, centred], shape)
        variance = mean("square", square)
    else:
        square = w.call("square", "aten.mul.Tensor", [x, x], shape)
        second = mean("square", square, count - 1 if form == "wrong count" else count)
        of_mean = w.call("of_mean", "aten.mul.Tensor", [first, first], small)
        if form == "not squared":
            of_mean = first
        variance = w.call("variance", "aten.sub.Tensor", [second, of_mean], small)
    positive = w.call("positive", "aten.add.Tensor", [variance, 0.25], small)
    over = w.call("over", "aten.rsqrt.default", [positive], small)
    return w.output(w.call("y", "aten.mul.Tensor", [centred, over], shape))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("forms", [("centred", "squares"), ("squares", "centred")])
def test_a_variance_in_two_forms_is_proved(
    forms: tuple[str, str], dim: int, tmp_path: Path
) -> None:
    ranks = [normalised(rank, 2, forms[1], dim) for rank in range(2)]
    result = verified(tmp_path, normalised(form=forms[0], dim=dim), ranks)
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize("wrong", ["wrong count", "not squared"])
def test_another_variance_is_refuted(wrong: str, tmp_path: Path) -> None:
    ranks = [normalised(rank, 2, wrong) for rank in range(2)]
    assert verified(tmp_path, normalised(), ranks).verdict == "refuted"
