"""Products of a few entries, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

TIMES = (
    "times {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n"
    "  ROOT w = f32[] multiply(u, v)\n}\n\n"
)
SINGLE = f"""HloModule m

{TIMES}ENTRY main {{
  x = f32[4,3] parameter(0)
  c = f32[] constant(FIRST)
  ROOT y = f32[4] reduce(x, c), dimensions={{1}}, to_apply=times
}}
"""
PARALLEL = (
    SINGLE.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace("[4", "[2")
    .replace("parameter(0)\n  c", "parameter(0), sharding={devices=[2,1]<=[2]}\n  c")
)


@pytest.mark.parametrize("dims", ["{1}", "{0}", "{0,1}", "{0,2}"])
def test_products_are_lowered_to_what_they_compute(dims: str) -> None:
    left = str([n for d, n in enumerate((2, 3, 4)) if str(d) not in dims]).replace(" ", "")
    body = (
        f"{TIMES}ENTRY e {{\n  x = f32[2,3,4] parameter(0)\n  c = f32[] constant(0.5)\n"
        f"  ROOT y = f32{left} reduce(x, c), dimensions={dims}, to_apply=times\n}}\n"
    )
    agree(inline.graph(text.parse("HloModule m\n\n" + body)))


@pytest.mark.parametrize(("first", "expected"), [("1", "proved"), ("2", "refuted")])
def test_products_of_rows(first: str, expected: str, tmp_path: Path) -> None:
    parallel = PARALLEL.replace("FIRST", first)
    verified(SINGLE.replace("FIRST", "1"), parallel, tmp_path, expected)


def test_products_of_many_entries_are_refused_by_name() -> None:
    program = SINGLE.replace("FIRST", "1").replace("[4,3]", "[4,65]")
    low, _, _ = lower(inline.graph(text.parse(program)))
    assert [op.name for op in low.recorder.ops] == ["reduce of HLO (a product of 65 entries)"]
