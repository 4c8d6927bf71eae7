"""Text written by hand says nothing of where its inputs lie: a relations file does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardproof

SINGLE = """HloModule single
ENTRY main {
  x = f32[8,4] parameter(0)
  w = f32[4,6] parameter(1)
  v = f32[6,4] parameter(2)
  d = f32[8,6] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,6] tanh(d)
  y = f32[8,4] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[8,4], f32[8,6]) tuple(y, t)
}
"""
PARALLEL = """HloModule parallel, num_partitions=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[4,4] parameter(0)
  w = f32[4,3] parameter(1)
  v = f32[3,4] parameter(2)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,3] tanh(d)
  p = f32[4,4] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  y = f32[4,4] all-reduce(p), channel_id=1, replica_groups=GROUPS, use_global_device_ids=true, to_apply=add
  ROOT r = (f32[4,4], f32[4,3]) tuple(y, t)
}
"""
#: Two rows of two ranks: rows of x over the first axis, columns of w over the second.
RELATIONS = """[inputs.x]
starts = [[0, 0], [0, 0], [4, 0], [4, 0]]
[inputs.w]
starts = [[0, 0], [0, 3], [0, 0], [0, 3]]
[inputs.v]
starts = [[0, 0], [3, 0], [0, 0], [3, 0]]
[[outputs]]
single = "result[0]"
parallel = "result[0]"
starts = [[0, 0], [0, 0], [4, 0], [4, 0]]
"""
BESIDE = """[[outputs]]
single = "result[1]"
parallel = "result[1]"
starts = [[0, 0], [0, 3], [4, 0], [4, 3]]
"""


def verified(folder: Path, groups: str, relations: str) -> shardproof.Result:
    files = [folder / name for name in ("single.hlo", "parallel.hlo", "relations.toml")]
    for file, text in zip(
        files, (SINGLE, PARALLEL.replace("GROUPS", groups), relations), strict=True
    ):
        file.write_text(text)
    return shardproof.verify(
        files[0], files[1], relations=files[2], out=folder / "run", cache=False
    )


@pytest.mark.parametrize("groups", ["{{0,1},{2,3}}", "[2,2]<=[4]", "[2,2]<=[2,2]T(0,1)"])
def test_what_is_stated_is_proved(tmp_path: Path, groups: str) -> None:
    result = verified(tmp_path, groups, RELATIONS + BESIDE)
    assert result.verdict == "proved", result.reason
    assert len(result.conclusions) >= 2


@pytest.mark.parametrize("groups", ["{{0,2},{1,3}}", "{{0,1,2,3}}", "[2,2]<=[2,2]T(1,0)"])
def test_another_group_is_refuted(tmp_path: Path, groups: str) -> None:
    assert verified(tmp_path, groups, RELATIONS).verdict == "refuted"


def test_another_part_is_refuted(tmp_path: Path) -> None:
    """The second half of w first, and of v as it was."""
    turned = RELATIONS.replace(
        "[[0, 0], [0, 3], [0, 0], [0, 3]]", "[[0, 3], [0, 0], [0, 3], [0, 0]]"
    )
    assert verified(tmp_path, "{{0,1},{2,3}}", turned).verdict == "refuted"


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        ("", "nothing states which part"),
        ("[inputs.z]\nshard = 0\n", "inputs.z: expected an input"),
        ("[inputs.x]\nshard = 2\n", "has no dimension 2"),
        ("[inputs.x]\nshard = 0\n", "is no part of"),
        ("[inputs.x]\nstarts = [[0, 0]]\n", "expected 4 starts of 2 numbers"),
        ("[inputs.x]\nreplicated = true\n", "is not all of"),
        ('[inputs.x]\nof = "w"\nshard = 0\n', "expected x, which has its number, found w"),
        ("[inputs.x]\npieces = [[0, 4]]\n", "pieces say nothing"),
        ("[domains]\nx = [0, 4]\n", "domains.x: expected integers, found float32"),
        ("[domains]\nz = [0, 4]\n", "domains.z: expected an input"),
        ('[groups]\n"0" = [[0, 1]]\n', "groups: says nothing of HLO text"),
        ('[[outputs]]\nsingle = "y"\nparallel = "y"\n', r"expected an output \(result"),
    ],
)
def test_what_says_nothing_is_refused(tmp_path: Path, relations: str, message: str) -> None:
    result = verified(tmp_path, "{{0,1},{2,3}}", relations)
    assert result.verdict == "invalid input"
    assert re.search(message, result.reason), result.reason


#: The mean of the numbers of labels that count.
COUNTED = """HloModule m

add {
  u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] add(u, v)
}

ENTRY main {
  x = f32[4] parameter(0)
  y = s32[4] parameter(1)
  l = s32[] constant(0)
  b = s32[4] broadcast(l), dimensions={}
  p = pred[4] compare(y, b), direction=GE
  n = f32[4] convert(p)
  e = f32[4] multiply(x, n)
  z = f32[] constant(0)
  s = f32[] reduce(e, z), dimensions={0}, to_apply=add
  c = f32[] reduce(n, z), dimensions={0}, to_apply=add
  ROOT m = f32[] divide(s, c)
}
"""
#: The mean of the means of two ranks.
MEANS = (
    COUNTED.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace("[4]", "[2]")
    .replace("parameter(0)\n  y", "parameter(0), sharding={devices=[2]<=[2]}\n  y")
    .replace("parameter(1)\n  l", "parameter(1), sharding={devices=[2]<=[2]}\n  l")
    .replace("ROOT m", "m")
    .replace(
        "divide(s, c)\n",
        "divide(s, c)\n  h = f32[] constant(0.5)\n  o = f32[] multiply(m, h)\n"
        "  ROOT r = f32[] all-reduce(o), channel_id=1, replica_groups={{0,1}}, "
        "use_global_device_ids=true, to_apply=add\n",
    )
)


@pytest.mark.parametrize(
    ("domain", "expected"), [("[0, 9]", "proved"), ("[-1, 9]", "refuted")], ids=["all", "some"]
)
def test_a_mean_of_means_is_the_mean_where_all_labels_count(
    tmp_path: Path, domain: str, expected: str
) -> None:
    one, many, stated = (tmp_path / name for name in ("one.hlo", "many.hlo", "stated.toml"))
    one.write_text(COUNTED)
    many.write_text(MEANS)
    stated.write_text(f"[domains]\ny = {domain}\n")
    result = shardproof.verify(one, many, relations=stated, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok
