"""Sums over classes of a one-hot: over part of the classes on every rank, joined by a reduction."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"


def body(classes: int, parts: str, more: str) -> str:
    """x times how many of the classes the id is: 1, or 0 where it is none."""
    return (
        f"ENTRY e {{\n  i = s32[4] parameter(0){parts}\n  x = f32[4] parameter(1){parts}\n"
        f"  q = s32[4,{classes}] broadcast(i), dimensions={{0}}\n"
        f"  k = s32[4,{classes}] iota(), iota_dimension=1\n{more}"
        f"  c = pred[4,{classes}] compare(q, own), direction=EQ\n"
        f"  h = f32[4,{classes}] convert(c)\n  z = f32[] constant(0)\n"
        "  s = f32[4] reduce(h, z), dimensions={1}, to_apply=add\n"
    )


def single() -> str:
    own = "  o = s32[] constant(0)\n  b = s32[4,8] broadcast(o), dimensions={}\n"
    own += "  own = s32[4,8] add(k, b)\n"
    return f"HloModule m\n\n{ADD}\n{body(8, '', own)}  ROOT y = f32[4] multiply(s, x)\n}}\n"


def parallel(reduce: bool) -> str:
    own = (
        "  r = u32[] partition-id()\n  t = s32[] convert(r)\n  f = s32[] constant(4)\n"
        "  o = s32[] multiply(t, f)\n  b = s32[4,4] broadcast(o), dimensions={}\n"
        "  own = s32[4,4] add(k, b)\n"
    )
    total = (
        "  w = f32[4] all-reduce(s), channel_id=1, replica_groups={{0,1}}, "
        "use_global_device_ids=true, to_apply=add\n"
    )
    text = body(4, ", sharding={replicated}", own) + (total if reduce else "")
    name = "w" if reduce else "s"
    head = "HloModule m, num_partitions=2, is_scheduled=false\n\n"
    return f"{head}{ADD}\n{text}  ROOT y = f32[4] multiply({name}, x)\n}}\n"


@pytest.mark.parametrize(("reduces", "expected"), [(True, "proved"), (False, "refuted")])
def test_counts_of_classes_join(tmp_path: Path, reduces: bool, expected: str) -> None:
    one, many = tmp_path / "one.hlo", tmp_path / "many.hlo"
    one.write_text(single())
    many.write_text(parallel(reduces))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok
