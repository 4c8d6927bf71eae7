"""Bugs that were reported of training stacks (`benchmarks.torch.field`), beside fixed twins.

A few of them; `python -m benchmarks.torch.field.run` has all.
"""

from __future__ import annotations

import pytest

import shardproof.torch as sp
from benchmarks.torch.field.cases import BUGS
from benchmarks.torch.field.parts import Bug
from benchmarks.torch.field.run import verdict

#: Those that CI runs.
SAMPLE = ("a bucket is rewritten", "gradients of experts", "a norm computed before")


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(b, id=b.name, marks=[] if b.name.startswith(SAMPLE) else pytest.mark.slow)
        for b in BUGS
    ],
)
def test_bugs_are_refuted_beside_fixed_twins(bug: Bug) -> None:
    fixed, wrong = verdict(bug, wrong=False), verdict(bug, wrong=True)
    assert fixed.verdict == "proved", sp.told(fixed)
    assert wrong.verdict == "refuted", sp.told(wrong)
    assert any("benchmarks/torch/" in f.source for f in wrong.findings)
