"""Groups and positions: who takes part, in which order, and which part is whose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Attr, Body, Call, Group, Op, Plan, Program, Value, whole
from shardproof.run.result import Result
from tests.faults.plans import assert_proved, assert_refuted, attrs, edit_op, edit_program, verify
from tests.faults.small import mesh, parts, replicas

# -- a chunk is the rank's position in its group ---------------------------------------------------


def test_chunks_in_group_order_are_proved() -> None:
    assert_proved(parts())
    assert_proved(parts(claimed=(0, 4)))


def test_parts_of_the_other_position_are_refuted() -> None:
    assert_refuted(parts(starts=(4, 0)), kind="mismatch", operator="mul", ranks=(0, 1))


def test_an_index_map_that_contradicts_the_position_is_a_finding_and_no_meaning() -> None:
    """What the rank does is right, what the plan records is not: proved, and said."""
    found = assert_proved(parts(claimed=(4, 0)))
    assert [f.kind for f in found.findings] == ["chunk position"] * 2
    assert {f.ranks for f in found.findings} == {(0,), (1,)}
    assert (found.findings[0].expected, found.findings[0].actual) == ("4", "0")


def test_a_plan_that_relies_on_its_index_maps_is_refuted() -> None:
    """The weights lie as the index maps say, the runtime cuts by rank."""
    found = assert_refuted(parts(starts=(4, 0), claimed=(4, 0)), kind="mismatch", operator="mul")
    assert "chunk position" in {f.kind for f in found.findings}


def test_a_chunk_by_a_rank_outside_its_group_is_refuted() -> None:
    plan = edit_op(parts(), "chunk", attrs(group=Group(ranks=(0,))), program=1)
    assert_refuted(plan, kind="group", operator="chunk", ranks=(1,))


def test_uneven_chunks_are_proved_and_shards_off_by_one_refuted() -> None:
    assert_proved(parts((3, 2), (0, 3), full=5))
    assert_refuted(parts((3, 2), (0, 2), full=5), kind="mismatch", operator="mul", ranks=(1,))
    assert_refuted(parts((2, 3), (0, 2), full=5), kind="shape", ranks=(0, 1))


# -- groups ----------------------------------------------------------------------------------------


def test_a_group_that_its_members_do_not_agree_on_is_refuted() -> None:
    assert_refuted(
        parts(ranks=((0,), (0, 1))),
        kind="unmatched collective",
        operator="all_gather",
        ranks=(0, 1),
    )


def test_a_rank_outside_its_own_group_is_refuted() -> None:
    assert_refuted(parts(ranks=((0, 1), (0,))), kind="group", operator="all_gather", ranks=(1,))


def test_a_group_of_a_rank_that_runs_nothing_is_refuted() -> None:
    assert_refuted(
        parts(ranks=((0, 1, 2), (0, 1, 2))),
        kind="group",
        ranks=(0,),
        says="ranks [2] run no program",
    )


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_members_along_mesh_axes_are_ordered_by_rank_whatever_the_plan_lists_first(
    order: tuple[str, ...],
) -> None:
    assert_proved(mesh(order, {"a": 8, "b": 4}))
    assert_refuted(mesh(order, {"b": 8, "a": 4}), kind="mismatch", operator="all_gather")


def test_a_group_that_names_an_axis_twice_is_refuted() -> None:
    assert_refuted(
        mesh(("a", "a"), {"a": 8, "b": 4}), kind="group", operator="all_gather", ranks=(0,)
    )


def test_programs_laid_out_otherwise_cannot_join() -> None:
    """Rank 1 of a mesh of two would talk to a rank that runs nothing."""
    plan = parts()
    spread = edit_program(plan, 0, lambda p: replace(p, axes=(("dp", 2, 2),)))
    assert_refuted(spread, kind="group", operator="all_gather", says="laid out otherwise")


# -- rooted collectives ----------------------------------------------------------------------------


def broadcast(root: int) -> Plan:
    """Rank 0 computes a frozen layer and gives the result to rank 1."""

    def program(rank: int | None) -> Program:
        values = (Value((2, 4)), Value((4, 4)), Value((2, 4)), Value((2, 4)), Value((1,)))
        group: dict[str, Attr] = {"group": Group(ranks=(0, 1)), "root": root}
        ops = [Op("load_batch", (), (0,))]
        if rank != 1:
            ops.append(Op("linear", (0, 1), (2,)))
        if rank is None:
            ops.append(Op("identity", (2,), (3,)))
        else:
            ops.append(Op("broadcast", (2,) if rank == 0 else (), (3,), group))
        ops.append(Op("sum", (3,), (4,)))
        body = Body("forward", values, tuple(ops), outputs=(4,), shards=((1, 0),), losses=(4,))
        weight = whole("w", (4, 4), trainable=False)
        return Program("rank", (body,), (Call(0, (), (0,), 0),), (weight,), rank or 0)

    return Plan("broadcast", program(None), (program(0), program(1)), 1)


def test_a_broadcast_comes_from_its_root() -> None:
    assert_proved(broadcast(0))
    for root in (1, 5):
        assert_refuted(
            broadcast(root),
            kind="root",
            operator="broadcast",
            ranks=(0, 1),
            says=f"ranks [0] give what is to come from rank {root}",
        )


@pytest.mark.parametrize("kind", ["avg", "min", "prod"])
def test_a_reduction_that_is_no_sum_is_not_taken_for_one(kind: str) -> None:
    plan = replicas()
    assert_proved(plan)
    found: Result = verify(edit_op(plan, "all_reduce", attrs(op=kind), body="reducer"))
    assert found.verdict == "inconclusive"
    assert found.findings[0].kind == "unsupported operator"
    assert found.findings[0].operator == "all_reduce"
    assert kind in found.reason


# -- shards are affine in the coordinates ----------------------------------------------------------


def test_a_shard_that_does_not_move_with_its_coordinate_is_refuted() -> None:
    """Every member of the family but one holds the wrong rows."""
    plan = mesh(("a", "b"), {"a": 8, "b": 4})
    still = edit_program(
        plan,
        0,
        lambda p: replace(
            p,
            shards=(
                replace(p.shards[0], offset=(affine(0, {"a": 8}), affine(0))),
                *p.shards[1:],
            ),
        ),
    )
    assert_refuted(still, kind="mismatch", operator="all_gather")
