"""Tensors of known values: symbolic where they can be, else a table named by its contents."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import Const, Lowering, Real
from shardproof.frontends.aten.constants import constant
from shardproof.frontends.aten.positions import Additive, Compared, Positions
from shardproof.frontends.aten.scores import Hidden


def of(array: Any, lo: Lowering | None = None) -> Any:
    return constant(lo or Lowering(), array.tobytes(), array.shape, str(array.dtype))


def test_one_number_is_a_constant() -> None:
    assert of(np.full((2, 3), 0.5)) == Const(Fraction(1, 2), (2, 3), "float64")
    assert of(np.ones((2,), dtype=bool)) == Const(Fraction(1), (2,), "bool")


@pytest.mark.parametrize("seed", range(20))
def test_affine_whole_numbers_are_positions(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(2, 5, random.integers(1, 4)))
    steps = tuple(int(n) for n in random.integers(1, 5, len(shape)))
    array = 7 + sum(s * i for s, i in zip(steps, np.indices(shape), strict=True))
    assert of(array) == Positions(7, steps, shape, "int64")
    array[(1,) * len(shape)] += 1
    found = of(array)
    assert isinstance(found, Real) or found.steps != steps


@pytest.mark.parametrize("diagonal", range(-2, 3))
@pytest.mark.parametrize("below", [True, False])
def test_masks_that_compare_positions_stay_masks(diagonal: int, below: bool) -> None:
    triangle = np.tril if below else np.triu
    array = triangle(np.ones((4, 5), dtype=bool), diagonal)
    array = np.stack([array, array])
    if array.all() or not array.any():
        return
    found = of(array)
    assert isinstance(found, Compared)
    index = np.indices(found.shape)
    entries = found.of.const + sum(s * index[d] for d, s in enumerate(found.of.steps))
    np.testing.assert_array_equal(entries >= 0, array)


def test_masks_of_minus_infinity_stay_masks() -> None:
    later = np.triu(np.ones((3, 3), dtype=bool), 1)
    found = of(np.where(later, -np.inf, 0.0))
    assert isinstance(found, Additive)
    assert found.where == Compared(Positions(-1, (-1, 1), (3, 3), "int64"))


def test_other_masks_are_tables_of_flags() -> None:
    lo = Lowering()
    kept = np.array([[True, False], [True, False]])
    found = of(kept, lo)
    assert (found.dtype, found.domain) == ("bool", (0, 2))
    (table,) = lo.contents.values()
    np.testing.assert_array_equal(table, [1.0, 0.0])
    hidden = of(np.where(kept, 0.0, -np.inf), lo)
    assert isinstance(hidden, Hidden)
    assert (hidden.shape, hidden.dtype, len(lo.contents)) == ((2, 2), "float64", 1)
    with pytest.raises(Unsupported, match="as numbers"):
        lo.real(hidden)
    nothing = of(np.full(3, -np.inf))
    assert isinstance(nothing, Hidden)
    assert nothing.kept == Const(Fraction(0), (3,), "float64")


def test_a_table_is_one_input_by_its_contents() -> None:
    lo = Lowering()
    table = np.array([1.0, 2.0, 4.5])
    first, second = of(table, lo), of(table[None], lo)
    assert len(lo.shards) == 1
    (shard,) = lo.shards
    assert (shard.kind, shard.trainable, shard.full_shape) == ("constant", False, (3,))
    assert isinstance(first, Real)
    assert second.shape == (1, 3)
    of(table * 2, lo)
    assert len({s.name for s in lo.shards}) == 2


def test_a_table_that_the_other_side_has_not_is_refused() -> None:
    lo = Lowering()
    lo.shared = {}
    with pytest.raises(Unsupported, match="does not have"):
        of(np.array([1.0, 2.0]), lo)


def test_what_varies_along_no_other_dimension_is_one_table() -> None:
    lo = Lowering()
    table = np.array([1.0, 2.0, 4.5])
    assert of(np.tile(table, (4, 1)), lo).shape == (4, 3)
    of(np.tile(table[:, None], (1, 2)), lo)
    assert [s.full_shape for s in lo.shards] == [(3,)]


def test_a_part_of_a_table_of_the_single_side_is_a_slice_of_it() -> None:
    alone, rank = Lowering(), Lowering()
    table = np.arange(12.0).reshape(3, 4) ** 2
    of(table, alone)
    rank.shared = alone.contents
    assert of(table[1:, 2:], rank).shape == (2, 2)
    assert of(table[2], rank).shape == (4,)
    assert [s.name for s in rank.shards] == [s.name for s in alone.shards]
    assert [op.attrs["start"] for op in rank.ops if op.name == "slice"] == [1, 2, 2]


@pytest.mark.parametrize(
    ("data", "shape", "dtype"),
    [
        (b"12345", (2,), "float32"),
        (b"12", (1,), "bfloat16"),
        (np.array([1.0, np.inf]).tobytes(), (2,), "float64"),
        (np.array([1.0, np.nan]).tobytes(), (2,), "float64"),
    ],
)
def test_what_is_no_table_is_refused(data: bytes, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(Unsupported):
        constant(Lowering(), data, shape, dtype)
