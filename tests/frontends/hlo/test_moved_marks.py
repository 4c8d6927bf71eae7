"""Labels that do not count, of which a program asks after it has cut or joined them: a loop over
microbatches.  It was assumed that all labels count, and a mean by each rank's own count proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.marks import marked
from tests.frontends.hlo.verdicts import verified

TOTAL = """total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

"""
#: Where labels of the second row come from.
CUT = {
    "dynamic slice": "  i = s32[1,WIDE] dynamic-slice(y, one, zero), dynamic_slice_sizes={1,WIDE}\n",
    "behind a first one": "  f = s32[1,1] broadcast(zero), dimensions={}\n"
    "  g = s32[1,LESS] slice(y), slice={[1:2], [1:WIDE]}\n"
    "  i = s32[1,WIDE] concatenate(f, g), dimensions={1}\n",
}
#: The mean of losses ``x`` whose labels count.
PROGRAM = f"""HloModule m, num_partitions=RANKS

{TOTAL}ENTRY main {{
  y = s32[2,WIDE] parameter(0), sharding=PLACED
  x = f32[1,WIDE] parameter(1), sharding=PLACED
  zero = s32[] constant(0)
  one = s32[] constant(1)
CUT  none = s32[1,WIDE] broadcast(zero), dimensions={{}}
  p = pred[1,WIDE] compare(i, none), direction=GE
  m = f32[1,WIDE] convert(p)
  w = f32[1,WIDE] multiply(x, m)
  s = f32[] constant(0)
  t = f32[] reduce(w, s), dimensions={{0,1}}, to_apply=total
  n = f32[] reduce(m, s), dimensions={{0,1}}, to_apply=total
"""
ALONE = "  ROOT mean = f32[] divide(t, n)\n}\n"
SUM = "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=total"
TOGETHER = f"""  ta = f32[] all-reduce(t), channel_id=1, {SUM}
  na = f32[] all-reduce(n), channel_id=2, {SUM}
  ROOT mean = f32[] divide(ta, na)
}}
"""
APART = f"""  u = f32[] divide(t, n)
  ua = f32[] all-reduce(u), channel_id=1, {SUM}
  half = f32[] constant(0.5)
  ROOT mean = f32[] multiply(ua, half)
}}
"""


def program(ranks: int, cut: str, end: str) -> str:
    given = {"CUT": CUT[cut], "RANKS": ranks, "WIDE": 8 // ranks, "LESS": 8 // ranks - 1}
    given["PLACED"] = "{replicated}" if ranks == 1 else "{devices=[1,2]<=[2]}"
    text = PROGRAM + end
    for name, what in given.items():
        text = text.replace(name, str(what))
    return text


@pytest.mark.parametrize(
    ("cut", "end", "expected"),
    [
        ("dynamic slice", TOGETHER, "proved"),
        ("dynamic slice", APART, "refuted"),
        ("behind a first one", APART, "refuted"),
    ],
)
def test_a_mean_by_each_rank_s_own_count(cut: str, end: str, expected: str, tmp_path: Path) -> None:
    single = program(1, cut, ALONE)
    verified(single, program(2, cut, end), tmp_path, expected)


def test_a_number_that_the_program_puts_in_is_no_mark_of_an_input() -> None:
    """Words shifted by one, behind which -100 stands: the words themselves are from 0 on."""
    text_of = program(1, "behind a first one", ALONE)
    own = text_of.replace(
        "broadcast(zero), dimensions={}\n  g", "broadcast(mark), dimensions={}\n  g"
    )
    own = own.replace("  one =", "  mark = s32[] constant(-100)\n  one =")
    graphs = [marked(inline.graph(text.parse(t))) for t in (text_of, own)]
    assert [graph.inputs[0].mark for graph in graphs] == [-1, None]
