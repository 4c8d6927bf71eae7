"""Constants that XLA made of constants of the single device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.folded import unfolded
from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule one
ENTRY e {{
  x = f32[4,3]{{1,0}} parameter(0)
  a = f32[] constant({a})
  b = f32[] constant({b})
  c = f32[4,3]{{1,0}} broadcast(a), dimensions={{}}
  d = f32[4,3]{{1,0}} broadcast(b), dimensions={{}}
  y = f32[4,3]{{1,0}} {first}(x, c)
  z = f32[4,3]{{1,0}} {second}(y, d)
  ROOT r = f32[4,3]{{1,0}} tanh(z)
}}
"""
RANKS = """HloModule m, num_partitions=2
ENTRY e {{
  x = f32[2,3]{{1,0}} parameter(0), sharding={{devices=[2,1]<=[2]}}
  a = f32[] constant({number})
  c = f32[2,3]{{1,0}} broadcast(a), dimensions={{}}
  y = f32[2,3]{{1,0}} multiply(x, c)
  ROOT r = f32[2,3]{{1,0}} tanh(y)
}}
"""


def single(a: float, b: float, first: str = "multiply", second: str = "multiply") -> str:
    return SINGLE.format(a=np.float32(a), b=np.float32(b), first=first, second=second)


def ranks(number: float) -> str:
    return RANKS.format(number=np.float32(number))


def graphs(one: str, many: str) -> tuple[Graph, Graph]:
    return read.parsed(one), read.parsed(many, partitioned=True)


PRODUCT = float(np.float32(0.797884583) * np.float32(0.044715))
QUOTIENT = float(np.float32(0.353553385) / np.float32(30))


@pytest.mark.parametrize(
    ("one", "number"),
    [
        (single(0.797884583, 0.044715), PRODUCT),
        (single(0.353553385, 30, second="divide"), QUOTIENT),
    ],
)
def test_a_constant_of_two_is_proved_by_an_assumption(
    one: str, number: float, tmp_path: Path
) -> None:
    _, assumptions = unfolded(*graphs(one, ranks(number)))
    assert [a.kind for a in assumptions] == ["inferred"]
    assert str(np.float32(number)) in assumptions[0].text
    verified(one, ranks(number), tmp_path, "proved")


@pytest.mark.parametrize("number", [PRODUCT * 1.001, 0.797884583, 0.5])
def test_another_constant_is_refuted(number: float, tmp_path: Path) -> None:
    one = single(0.797884583, 0.044715)
    assert unfolded(*graphs(one, ranks(number)))[1] == ()
    verified(one, ranks(number), tmp_path, "refuted")


def test_a_constant_of_several_pairs_stays_a_number() -> None:
    """Two numbers times 1.5, and two divided by 7, that are one float32 and unlike numbers."""
    rng = np.random.default_rng(0)
    for x in rng.uniform(0.1, 1, 1000).astype(np.float32):
        number = x * np.float32(1.5)
        wide = number * np.float32(7)
        if wide / np.float32(7) == number and float(wide) != float(x) * 10.5:
            break
    pair = single(float(x), 1.5)
    assert unfolded(*graphs(pair, ranks(float(number))))[1]
    more = (
        f"f = f32[] constant({wide})\n  g = f32[] constant(7)\n"
        "  h = f32[4,3]{1,0} broadcast(f), dimensions={}\n"
        "  i = f32[4,3]{1,0} broadcast(g), dimensions={}\n"
        "  j = f32[4,3]{1,0} multiply(z, h)\n  k = f32[4,3]{1,0} multiply(j, i)\n"
    )
    both = pair.replace(
        "  ROOT r = f32[4,3]{1,0} tanh(z)", f"  {more}  ROOT r = f32[4,3]{{1,0}} tanh(k)"
    )
    assert unfolded(*graphs(both, ranks(float(number))))[1] == ()


@pytest.mark.parametrize("seed", range(10))
def test_the_graph_computes_the_same_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (float(np.float32(x)) for x in rng.uniform(0.01, 40, 2))
    number = float(np.float32(a) * np.float32(b))
    _, before = graphs(single(a, b), ranks(number))
    after, assumptions = unfolded(*graphs(single(a, b), ranks(number)))
    inputs = [[rng.normal(size=(2, 3))] for _ in range(2)]
    assert len(assumptions) == 1
    for expected, found in zip(
        evaluate.run(before, inputs), evaluate.run(after, inputs), strict=True
    ):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
