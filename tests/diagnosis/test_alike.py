"""Plans whose programs meet alike: the order of one is that of the other, and is not made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.diagnosis.repair.alike import meet_alike
from shardproof.diagnosis.repair.trial import Trials, holds
from shardproof.engine.plan.ir import Body, Call, Group, Op, Program, Value
from shardproof.engine.schedule import unroll as unrolling
from shardproof.engine.schedule.unroll import unroll
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan, otherwise
from shardproof.partition.stages.partition import partition
from tests.faults.plans import llama

LLAMA = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
PAIR = Group((0, 1))
VALUES = tuple(Value((size,), "float32") for size in (4, 4, 4, 2))
OPS = (
    Op("identity", (0,), (1,), {}),
    Op("all_reduce", (1,), (2,), {"group": PAIR}),
    Op("chunk", (2,), (3,), {"group": PAIR, "dim": 0}),
)
BODY = Body("forward", VALUES, OPS, inputs=(0,), outputs=(3,))
PROGRAM = Program("rank 0", (BODY,), (Call(0, (0,), (1,)),))
OTHER = replace(PROGRAM, name="rank 1", base=1)


def with_op(number: int, op: Op) -> Program:
    """The first program with another operator."""
    ops = (*OPS[:number], op, *OPS[number + 1 :])
    return replace(PROGRAM, bodies=(replace(BODY, ops=ops),))


ALIKE: dict[str, Program] = {
    "a copy": replace(PROGRAM, bodies=(replace(BODY, ops=OPS),)),
    "another operator of no group": with_op(0, Op("exp", (0,), (1,), {})),
    "a slice for a chunk": with_op(2, Op("slice", (2,), (3,), {"dim": 0, "start": 0, "size": 2})),
}
UNLIKE: dict[str, Program] = {
    "no all-reduce": with_op(1, Op("identity", (1,), (2,), {})),
    "one more all-reduce": with_op(0, Op("all_reduce", (0,), (1,), {"group": PAIR})),
    "another collective": with_op(1, Op("all_gather", (1,), (2,), {"group": PAIR, "dim": 0})),
    "another group": with_op(1, replace(OPS[1], attrs={"group": Group((0, 1, 2))})),
    "a chunk of another group": with_op(2, replace(OPS[2], attrs={"group": Group(), "dim": 0})),
    "another operand": with_op(1, replace(OPS[1], inputs=(0,))),
    "another rank": replace(PROGRAM, base=2),
    "another axis": replace(PROGRAM, axes=(("dp", 2, 2),)),
    "other slots": replace(PROGRAM, calls=(Call(0, (2,), (1,)),)),
    "another seed": replace(PROGRAM, seeds=((2, 1),)),
    "other shapes": replace(PROGRAM, bodies=(replace(BODY, values=VALUES[::-1]),)),
}


@pytest.mark.parametrize("program", ALIKE.values(), ids=ALIKE)
def test_what_meets_alike(program: Program) -> None:
    assert meet_alike((PROGRAM, OTHER), (program, OTHER))


@pytest.mark.parametrize("program", UNLIKE.values(), ids=UNLIKE)
def test_what_does_not(program: Program) -> None:
    assert not meet_alike((PROGRAM, OTHER), (program, OTHER))


def test_another_number_of_programs() -> None:
    assert not meet_alike((PROGRAM, OTHER), (PROGRAM,))


@pytest.mark.parametrize("position", [0, 2])
def test_where_the_part_of_an_all_gather_comes_from(position: int) -> None:
    gather = Op("all_gather", (1,), (2,), {"group": PAIR, "dim": 0})
    placed = replace(gather, attrs={**gather.attrs, "position": position})
    assert meet_alike((with_op(1, gather), OTHER), (with_op(1, placed), OTHER))


def test_the_order_by_rank_is_that_of_the_records(
    shared_plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shared_plans / LLAMA.format("dp1_pp1_tp1_nm1"), LLAMA.format("dp2_pp4_tp8_nm8")
    plan = load_plan(files[0], shared_plans / files[1], Assumptions())
    recorded = otherwise(plan, Assumptions())
    assert recorded is not None
    result = partition(plan)
    known = result.parallel.unrolled.order
    assert known is not None
    given = unroll(recorded.programs, recorded.microbatches, known)
    assert replace(given, order=None) == replace(
        unroll(recorded.programs, recorded.microbatches), order=None
    )
    monkeypatch.setattr(unrolling, "order", _never)
    trial = Trials(result).trial(recorded)
    assert trial is not None
    assert holds(trial)
    assert not holds(result)


def test_no_order_is_kept_of_a_plan_that_can_be_no_other_one() -> None:
    plan = llama(tp=2)
    assert plan.otherwise is None
    assert partition(plan).parallel.unrolled.order is None


def _never(*_: object) -> None:
    raise AssertionError("the order is made again")
