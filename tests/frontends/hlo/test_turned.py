"""Pictures that are turned along both dimensions (`jnp.roll`, as shifted windows are), and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.lower import lower
from shardproof.frontends.hlo.state import Other
from shardproof.frontends.hlo.turned import shifts
from tests.frontends.hlo.runner import run
from tests.frontends.hlo.verdicts import verified

#: As ``jnp.roll`` is printed, and as its gradient is.
BESIDE = """  a = f32[N,3,4] slice(x), slice={[0:N], [1:4], [0:4]}
  b = f32[N,1,4] slice(x), slice={[0:N], [0:1], [0:4]}
  c = f32[N,4,4] concatenate(a, b), dimensions={1}
  d = f32[N,4,FIRST] slice(c), slice={[0:N], [0:4], [LAST:4]}
  e = f32[N,4,LAST] slice(c), slice={[0:N], [0:4], [0:LAST]}
  f = f32[N,4,4] concatenate(d, e), dimensions={2}
"""
ADDED = """  a = f32[N,4,2] slice(x), slice={[0:N], [0:4], [0:2]}
  b = f32[N,4,2] slice(x), slice={[0:N], [0:4], [2:4]}
  o = f32[] constant(0)
  c = f32[N,4,4] pad(b, o), padding=0_0x0_0x0_2
  d = f32[N,4,4] pad(a, o), padding=0_0x0_0x2_0
  e = f32[N,4,4] add(c, d)
  g = f32[N,FIRST,4] slice(e), slice={[0:N], [0:FIRST], [0:4]}
  h = f32[N,LAST,4] slice(e), slice={[0:N], [FIRST:4], [0:4]}
  i = f32[N,4,4] pad(h, o), padding=0_0x0_FIRSTx0_0
  j = f32[N,4,4] pad(g, o), padding=0_0xLAST_0x0_0
  f = f32[N,4,4] add(i, j)
"""
#: Scores of the windows of 2 x 2 positions, of which some reach around the end.
SCORES = """  w = f32[N,2,2,2,2] reshape(f)
  v = f32[N,2,2,2,2] transpose(w), dimensions={0,1,3,2,4}
  y = f32[N,4,4] reshape(v)
  t = f32[N,4,4] exponential(y)
  s = f32[N,4,4,4] dot(y, t), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, \
lhs_contracting_dims={}, rhs_contracting_dims={}
  z = f32[N,4,4,4] exponential(s)
"""
WAYS = {"side by side": BESIDE, "added": ADDED}


def _body(way: str, rows: int, last: int) -> str:
    body = WAYS[way].replace("N", str(rows)).replace("LAST", str(last))
    return body.replace("FIRST", str(4 - last))


@pytest.mark.parametrize("way", WAYS)
def test_tables_turn_as_parts_do(way: str) -> None:
    turned = _body(way, 2, 1).replace("  f = ", "  ROOT f = ")
    program = f"HloModule m\n\nENTRY main {{\n  x = f32[2,4,4] parameter(0)\n{turned}}}\n"
    graph = inline.graph(text.parse(program))
    expected_shifts = {(4, 1)} if way == "side by side" else {(4, 2), (4, 3)}
    assert frozenset(expected_shifts) in shifts(graph)
    lowering, outputs, _ = lower(graph, other=Other(turns=shifts(graph)))
    assert any(op.name == "einsum" for op in lowering.recorder.ops)
    x = np.random.default_rng(0).normal(size=(2, 4, 4))
    ((expected,),) = evaluate.run(graph, [[x]])
    ((actual,),) = run(lowering.recorder, [[x]], outputs)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("last", "expected"), [(1, "proved"), (3, "refuted")])
@pytest.mark.parametrize("way", WAYS)
def test_windows_of_turned_pictures(way: str, last: int, expected: str, tmp_path: Path) -> None:
    scores, own = SCORES.replace("N", "4"), SCORES.replace("N", "2")
    single = f"""HloModule m

ENTRY main {{
  x = f32[4,4,4] parameter(0)
{_body(way, 4, 1)}{scores}  ROOT r = f32[4,4,4,4] copy(z)
}}
"""
    parallel = f"""HloModule m, num_partitions=2

ENTRY main {{
  x = f32[2,4,4] parameter(0), sharding={{devices=[2,1,1]<=[2]}}
{_body(way, 2, last)}{own}  ROOT r = f32[4,4,4,4] all-gather(z), channel_id=1, \
replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true
}}
"""
    verified(single, parallel, tmp_path, expected)
