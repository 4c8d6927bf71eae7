"""Products of a few entries, one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import evaluate, inline, text
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


#: Windows of a running product, from the first entry on or from the last one.
RUNNING = {
    "up to each": "size=1x3x1 pad=0_0x2_0x0_0",
    "from each on": "size=1x3x1 pad=0_0x0_2x0_0",
    "of both": "size=2x3x1 pad=1_0x2_0x0_0",
}


@pytest.mark.parametrize("window", RUNNING.values(), ids=RUNNING)
def test_running_products_are_lowered_to_what_they_compute(window: str) -> None:
    body = (
        f"{TIMES}ENTRY e {{\n  x = f32[2,3,4] parameter(0)\n  c = f32[] constant(1)\n"
        f"  ROOT y = f32[2,3,4] reduce-window(x, c), window={{{window}}}, to_apply=times\n}}\n"
    )
    agree(inline.graph(text.parse("HloModule m\n\n" + body)))


def running(text: str, window: str = "size=1x3 pad=0_0x2_0") -> str:
    rows = "2" if "[2" in text else "4"
    return (
        text.replace("FIRST", "1")
        .replace(f"f32[{rows}] reduce(", f"f32[{rows},3] reduce-window(")
        .replace("dimensions={1}", f"window={{{window}}}")
    )


@pytest.mark.parametrize(
    ("window", "expected"),
    [("size=1x3 pad=0_0x2_0", "proved"), ("size=1x3 pad=0_0x0_2", "refuted")],
)
def test_running_products_of_rows(window: str, expected: str, tmp_path: Path) -> None:
    verified(running(SINGLE), running(PARALLEL, window), tmp_path, expected)


def test_products_of_other_windows_are_refused_by_name() -> None:
    program = running(SINGLE, "size=1x2 pad=0_0x1_0")
    low, _, _ = lower(inline.graph(text.parse(program)))
    (op,) = low.recorder.ops
    assert "no running products" in op.name


#: Rows by a matrix of 8 bits, summed as integers of 32.
WHOLE = """HloModule m

add {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}

ENTRY main {
  x = f32[2,4] parameter(0)
  w = s8[4,3] parameter(1)
  r = f32[2,4] round-nearest-even(x)
  q = s8[2,4] convert(r)
  d = s32[2,3] dot(q, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT y = f32[2,3] convert(d)
}
"""
REDUCED = (
    "s = s32[2,3] all-reduce(d), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, "
    "to_apply=add\n  ROOT y = f32[2,3] convert(s)"
)
HALVES = (
    WHOLE.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace(
        "x = f32[2,4] parameter(0)", "x = f32[2,2] parameter(0), sharding={devices=[1,2]<=[2]}"
    )
    .replace("w = s8[4,3] parameter(1)", "w = s8[2,3] parameter(1), sharding={devices=[2,1]<=[2]}")
    .replace("[2,4]", "[2,2]")
)


@pytest.mark.parametrize("whole", [True, False])
def test_products_of_integers(whole: bool, tmp_path: Path) -> None:
    parallel = HALVES.replace("ROOT y = f32[2,3] convert(d)", REDUCED) if whole else HALVES
    verified(WHOLE, parallel, tmp_path, "proved" if whole else "refuted")


@pytest.mark.parametrize(("dtype", "why"), [("s8", "may wrap around"), ("pred", "of predicates")])
def test_products_that_wrap_around_are_refused_by_name(dtype: str, why: str) -> None:
    program = WHOLE.replace("s32[2,3] dot", f"{dtype}[2,3] dot")
    low, _, _ = lower(inline.graph(text.parse(program)))
    assert any(why in op.name for op in low.recorder.ops)


KNOWN = """HloModule m

add {
  a = s8[] parameter(0)
  b = s8[] parameter(1)
  ROOT c = s8[] add(a, b)
}

ENTRY main {
  x = f32[] parameter(0)
  a = s8[2] constant({100, 100})
  d = s32[] dot(a, a), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  z = s8[] constant(0)
  r = s8[] reduce(a, z), dimensions={0}, to_apply=add
  f = f32[] convert(d)
  g = f32[] convert(r)
  p = f32[] multiply(x, f)
  q = f32[] multiply(x, g)
  ROOT y = (f32[], f32[]) tuple(p, q)
}
"""


def test_known_integers_have_the_bits_of_their_type() -> None:
    """A product of two tensors of 8 bits may have 32, a sum of 8 bits wraps around."""
    graph = inline.graph(text.parse(KNOWN))
    agree(graph)
    (own,) = evaluate.run(graph, [[np.array(1.0)]])
    assert [float(y) for y in own] == [20000, -56]


@pytest.mark.parametrize(("number", "verdict"), [(20000, "proved"), (32, "refuted")])
def test_a_known_product_is_not_its_lowest_bits(number: int, verdict: str, tmp_path: Path) -> None:
    """100 * 100 + 100 * 100 has more than eight bits: it was taken for 32."""
    written = KNOWN.replace("HloModule m", "HloModule m, num_partitions=2").replace(
        "x = f32[] parameter(0)", "x = f32[] parameter(0), sharding={replicated}"
    )
    parallel = written.replace("f = f32[] convert(d)", f"f = f32[] constant({number})")
    verified(KNOWN, parallel, tmp_path, verdict)


@pytest.mark.parametrize("numbers", [[100, 100, 100, 100], [-128, 127, -128, 127]])
def test_products_of_integers_are_replayed(numbers: list[int]) -> None:
    graph = inline.graph(text.parse(WHOLE))
    rows = np.array([numbers, numbers], dtype=float)
    (own,) = evaluate.run(graph, [[rows, np.full((4, 3), 100, dtype="int8")]])
    assert own[0].tolist() == [[100.0 * sum(numbers)] * 3] * 2
