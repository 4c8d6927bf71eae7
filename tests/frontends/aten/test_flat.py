"""Places in a matrix that lies flat, and ids that differ along a dimension, against PyTorch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.flat import Flat, flat
from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.evaluated import evaluated

ROWS, WIDTH, CHOSEN = 3, 5, 2


def input_of(lo: Lowering, name: str, shape: tuple[int, ...], below: int = 0) -> Any:
    domain = (0, below) if below else None
    dtype = "int64" if below else "float64"
    return lo.hold(Shard(name, shape, shape, (ZERO,) * len(shape), dtype, domain=domain))


def places(lo: Lowering, columns: Any) -> Any:
    """``arange(ROWS)[:, None] * WIDTH + columns``"""
    lo.expected = [((ROWS, CHOSEN), "int64")]
    first = Positions(0, (WIDTH, 0), (ROWS, 1), "int64")
    return rule_of("aten.add.Tensor")(lo, columns, first)


@pytest.mark.parametrize("seed", range(4))
def test_entries_of_a_flat_matrix_are_pytorchs(seed: int) -> None:
    lo = Lowering()
    columns = input_of(lo, "columns", (ROWS, CHOSEN), WIDTH)
    x = input_of(lo, "x", (ROWS * WIDTH, 2))
    index = places(lo, columns)
    assert isinstance(index, Flat)
    assert (index.rows, index.width) == (ROWS, WIDTH)
    numbers = lo.real(index)
    index = lo.reshape(index, (ROWS * CHOSEN,))
    lo.expected = [((ROWS * CHOSEN, 2), "float64")]
    chosen = lo.real(rule_of("aten.index_select.default")(lo, x, 0, index))
    lo.expected = [((ROWS * WIDTH, 2), "float64")]
    added = lo.real(rule_of("aten.index_add.default")(lo, x, 0, index, chosen, alpha=3))
    random = np.random.default_rng(seed)
    ids, values = random.integers(0, WIDTH, (ROWS, CHOSEN)), random.normal(size=x.shape)
    results = evaluated(lo, {columns.number: ids, x.number: values})
    own = torch.arange(ROWS)[:, None] * WIDTH + torch.tensor(ids)
    np.testing.assert_array_equal(results[numbers.number], own)
    picked = torch.tensor(values).index_select(0, own.view(-1))
    np.testing.assert_allclose(results[chosen.number], picked)
    total = torch.tensor(values).index_add(0, own.view(-1), picked, alpha=3)
    np.testing.assert_allclose(results[added.number], total)


@pytest.mark.parametrize(
    ("below", "steps"),
    [(WIDTH + 1, (WIDTH, 0)), (WIDTH, (WIDTH - 1, 0)), (WIDTH, (0, 0))],
    ids=["ids of the next row", "rows that overlap", "one row"],
)
def test_other_sums_are_no_places_of_rows(below: int, steps: tuple[int, int]) -> None:
    lo = Lowering()
    columns = input_of(lo, "columns", (ROWS, CHOSEN), below)
    assert flat(lo, columns, Positions(0, steps, (ROWS, 1), "int64"), Fraction(1)) is None


def test_a_narrower_row_is_no_row_of_what_is_read() -> None:
    """Ids of a matrix [3, 5] that are read from more entries are read one by one."""
    lo = Lowering()
    columns, x = input_of(lo, "columns", (ROWS, CHOSEN), WIDTH), input_of(lo, "x", (20, 1))
    index = lo.reshape(places(lo, columns), (ROWS * CHOSEN,))
    lo.expected = [((ROWS * CHOSEN, 1), "float64")]
    chosen = lo.real(rule_of("aten.index_select.default")(lo, x, 0, index))
    random = np.random.default_rng(0)
    ids, values = random.integers(0, WIDTH, (ROWS, CHOSEN)), random.normal(size=(20, 1))
    results = evaluated(lo, {columns.number: ids, x.number: values})
    own = (np.arange(ROWS)[:, None] * WIDTH + ids).reshape(-1)
    np.testing.assert_allclose(results[chosen.number], values[own])


def test_places_of_the_largest_are_written_along_their_dimension_alone() -> None:
    lo = Lowering()
    x = input_of(lo, "x", (4, 4))
    lo.expected = [((CHOSEN, 4), "float64"), ((CHOSEN, 4), "int64")]
    values, index = rule_of("aten.topk.default")(lo, x, CHOSEN, 0)
    zeros = torch.zeros(4, 4, dtype=torch.float64)
    given = np.random.default_rng(3).normal(size=(4, 4))
    top = torch.tensor(given).topk(CHOSEN, dim=0)
    lo.expected = [((4, 4), "float64")]
    none = rule_of("aten.zeros_like.default")(lo, x)
    scattered = rule_of("aten.scatter.src")
    kept = lo.real(scattered(lo, none, 0, index, values))
    hot = rule_of("aten.scatter.value")(lo, none, 0, index, 1.0)
    lo.expected = [((4, 4), "bool")]
    mask = lo.real(rule_of("aten._to_copy.default")(lo, hot, dtype="bool"))
    results = evaluated(lo, {x.number: given})
    expected = zeros.scatter(0, top.indices, top.values)
    np.testing.assert_allclose(results[kept.number], expected)
    np.testing.assert_array_equal(results[mask.number], expected != 0)
    lo.expected = [((4, 4), "float64"), ((4, 4), "int64")]
    values, index = rule_of("aten.topk.default")(lo, x, 4, 1)
    lo.expected = [((4, 4), "float64")]
    # Those of a column may be equal: nothing says which value is the last.
    with pytest.raises(Unsupported, match="some may be equal"):
        scattered(lo, none, 0, index, values)
