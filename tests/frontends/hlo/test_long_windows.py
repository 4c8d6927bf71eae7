"""Windows over many positions: running sums have no table, other windows say how large theirs is."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import inline, tables, text
from shardproof.frontends.hlo.lower import lower
from shardproof.frontends.hlo.opcodes import Taps
from tests.frontends.hlo.verdicts import verified

#: Rows of sums up to each position, or of another window.
BODY = """HloModule m, num_partitions=COUNT

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[ROWS,4096] parameter(0), sharding={devices=[2,1]0,1}
  z = f32[] constant(0)
  ROOT y = f32[ROWS,4096] reduce-window(x, z), window={size=1xTAPS pad=0_0xPAD}, to_apply=add
}
"""


def rows(window: tuple[int, str], ranks: int = 1) -> str:
    body = BODY.replace("TAPS", str(window[0])).replace("PAD", window[1])
    if ranks == 1:
        body = body.replace(", sharding={devices=[2,1]0,1}", "").replace(
            ", num_partitions=COUNT", ""
        )
    return body.replace("COUNT", str(ranks)).replace("ROWS", str(4 // ranks))


UP_TO, FROM, ALMOST = (4096, "4095_0"), (4096, "0_4095"), (4095, "4094_0")


@pytest.mark.parametrize(("window", "names"), [(UP_TO, "ab,zb->az"), (FROM, "ab,bz->az")])
def test_a_running_sum_over_many_positions_has_no_table(
    window: tuple[int, str], names: str
) -> None:
    """It ended in a MemoryError, for a table of its taps."""
    lowering, _, _ = lower(inline.graph(text.parse(rows(window).replace("409", "6553"))))
    assert not lowering.recorder.constants
    assert lowering.recorder.ops[-1].attrs["equation"] == names


@pytest.mark.parametrize("window", [UP_TO, FROM])
def test_a_running_sum_over_many_positions_is_proved(
    window: tuple[int, str], tmp_path: Path
) -> None:
    verified(rows(window), rows(window, 2), tmp_path, "proved")


@pytest.mark.parametrize("window", [FROM, ALMOST])
def test_another_sum_over_many_positions_is_refuted(
    window: tuple[int, str], tmp_path: Path
) -> None:
    verified(rows(UP_TO), rows(window, 2), tmp_path, "refuted")


def test_a_window_over_many_positions_says_how_large_its_table_is() -> None:
    lowering, _, _ = lower(inline.graph(text.parse(rows((8999, "8998_0")).replace("4096", "9000"))))
    (refused,) = (op.name for op in lowering.recorder.ops if "reduce-window" in op.name)
    assert "windows by a table of 81000000 numbers" in refused


def test_running_windows_are_those_that_cover_all_up_to_each_or_from_it_on() -> None:
    grids = product((3, 5, 8), (1, 2), (0, 4, 5, 7), (1, 2), (1, 2), (False, True))
    for size, stride, before, spread, apart, mirrored in grids:
        taps = Taps(size, stride, before, 0, spread, apart, mirrored)
        table = tables.covers(taps, 5, 5)
        assert np.array_equal(table, tables.reads(taps, 5, 5).any(axis=1))
        if tables.up_to_each(taps, 5, 5):
            assert np.array_equal(table, np.triu(np.ones((5, 5))))
        if tables.from_each_on(taps, 5, 5):
            assert np.array_equal(table, np.tril(np.ones((5, 5))))
    assert tables.up_to_each(Taps(5, before=4), 5, 5)
    assert tables.from_each_on(Taps(5, after=4), 5, 5)


def test_a_convolution_over_many_positions_has_slices() -> None:
    """Its table of three taps would have 243 million numbers."""
    body = """HloModule m

ENTRY e {
  x = f32[2,1,9000] parameter(0)
  w = f32[4,1,3] parameter(1)
  ROOT y = f32[2,4,9000] convolution(x, w), window={size=3 pad=1_1}, dim_labels=bf0_oi0->bf0
}
"""
    lowering, _, _ = lower(inline.graph(text.parse(body)))
    assert not lowering.recorder.constants
    assert "convolution" not in " ".join(op.name for op in lowering.recorder.ops)
