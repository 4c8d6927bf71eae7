"""Partitioned programs as XLA writes them: right ones proved, and each wrong twin not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardproof
from shardproof.engine.reference_runtime import compare
from tests.frontends.hlo.test_read import SAMPLES, sample


def verdict(name: str, parallel: str, folder: Path) -> shardproof.Result:
    path = folder / f"{name}.parallel.hlo"
    path.write_text(parallel)
    return shardproof.verify(
        SAMPLES / f"{name}.single.hlo", path, out=folder / "run", cache_dir=folder / "cache"
    )


@pytest.mark.parametrize("name", ["mlp", "fsdp", "block", "language", "ring", "experts"])
def test_what_xla_partitions_is_proved(name: str, tmp_path: Path) -> None:
    result = verdict(name, sample(name, "parallel"), tmp_path)
    assert result.verdict == "proved", result.reason
    assert all(c.holds for c in result.conclusions)


def changed(text: str, old: str, new: str, count: int = 1) -> str:
    """``text`` with a place that is there replaced."""
    found, number = re.subn(old, new, text, count=count)
    assert number, old
    return found


#: What is changed in the parallel text of a sample, which is proved without.
WRONG = {
    "an all-reduce over tp is missing": (
        "block",
        r"all-reduce\((%[\w.]+)\), channel_id=1, .*?to_apply=%[\w.]+",
        r"copy(\1)",
    ),
    "an all-reduce over dp is missing": (
        "mlp",
        r"all-reduce\((%[\w.]+)\), channel_id=\d+, replica_groups=\{\{0,4.*?to_apply=%[\w.]+",
        r"copy(\1)",
    ),
    "an all-reduce along the wrong axis": (
        "block",
        r"replica_groups=\[2,4\]<=\[8\]",
        "replica_groups=[4,2]<=[2,4]T(1,0)",
    ),
    "a mean where there is a sum": (
        "fsdp",
        r"(%constant[\w.]* = f32\[\] constant\()0.03125\)",
        r"\g<1>0.0625)",
    ),
    "another attention scale": ("block", r"(= f32\[\] constant\()2\)", r"\g<1>4)"),
    "the vocabulary one row off": (
        "language",
        r"constant\(\{0, 8, 16, 24, 0, 8, 16, 24\}\)",
        "constant({1, 9, 17, 25, 1, 9, 17, 25})",
    ),
    "another target of a permutation": (
        "ring",
        r"\{\{0,1\},\{1,2\},\{2,3\},\{3,0\}\}",
        "{{0,3},{1,0},{2,1},{3,2}}",
    ),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_twin_is_refuted(why: str, tmp_path: Path) -> None:
    name, old, new = WRONG[why]
    result = verdict(name, changed(sample(name, "parallel"), old, new, 0), tmp_path)
    assert result.verdict == "refuted", (result.verdict, result.reason)


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    text = changed(sample("mlp", "parallel"), r" tanh\(", " popcnt(")
    result = verdict("mlp", text, tmp_path)
    assert result.verdict == "inconclusive"
    assert "popcnt of HLO" in result.reason


def test_another_mask_is_refuted(tmp_path: Path) -> None:
    """A mask that the single side does not hold stands for any numbers; with its own, both
    differ."""
    text = changed(sample("block", "parallel"), "direction=GE", "direction=GT")
    result = verdict("block", text, tmp_path)
    assert result.verdict == "refuted", result.reason


def test_a_missing_line_is_told(tmp_path: Path) -> None:
    text = sample("mlp", "parallel").replace("ROOT ", "ROOT ROOT ")
    result = verdict("mlp", text, tmp_path)
    assert result.verdict == "invalid input"
    assert "line" in result.reason


TABLE = """HloModule one, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

ENTRY main {
  x = f32[4]{0} parameter(0)
  c = f32[4]{0} constant({NUMBERS})
  ROOT y = f32[4]{0} multiply(x, c)
}
"""
RANKS = """HloModule ranks, entry_computation_layout={(f32[2]{0})->f32[2]{0}}, num_partitions=2

ENTRY main {
  x = f32[2]{0} parameter(0), sharding={devices=[2]<=[2]}
  c = f32[2]{0} constant({1, 2})
  ROOT y = f32[2]{0} multiply(x, c)
}
"""


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("numbers", "expected"), [("1, 2, 1, 2", "inconclusive"), ("1, 2, 1, 3", "refuted")]
)
def test_a_table_that_is_right_for_its_numbers_refutes_nothing(
    numbers: str, expected: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has the first half of a table whose halves are the same numbers; ``large``: the
    ranks are too many to be run one by one."""
    if large:
        monkeypatch.setattr(compare, "MOST_STEPS", 0)
    paths = tmp_path / "one.hlo", tmp_path / "ranks.hlo"
    paths[0].write_text(TABLE.replace("NUMBERS", numbers))
    paths[1].write_text(RANKS)
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert any("both sides agree" in a for a in result.assumptions) == (expected != "refuted")
    # A check reads the files again, and comes to the same plan.
    assert not [p for p in shardproof.check(tmp_path / "run").problems if p.kind == "input"]
