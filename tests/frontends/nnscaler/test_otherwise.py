"""What is different in a plan as its records have it, against reading it so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.frontends.nnscaler.otherwise import Change, changed, changes_of, line_of
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan, otherwise

LLAMA = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
RECORDED = Assumptions(groups="as recorded")


@pytest.mark.parametrize("degrees", ["dp2_pp2_tp2_nm2", "dp2_pp4_tp8_nm8"])
def test_it_is_what_the_reader_makes_then(shared_plans: Path, degrees: str) -> None:
    files = shared_plans / LLAMA.format("dp1_pp1_tp1_nm1"), shared_plans / LLAMA.format(degrees)
    by_rank, recorded = (load_plan(*files, chosen) for chosen in (Assumptions(), RECORDED))
    assert by_rank.programs != recorded.programs
    assert recorded.otherwise is None
    derived = otherwise(by_rank, Assumptions())
    assert derived is not None
    assert replace(derived, assumed=recorded.assumed) == recorded


def test_changes_pass_through_a_line() -> None:
    changes = (Change(1, 7, 0, {"dim": 2, "start": 1024, "size": 512}),)
    assert changes_of(line_of(changes).rstrip(b"\n")) == changes
    assert changes_of(line_of(None)) is None
    assert changed((), ()) == ()
