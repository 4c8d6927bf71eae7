"""Scores that -1e30 hides from a rank altogether, the blocks of a causal ring."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.frontends.hlo import hides, inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import ADD, MAX
from tests.frontends.hlo.verdicts import verified

SAMPLES = Path(__file__).parent / "samples"
SINGLE = """HloModule m

ENTRY main {
  x = f32[4] parameter(0)
  z = f32[4] parameter(1)
  m = f32[4] maximum(x, z)
  d = f32[4] subtract(x, m)
  e = f32[4] exponential(d)
  ROOT r = (f32[4], f32[4]) tuple(e, x)
}
"""
#: Two ranks, of which those before ``BOUND`` see ``x``, and what goes back through that choice.
RING = f"""HloModule m, num_partitions=2

{ADD}
{MAX}
ENTRY main {{
  x = f32[4] parameter(0)
  z = f32[4] parameter(1)
  low = f32[] constant(HIDES)
  lows = f32[4] broadcast(low), dimensions={{}}
  rank = u32[] partition-id()
  bound = u32[] constant(BOUND)
  one = pred[] compare(rank, bound), direction=LT
  some = pred[4] broadcast(one), dimensions={{}}
  t = f32[4] select(some, x, lows)
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={{}}
  back = f32[4] select(some, x, zeros)
  m = f32[4] maximum(t, z)
  d = f32[4] subtract(t, m)
  e = f32[4] exponential(d)
  y = f32[4] all-reduce(e), channel_id=1, replica_groups={{{{0,1}}}}, to_apply=add, use_global_device_ids=true
  w = f32[4] all-reduce(back), channel_id=2, replica_groups={{{{0,1}}}}, to_apply=add, use_global_device_ids=true
  ROOT r = (f32[4], f32[4]) tuple(y, w)
}}
"""


def ring(hides: str = "-1e30", bound: int = 1) -> str:
    return RING.replace("HIDES", hides).replace("BOUND", str(bound))


@pytest.mark.parametrize(
    ("hides", "bound", "expected"),
    [("-1e30", 1, "proved"), ("-3.40282347e+38", 1, "proved"), ("-1e30", 2, "refuted")],
)
def test_a_block_that_a_number_hides(hides: str, bound: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, ring(hides, bound), tmp_path, expected)


def read(single: str, parallel: str) -> list[tuple[str, ...]]:
    """What is assumed in each other reading of two programs."""
    sides = (lower(inline.graph(text.parse(one)))[0] for one in (single, parallel))
    return [tuple(a.text for a in one.assumed) for one in hides.endless(*sides)]


def test_what_is_assumed_names_the_number() -> None:
    ((assumed,),) = read(SINGLE, ring())
    assert "-1e+30" in assumed


#: Programs in which the number stays what it is: what is changed in the ring.
OTHERWISE = {
    "a number that other scores may be near": ("HIDES", "-1e8"),
    "scores as a result": ("tuple(y, w)", "tuple(t, w)"),
    "the largest score as a result": ("tuple(y, w)", "tuple(m, w)"),
    "scores that are a number again": ("exponential(d)", "tanh(d)"),
    "scores times a small number": (
        "  d = f32[4] subtract(t, m)",
        "  s = f32[] constant(1e-9)\n  u = f32[4] broadcast(s), dimensions={}\n"
        "  d = f32[4] multiply(t, u)",
    ),
    "a number that takes them back": (
        "  d = f32[4] subtract(t, m)",
        "  s = f32[] constant(1e30)\n  u = f32[4] broadcast(s), dimensions={}\n"
        "  d = f32[4] add(t, u)",
    ),
    "the other way round": ("subtract(t, m)", "negate(t)"),
    "a mask that is computed of numbers": (
        "some = pred[4] broadcast(one), dimensions={}",
        "some = pred[4] compare(x, z), direction=LT",
    ),
    "nothing hidden altogether": ("direction=LT", "direction=GE"),
    "a sum over some that are hidden": (
        "  d = f32[4] subtract(t, m)",
        "  s = f32[] reduce(t, zero), dimensions={0}, to_apply=add\n"
        "  d = f32[4] broadcast(s), dimensions={}",
    ),
}


#: Two rows of scores and what goes back through their mask.
ROWS = """HloModule m

ENTRY main {
  x = f32[2,2] parameter(0)
  p = pred[2,2] constant(MASK)
  low = f32[] constant(-1e30)
  lows = f32[2,2] broadcast(low), dimensions={}
  t = f32[2,2] select(p, x, lows)
  e = f32[2,2] exponential(t)
  zero = f32[] constant(0)
  zeros = f32[2,2] broadcast(zero), dimensions={}
  ROOT g = f32[2,2] select(p, e, zeros)
}
"""


@pytest.mark.parametrize("how", OTHERWISE)
def test_numbers_that_stay_what_they_are(how: str) -> None:
    old, new = OTHERWISE[how]
    assert old in RING
    parallel = RING.replace(old, new).replace("HIDES", "-1e30")
    bound = "0" if how == "nothing hidden altogether" else "1"
    assert read(SINGLE, parallel.replace("BOUND", bound)) == []


def test_a_row_that_the_single_device_hides_altogether() -> None:
    """Its softmax is one of equal numbers there, and no number of minus infinities."""
    shown = ROWS.replace("MASK", "{{1, 0}, {1, 1}}")
    assert read(shown, ring())
    assert read(ROWS.replace("MASK", "{{0, 0}, {1, 1}}"), ring()) == []


#: What is wrong in a ring's twin.
WRONG = {
    "a key too few": ("compare GE, %8, %9", "compare GT, %8, %9"),
    "keys behind, and not before": ("compare GE, %8, %9", "compare LE, %8, %9"),
    "scores that are not seen by the largest": (
        "%14 = stablehlo.maximum %13, %12",
        "%14 = stablehlo.maximum %13, %13",
    ),
}


def causal_ring(folder: Path, old: str = "", new: str = "") -> shardproof.Result:
    """The ring of two ranks and its gradients, as JAX writes it, with a place changed."""
    single, parallel = (SAMPLES / f"causal_ring.{s}.mlir" for s in ("single", "parallel"))
    assert old in parallel.read_text()
    file = folder / "parallel.mlir"
    file.write_text(parallel.read_text().replace(old, new))
    return shardproof.verify(single, file, out=folder / "run", cache_dir=folder / "cache")


def test_a_causal_ring_with_gradients(tmp_path: Path) -> None:
    result = causal_ring(tmp_path)
    assert result.verdict == "proved", result.reason
    assert any("are minus infinity" in a for a in result.assumptions)
    assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize("how", WRONG)
def test_a_causal_ring_that_is_wrong(how: str, tmp_path: Path) -> None:
    assert causal_ring(tmp_path, *WRONG[how]).verdict != "proved"
