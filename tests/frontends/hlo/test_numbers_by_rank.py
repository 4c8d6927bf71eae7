"""One number on each rank, computed of its own, beside a table of the single device's."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo import own_numbers, read
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.items import Values
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

#: A factor of each row; ``FACTOR`` makes it of the row's number ``i``.
FACTORS = {
    "pairs of rows": """  h = s32[ROWS] constant(2)
  d = s32[ROWS] divide(i, h)
  f = f32[ROWS] convert(d)
  g = f32[ROWS] add(f, one)
""",
    "slopes": """  f = f32[ROWS] convert(i)
  n = f32[ROWS] add(f, one)
  m = f32[ROWS] negate(n)
  e = f32[ROWS] multiply(m, two)
  g = f32[ROWS] power(two, e)
""",
}


def _rows(count: int, factor: str, number: str) -> str:
    """Rows, each times its factor."""
    text = (
        f"  x = f32[{count},6] parameter(0)SHARDED\n  c1 = f32[] constant(1)\n"
        f"  c2 = f32[] constant(2)\n  one = f32[ROWS] broadcast(c1), dimensions={{}}\n"
        f"  two = f32[ROWS] broadcast(c2), dimensions={{}}\n{number}{FACTORS[factor]}"
        f"  b = f32[{count},6] broadcast(g), dimensions=DIMS\n"
        f"  y = f32[{count},6] multiply(x, b)\n"
    )
    if count > 1:
        text = text.replace("s32[ROWS] constant(2)", "s32[4] constant({2, 2, 2, 2})")
    rows = str(count) if count > 1 else ""
    return text.replace("ROWS", rows).replace("DIMS", "{0}" if count > 1 else "{}")


def single(factor: str) -> str:
    """Four rows on one device."""
    rows = _rows(4, factor, "  i = s32[ROWS] iota(), iota_dimension=0\n").replace("SHARDED", "")
    return f"HloModule m\n\nENTRY main {{\n{rows}  ROOT z = f32[4,6] copy(y)\n}}\n"


def ranks(factor: str, later: int = 0) -> str:
    """A row on each of four ranks, with the factor of one so many behind it."""
    number = (
        "  p = u32[] partition-id()\n  q = s32[] convert(p)\n"
        f"  l = s32[] constant({later})\n  i = s32[] add(q, l)\n"
    )
    rows = _rows(1, factor, number).replace("SHARDED", ", sharding={devices=[4,1]<=[4]}")
    gather = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
    return (
        f"HloModule m, num_partitions=4\n\nENTRY main {{\n{rows}"
        f"  ROOT z = f32[4,6] all-gather(y), {gather}, dimensions={{0}}\n}}\n"
    )


@pytest.mark.parametrize(("later", "expected"), [(0, "proved"), (1, "refuted")])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_number_of_each_rank_is_an_entry_of_a_table(
    factor: str, later: int, expected: str, tmp_path: Path
) -> None:
    verified(single(factor), ranks(factor, later), tmp_path, expected)


@pytest.mark.parametrize("factor", FACTORS)
def test_numbers_of_ranks_are_what_is_computed(factor: str) -> None:
    agree(read.parsed(ranks(factor)))


@pytest.mark.parametrize(
    ("table", "numbers", "places"),
    [
        ([3, 5], [3, 3, 5, 5], [0, 0, 1, 1]),
        ([3, 5], [3, 5, 3, 5], [0, 1, 0, 1]),
        ([3, 3, 5, 5], [3, 3, 5, 5], [0, 1, 2, 3]),
        ([3, 5, 7], [3, 5, 5], None),
        ([1, 0, 0, 0], [1, 0, 0, 0], None),
    ],
    ids=["one after the other", "in turns", "equal ones", "not all of it", "one rank's choice"],
)
def test_which_entry_each_rank_has(
    table: list[int], numbers: list[int], places: list[int] | None
) -> None:
    recorder = Recorder(len(numbers))
    values = Values(recorder, Expressions(), False, [np.array(table, dtype="float32")], False)
    own_numbers.by_rank(values, [Fraction(n) for n in numbers], (2, 3))
    begins = [constant.begins for constant in recorder.constants]
    assert begins == ([] if places is None else [tuple((n,) for n in places)])
