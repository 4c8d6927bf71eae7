"""What is different in a plan as its records have it, against reading it so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.engine.plan.ir import Program
from shardproof.frontends.nnscaler.otherwise import AsRecorded, Change, changed, packed, unpacked
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan, otherwise

LLAMA = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
RECORDED = Assumptions(groups="as recorded")


@pytest.mark.parametrize("degrees", ["dp2_pp2_tp2_nm2", "dp2_pp4_tp8_nm8", "dp2_pp16_tp2_nm2"])
def test_it_is_what_the_reader_makes_then(shared_plans: Path, degrees: str) -> None:
    files = shared_plans / LLAMA.format("dp1_pp1_tp1_nm1"), shared_plans / LLAMA.format(degrees)
    by_rank, recorded = (load_plan(*files, chosen) for chosen in (Assumptions(), RECORDED))
    assert by_rank.programs != recorded.programs
    assert recorded.otherwise is None
    derived = otherwise(by_rank, Assumptions())
    assert derived is not None
    pairs = [
        (mine, theirs)
        for program, other in zip(derived.programs, recorded.programs, strict=True)
        for mine, theirs in zip(program.bodies, other.bodies, strict=True)
    ]
    # A record that one order of groups has nothing to compare with is not kept for the other.
    for mine, theirs in pairs:
        for claim, known in zip(mine.claims, theirs.claims, strict=True):
            assert claim is None or claim == known
    assert replace(derived, assumed=recorded.assumed, programs=()) == replace(recorded, programs=())
    assert list(map(_bare, derived.programs)) == list(map(_bare, recorded.programs))


def _bare(program: Program) -> Program:
    """A program without its records."""
    return replace(program, bodies=tuple(replace(body, claims=()) for body in program.bodies))


def test_what_is_different_passes_through_bytes() -> None:
    changes = (Change(1, 7, 0, {"dim": 2, "start": 1024, "size": 512}),)
    other = Program("device 1", (), (), base=1)
    for different in (AsRecorded(changes), AsRecorded(changes, (other,)), None):
        assert unpacked(packed(different, 1) + b"rest\n") == (different, b"rest\n")
    assert changed((), AsRecorded(())) == ()
    first = Program("device 0", (), ())
    assert changed((first, replace(other, name="by rank")), AsRecorded((), (other,))) == (
        first,
        other,
    )
