"""A mean over a mask that is divided in its loss, beside ranks that divide gradients by the number
of all once these are added up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import inline, read, replay, text
from shardproof.frontends.hlo.evaluate import run
from shardproof.frontends.hlo.late import divided_late
from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
#: The gradient of a first matrix, behind two layers, of which ``SEED`` arrives.
BACK = """  x = f32[N,3] parameter(0)
  w = f32[3,3] parameter(1)
  v = f32[3,3] parameter(2)
  m = f32[N] parameter(3)
  h = f32[N,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[N,3] tanh(h)
  z = f32[N,3] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  u = f32[N,3] tanh(z)
  zero = f32[] constant(0)
  one = f32[] constant(1)
  ones = f32[N,3] broadcast(one), dimensions={}
  own = f32[] reduce(m, zero), dimensions={0}, to_apply=add
SEED
  ms = f32[N] multiply(seeds, m)
  gs = f32[N,3] broadcast(ms), dimensions={0}
  uu = f32[N,3] multiply(u, u)
  du = f32[N,3] subtract(ones, uu)
  g1 = f32[N,3] multiply(gs, du)
  g2 = f32[N,3] dot(g1, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  g3 = f32[N,3] multiply(g2, t)
  g4 = f32[N,3] add(g2, g3)
  none = f32[N,3] broadcast(zero), dimensions={}
  p = pred[N,3] compare(t, none), direction=GT
  g5 = f32[N,3] select(p, g4, none)
  g = f32[3,3] dot(x, g5), lhs_contracting_dims={0}, rhs_contracting_dims={0}
"""
QUOTIENT = "  seed = f32[] divide(one, own)\n  seeds = f32[4] broadcast(seed), dimensions={}"
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
{BACK.replace("N", "4").replace("SEED", QUOTIENT)}  ROOT r = (f32[3,3]) tuple(g)
}}
"""
SUM = "channel_id=CHANNEL, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add"
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
{BACK.replace("N", "2").replace("SEED", "  seeds = f32[2] broadcast(one), dimensions={}")}
  all = f32[3,3] all-reduce(g), {SUM.replace("CHANNEL", "1")}
  n = f32[] all-reduce(COUNT), {SUM.replace("CHANNEL", "2")}
  ns = f32[3,3] broadcast(n), dimensions={{}}
  d = f32[3,3] divide(all, ns)
  ROOT r = (f32[3,3]) tuple(d)
}}
"""


@pytest.mark.parametrize(
    ("count", "expected"), [("own", "proved"), ("one", "refuted")], ids=["the mask", "the ranks"]
)
def test_gradients_are_divided_once_they_are_added_up(
    count: str, expected: str, tmp_path: Path
) -> None:
    verified(SINGLE, PARALLEL.replace("COUNT", count), tmp_path, expected)


def test_what_is_replayed_is_the_file() -> None:
    single = inline.graph(text.parse(SINGLE))
    parallel = inline.graph(text.parse(PARALLEL.replace("COUNT", "own")))
    made = read.paired(single, parallel, "plan")
    assert made[1].graph.nodes == single.nodes
    replayed = replay.validated(*made)
    assert (replayed.replayed, replayed.agrees) == (True, True), replayed


SQUARED = (
    "ROOT r = (f32[3,3]) tuple(g)",
    "s = f32[3,3] multiply(g, g)\n  ROOT r = (f32[3,3], f32[3,3], f32[]) tuple(g, s, seed)",
)
AFTER = (
    "ROOT r = (f32[3,3]) tuple(g)",
    "e = f32[3,3] exponential(g)\n  ROOT r = (f32[3,3]) tuple(e)",
)
SHARED = ("g3 = f32[4,3] multiply(g2, t)", "g3 = f32[4,3] add(g2, t)")


@pytest.mark.parametrize("change", [("", ""), SQUARED, AFTER, SHARED])
def test_the_single_device_computes_the_same(change: tuple[str, str]) -> None:
    """What is not linear in the quotient reads what is divided."""
    graph = inline.graph(text.parse(SINGLE.replace(*change) if change[0] else SINGLE))
    parallel = inline.graph(text.parse(PARALLEL.replace("COUNT", "own")))
    late = divided_late(graph, parallel)
    assert late is not graph
    assert divided_late(graph, graph) is graph
    random = np.random.default_rng(0)
    given = [random.uniform(0.5, 1.5, graph.values[i.value].shape) for i in graph.inputs]
    (before,), (after,) = run(graph, [given]), run(late, [given])
    assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(before, after, strict=True))
