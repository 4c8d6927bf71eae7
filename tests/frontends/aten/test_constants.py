"""Tensors of known values: symbolic where they can be, else a table named by its contents."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import Const, Lowering, Real
from shardproof.frontends.aten.bits import Additive, Bits, runs
from shardproof.frontends.aten.constants import constant
from shardproof.frontends.aten.lowering import fraction
from shardproof.frontends.aten.positions import Compared, Positions
from tests.frontends.aten.evaluated import evaluated


def of(array: Any, lo: Lowering | None = None) -> Any:
    return constant(lo or Lowering(), array.tobytes(), array.shape, str(array.dtype))


@pytest.mark.parametrize(
    ("number", "exact"),
    [
        (0.1, Fraction(1, 10)),
        (1 - 0.99, Fraction(1, 100)),
        (1 - 0.9999, Fraction(1, 10000)),
        (1e-20, Fraction(1, 10**20)),
        (1 / 3, Fraction(1, 3)),
        (-0.1 / 12, Fraction(-1, 120)),
        (1 / (16 * 128256), Fraction(1, 2052096)),
        (2**-0.5, Fraction("0.7071067811865476")),
        (3.14159265e-12, Fraction("3.14159265e-12")),
        (0.01000000001, Fraction("0.01000000001")),
        (123456.7, Fraction(1234567, 10)),
    ],
)
def test_numbers_are_decimals_but_for_the_rounding_of_a_sum(number: float, exact: Fraction) -> None:
    assert fraction(number) == exact


def test_one_number_is_a_constant() -> None:
    assert of(np.full((2, 3), 0.5)) == Const(Fraction(1, 2), (2, 3), "float64")
    assert of(np.ones((2,), dtype=bool)) == Const(Fraction(1), (2,), "bool")


@pytest.mark.parametrize(
    ("number", "exact"),
    [
        (0.9, Fraction(9, 10)),
        (1e-5, Fraction(1, 10**5)),
        (1 / 3, Fraction(1, 3)),
        (-64 / 63, Fraction(-64, 63)),
        (3.0, Fraction(3)),
        (2**-0.5, Fraction(repr(float(np.float32(2**-0.5))))),
    ],
)
def test_a_number_of_single_precision_is_what_is_rounded_to_it(
    number: float, exact: Fraction
) -> None:
    assert of(np.full((2, 3), number, dtype=np.float32)) == Const(exact, (2, 3), "float32")


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


def test_other_masks_are_known_by_their_entries() -> None:
    array = np.array([[True, False], [True, False]])
    found = of(array)
    assert isinstance(found, Bits)
    np.testing.assert_array_equal(found.array, array)


@pytest.mark.parametrize(
    ("shown", "count"),
    [
        (["1100", "0110", "0011"], 1),  # a window of two
        (["1110", "1110", "1111", "1111"], 2),
        (["1000", "1100", "0010", "0011"], 3),  # two documents
        (["1111", "1111"], 1),
    ],
)
def test_rows_of_a_mask_fall_into_runs(shown: list[str], count: int) -> None:
    hidden = np.array([[c == "0" for c in row] for row in shown])
    found = runs(hidden)
    again = np.zeros_like(hidden)
    for run in found:
        i, j = np.indices((run.rows, hidden.shape[1]))
        part = np.zeros(i.shape, dtype=bool)
        part |= j > i + run.last if run.last is not None else False
        part |= j < i + run.least if run.least is not None else False
        again[run.start : run.start + run.rows] = part
    np.testing.assert_array_equal(again, hidden)
    assert len(found) == count


@pytest.mark.parametrize("shown", [["00", "11"], ["101"]])
def test_rows_that_show_nothing_or_no_interval_are_no_runs(shown: list[str]) -> None:
    with pytest.raises(Unsupported, match="other than one interval"):
        runs(np.array([[c == "0" for c in row] for row in shown]))


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


def test_a_table_that_the_other_side_has_not_is_an_input_of_its_own() -> None:
    lo = Lowering()
    lo.shared = {}
    of(np.array([1.0, 2.0]), lo)
    assert [s.kind for s in lo.shards] == ["constant"]


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


@pytest.mark.parametrize("tiles", [(2, 1, 1), (1, 3, 1), (2, 3, 2)])
def test_a_table_that_repeats_is_one_table(tiles: tuple[int, ...]) -> None:
    """As slopes of heads are, which BLOOM has for each row of the batch."""
    once = np.random.default_rng(0).random((3, 2, 4))
    lo = Lowering()
    single, many = of(once, lo), of(np.tile(once, tiles), lo)
    assert len(lo.tables) == 1
    assert many.shape == np.tile(once, tiles).shape
    assert (evaluated(lo, {})[many.number] == np.tile(once, tiles)).all()
    other = np.tile(once, tiles)
    other[-1, -1, -1] += 1
    assert of(other, lo).number not in (single.number, many.number)
    assert len(lo.tables) == 2


@pytest.mark.parametrize(("cuts", "whole"), [((8, 4), False), ((8, 1), True), ((12, 1), False)])
def test_features_that_repeat_are_left_where_a_rank_has_part_of_a_period(
    cuts: tuple[int, int], whole: bool
) -> None:
    """Rotary tables have every angle twice; in halves, heads could not be cut in eight parts."""
    once = np.random.default_rng(0).random((3, 4))
    lo = Lowering()
    lo.cuts = frozenset({cuts})
    of(np.tile(once, (1, 2)), lo)
    of(once, lo)
    shapes = sorted(table.shape for table in lo.contents.values())
    assert shapes == ([(3, 4), (3, 8)] if whole else [(3, 4)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_of_half_precision_are_what_they_are(dtype: torch.dtype) -> None:
    """What was rounded to so few bits is not told from what was not."""

    def read(*numbers: float) -> Any:
        x = torch.tensor(numbers, dtype=dtype)
        data = x.view(torch.uint8).numpy().tobytes()
        return constant(Lowering(), data, x.shape, str(dtype).removeprefix("torch."))

    for number in (0.0, 0.25, -1.5, 96.0, 255.0, 2.0**-6, 1024.0):
        assert read(number, number).value == Fraction(number)
    assert isinstance(read(0.0, -np.inf), Additive)
    for number in (0.1, 1 / 3, 0.99, 1000.5):
        with pytest.raises(Unsupported, match="rounded"):
            read(number)
