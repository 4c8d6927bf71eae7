"""Classic mistakes in plans written by hand (benchmarks/classic): refuted, placed, named, repaired,
each beside the right program, which is proved."""

from __future__ import annotations

import pytest

from benchmarks.classic.cases import CASES
from benchmarks.classic.run import Judged, judge

#: What CI runs: one of each kind of parallelism, and of each kind of repair.
SAMPLE = (
    "bias-before-all-reduce",
    "shard-of-another-rank",
    "vocabulary-embedding",
    "sum-for-mean",
    "tied-gradient-not-summed",
    "optimizer-offset",
    "context-rotary",
    "experts-back",
)

#: Where the first divergent operator is not the one that an engineer would name.
MISPLACED = {"vocabulary-replicated", "ulysses-back", "context-keys"}

#: What is refuted, but without the cause's name.
UNNAMED = {
    "attention-unmasked",
    "attention-heads",
    "dropout-absent",
    "residual-missing",
    "stage-sends-its-input",
    "stage-skips-its-layer",
    "microbatches-exchanged",
    "context-keys",
}


def assert_held(found: Judged) -> None:
    """What must hold of every case: a twin that is proved, a mistake that is refuted."""
    assert found.right == "proved", found
    assert found.verdict == "refuted", found


@pytest.mark.parametrize("name", SAMPLE)
def test_a_classic_mistake_is_named_and_repaired(name: str) -> None:
    found = judge(CASES[name])
    assert_held(found)
    assert found.placed, found
    assert found.named, found
    assert found.repaired, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in SAMPLE])
def test_every_other_mistake_is_refuted_and_what_is_named_stays_named(name: str) -> None:
    found = judge(CASES[name])
    assert_held(found)
    assert found.placed or name in MISPLACED, found
    assert found.named or name in UNNAMED, found


def test_the_suite_is_as_large_as_it_says() -> None:
    assert CASES.keys() >= {*SAMPLE, *UNNAMED, *MISPLACED}
    assert len(CASES) >= 40
    assert len(CASES.keys() - UNNAMED) >= 36


def test_the_line_of_the_plan_is_in_the_finding() -> None:
    """A plan written by hand names the line that wrote the operator."""
    plan = CASES["epsilon-of-a-norm"].plan(True)
    (op,) = [
        op
        for op in plan.programs[0].bodies[0].ops
        if op.name == "rms_norm" and op.source.module == "norm"
    ]
    file, _, line = op.source.location.rpartition(":")
    assert file.endswith("tensor_parallel.py")
    assert int(line) > 1
