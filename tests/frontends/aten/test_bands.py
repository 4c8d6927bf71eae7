"""Windows of attention: what they show, where ranks have their rows, and when they are tables, held
against NumPy on drawn windows."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.frontends.aten.bands import MOST_COMPARED, Window, as_table, both, window
from shardproof.frontends.aten.bits import Bits, shown_columns
from shardproof.frontends.aten.lowering import Lowering
from shardproof.frontends.aten.positions import Compared, Positions

SEEDS = range(40)


def drawn(seed: int) -> tuple[Window, np.ndarray]:
    """A window whose rows show keys, and its entries by their definition."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 9))
    columns = rows + int(rng.integers(0, 4))
    last = int(rng.integers(0, columns - 1))
    least = min(last - int(rng.integers(0, rows)), columns - rows)
    own = Window(last, least, rows, columns)
    i, j = np.indices((rows, columns))
    return own, (j - i >= own.least) & (j - i <= own.last)


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_and_what_they_are_the_window_of(seed: int) -> None:
    own, shown = drawn(seed)
    assert (own.entries() == shown).all()
    again = window(~shown)
    assert again is None or (again.entries() == shown[:, slice(*shown_columns(~shown))]).all()
    behind = Compared(Positions(own.last, (1, -1), shown.shape, "int64"))
    before = Compared(Positions(-own.least, (-1, 1), shown.shape, "int64"))
    for x, y in ((behind, before), (before, behind)):
        made = both(x, y)
        assert made is not None or not own.ends_twice
        if made is not None:
            entries = made.array if isinstance(made, Bits) else made.of.moving() >= 0
            assert (np.broadcast_to(entries, shown.shape) == shown).all()


def test_a_mask_between_others_is_no_window() -> None:
    hidden = np.ones((4, 4), dtype=bool)
    hidden[0, :2] = hidden[1, :2] = hidden[2, 2:] = hidden[3, 2:] = False
    assert window(hidden) is None


def test_columns_that_no_row_sees_are_left_out_where_rows_are_alike_without_them() -> None:
    """A rank without a neighbour before it has two keys of nobody; a row that sees none is none."""
    i, j = np.indices((6, 8))
    hidden = ~((j - 2 <= i) & (i - (j - 2) < 3) & (j >= 2))
    assert shown_columns(hidden) == (2, 8)
    assert window(hidden) == Window(0, -2, 6, 6)
    assert shown_columns(~((j <= i + 2) & (j >= i))) == (0, 8)


def test_a_large_window_is_a_table_of_which_ranks_have_rows() -> None:
    whole = Window(0, -16, 64, 64)
    single = Lowering()
    assert as_table(single, whole, MOST_COMPARED) is None
    assert as_table(single, whole, 2 * MOST_COMPARED).shape == (64, 64)
    assert as_table(single, Window(0, -64, 64, 64), 2 * MOST_COMPARED) is None
    for start in range(0, 64, 16):
        rank = Lowering()
        rank.shared = single.contents
        # Of the first rank's rows none hides a key that is too early.
        assert as_table(rank, Window(start, start - 16, 16, 64)).shape == (16, 64)
        (cut,) = (op for op in rank.ops if op.name == "slice")
        assert (cut.attrs["start"], cut.attrs["size"]) == (start, 16)
        other = as_table(rank, Window(start, start - 5, 16, 64))
        assert other is None
