"""A fault while a side is read ahead is logged, and changes no verdict."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.partition.stages import single as single_side
from shardproof.partition.stages.partition import partition
from shardproof.run import beforehand
from tests.faults.plans import llama


def failing(*_: object) -> None:
    raise ValueError("a fault of ours")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_fault_there_is_logged_and_decides_nothing(
    right: bool, fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan: Plan = llama(tp=2, microbatches=2)
    plan = plan if right else replace(plan, loss="mean")
    if fails:
        monkeypatch.setattr(single_side, "read_single", failing)
    ahead = beforehand.ReadAhead()
    with caplog.at_level(logging.INFO, logger=beforehand.__name__):
        ahead.begin(plan.single, plan.loss)
    assert ("a fault of ours" in caplog.text) is fails
    single = ahead.take()
    assert (single is None) is fails
    assert ahead.take() is None
    assert all(c.holds for c in partition(plan, ahead=single).conclusions) is right


def test_children_begin_before_what_reads_their_result_is_imported() -> None:
    """It takes longer to import than all that a child needs before it begins."""
    program = (
        "import sys, shardproof.run.beforehand; "
        "print([name for name in sys.modules if name.startswith('shardproof.partition')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
