"""Powers of two inputs, as a step's decay by its count (`optax.inject_hyperparams(optax.adam)`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

#: A second moment and its root, corrected by ``1 - decay ** count``.
BODY = """  g = f32[WIDTH] parameter(0)SHARDED
  v = f32[WIDTH] parameter(1)SHARDED
  decay = f32[] parameter(2)
  n = s32[] parameter(3)
  one = f32[] constant(1)
  step = s32[] constant(1)
  k = s32[] add(n, step)
  count = f32[] convert(k)
  rest = f32[] subtract(one, decay)
  d = f32[WIDTH] broadcast(decay), dimensions={}
  r = f32[WIDTH] broadcast(rest), dimensions={}
  g2 = f32[WIDTH] multiply(g, g)
  a = f32[WIDTH] multiply(d, v)
  b = f32[WIDTH] multiply(r, g2)
  w = f32[WIDTH] add(a, b)
  p = f32[] power(decay, EXPONENT)
  c = f32[] subtract(one, p)
  cs = f32[WIDTH] broadcast(c), dimensions={}
  y = f32[WIDTH] divide(w, cs)
"""
GATHER = "channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"


def _single() -> str:
    body = BODY.replace("WIDTH", "8").replace("SHARDED", "").replace("EXPONENT", "count")
    return f"HloModule m\n\nENTRY main {{\n{body}  ROOT z = f32[8] copy(y)\n}}\n"


@pytest.mark.parametrize(("exponent", "expected"), [("count", "proved"), ("rest", "refuted")])
def test_a_decay_to_the_power_of_a_count(exponent: str, expected: str, tmp_path: Path) -> None:
    own = BODY.replace("WIDTH", "4").replace("EXPONENT", exponent)
    own = own.replace("SHARDED", ", sharding={devices=[2]<=[2]}")
    head = "HloModule m, num_partitions=2\n\n"
    parallel = f"{head}ENTRY main {{\n{own}  ROOT z = f32[8] all-gather(y), {GATHER}\n}}\n"
    verified(_single(), parallel, tmp_path, expected)


def test_that_a_base_is_positive_is_told() -> None:
    graph = inline.graph(text.parse(_single()))
    for seed in range(3):
        agree(graph, None, seed)
    notes = lower(graph)[0].recorder.notes
    assert ("inferred", "powers") in {(note.kind, note.about) for note in notes}
