"""A sample of `benchmarks.graphs`, where the peer's graphs lie beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.graphs import run

pytestmark = pytest.mark.skipif(not run.DATA.is_dir(), reason="no graphs of the peer")
SLOW = (
    "bug8",
    "bug8_fixed",
    "wrong bug9: left out, index_put",
    "wrong llama: number, broadcast.86",
    "wrong qwen2: number, masked_fill of the last rank",
)
SAMPLE = (
    "bug6_fixed",
    "wrong bug6: number, mean_half",
    "wrong bug6: left out, add",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_pair_has_its_verdict(tmp_path: Path, name: str) -> None:
    (case,) = [case for case in run.cases() if case.name == name]
    row = run.verify(case, tmp_path)
    assert row["verdict"] == case.expected
    assert row["check"] == ("holds" if case.expected == "proved" else "")
