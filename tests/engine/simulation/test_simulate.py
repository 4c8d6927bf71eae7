"""The simulator sees what is wrong with a plan, and nothing in its correct twin."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation import true_size
from shardproof.engine.simulation.simulate import Simulation, simulate
from shardproof.engine.specification.gradients import recorded
from shardproof.frontends.zoo import build
from tests.engine.real_plans import LARGE_MOE, LLAMA, MOE, real
from tests.engine.small_plans import gathered, replicas, row_parallel, sides, step

CORRECT = {
    "row parallel": row_parallel(),
    "row parallel, halves exchanged": row_parallel(second=(0, 0)),
    "replicas": replicas(),
    "three replicas": replicas(count=3),
    "replicas of a mean": replicas(loss="mean"),
    "gather": gathered(),
    "gather in stated order": gathered(positions=(0, 1)),
}
WRONG = {
    "a missing all-reduce": row_parallel(reduce=False),
    "shards of one layer exchanged": row_parallel(second=(8, 0)),
    "a wrong scale on one rank": row_parallel(factor=Fraction(1, 2)),
    "replicas without gradient all-reduce": replicas(reduced=False),
    "replicas of a mean without all-reduce": replicas(reduced=False, loss="mean"),
    "a wrong scale on replicas": replicas(factor=Fraction(1, 4)),
    "a gather in another order": gathered(positions=(1, 0)),
}


def run(plan: Plan, **options: int) -> Simulation:
    single, parallel = sides(plan)
    return simulate(plan, recorded(plan, single), parallel, **options)


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("seed", [0, 1])
def test_correct_plans_do_not_differ(name: str, seed: int) -> None:
    found = run(CORRECT[name], seed=seed)
    assert not found.failure
    assert found.comparisons
    assert not found.differs
    assert found.worst is not None
    assert found.worst.error < 1e-12


@pytest.mark.parametrize("name", WRONG)
def test_faults_show(name: str) -> None:
    found = run(WRONG[name])
    assert not found.failure
    assert found.differs
    assert found.worst is not None
    assert found.worst.worst.expected != pytest.approx(found.worst.worst.actual)


def test_a_difference_of_another_plan_is_sought_on_further_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, seeds = row_parallel(), []
    single, parallel = sides(plan)

    def none(*given: object) -> Simulation:
        seeds.append(given[-2])
        return Simulation()

    monkeypatch.setattr(true_size, "_at_true_sizes", none)
    true_size.confirmed(Simulation(seed=2), plan, recorded(plan, single), parallel)
    assert seeds == [2, 6, 10]


def test_a_missing_gradient_all_reduce_leaves_the_loss_right() -> None:
    found = run(replicas(reduced=False))
    assert not any(loss.differs for loss in found.losses)
    assert all(gradient.differs for gradient in found.gradients)
    assert {gradient.name for gradient in found.gradients} == {"w1", "w2"}


def test_equal_slices_count_as_often_as_there_are_ranks() -> None:
    """One replica and one microbatch stand for all, and give a third and half of the gradient."""
    found = run(replicas(reduced=False, count=3), budget=0)
    assert found.expanded == frozenset()
    for gradient in found.gradients:
        np.testing.assert_allclose(gradient.expected, 3 * gradient.actual)


def test_a_second_run_takes_distinct_slices() -> None:
    plan = replicas()
    found = run(plan)
    assert found.expanded == {"dp", "mb"}
    loss = sides(plan)[1].losses[0][-1]
    slices = found.value("parallel", loss)
    assert set(slices) == {(("dp", d), ("mb", m)) for d in range(2) for m in range(2)}
    assert len({float(x.sum()) for x in slices.values()}) == 4


def test_microbatches_that_flow_differently_are_taken_one_by_one() -> None:
    """The second microbatch runs a body of its own: right if it is the same, wrong if it scales."""
    for factor, differs in ((Fraction(1), False), (Fraction(2), True)):
        plan = replicas()
        program = plan.programs[0]
        other = step(rows=3, factor=factor).bodies
        bodies = (*program.bodies, other[0], replace(other[1], forward_body=3))
        calls = (
            *program.calls[:2],
            replace(program.calls[2], body=3),
            replace(program.calls[3], body=4),
            *program.calls[4:],
        )
        changed = replace(plan, programs=(replace(program, bodies=bodies, calls=calls),))
        assert not sides(changed)[1].symbolic
        found = run(changed)
        assert not found.failure
        assert found.differs == differs


def test_a_gradient_that_is_never_computed_is_zero() -> None:
    plan = row_parallel()
    ranks = tuple(
        replace(p, bodies=(p.bodies[0], replace(p.bodies[1], gradients=p.bodies[1].gradients[:1])))
        for p in plan.programs
    )
    found = run(replace(plan, programs=ranks))
    missing = [g for g in found.gradients if g.differs]
    assert {g.name for g in missing} == {"w2"}
    assert all(not g.actual.any() for g in missing)


def test_what_cannot_run_says_so() -> None:
    plan = row_parallel()
    body = plan.programs[0].bodies[0]
    silu = body.ops[2]
    unknown = replace(body, ops=(*body.ops[:2], replace(silu, name="mystery"), *body.ops[3:]))
    program = replace(plan.programs[0], bodies=(unknown, *plan.programs[0].bodies[1:]))
    found = run(replace(plan, programs=(program, plan.programs[1])))
    assert found.failure == "rank 0: mystery: operator mystery is not declared"
    assert not found.impossible
    assert not found.differs


def test_shapes_that_do_not_fit_are_impossible() -> None:
    plan = row_parallel()
    program = plan.programs[0]
    shard = replace(program.shards[1], shape=(8, 4))
    broken = replace(program, shards=(program.shards[0], shard))
    found = run(replace(plan, programs=(broken, plan.programs[1])))
    assert found.impossible
    assert found.failure == "rank 0: linear: linear of [12, 8] with weight [8, 4]"


def test_a_shard_outside_its_parameter_is_impossible() -> None:
    plan = row_parallel()
    shard = replace(plan.programs[1].shards[0], offset=(affine(9), affine(0)))
    program = replace(plan.programs[1], shards=(shard, plan.programs[1].shards[1]))
    found = run(replace(plan, programs=(plan.programs[0], program)))
    assert found.impossible
    assert found.failure == "rank 1: w1: positions 9 to 17 of the 16 of parameter w1"


def test_operands_that_do_not_fit_a_declaration_are_no_exception() -> None:
    plan = row_parallel()
    forward, *rest = plan.programs[0].bodies
    lone = replace(forward.ops[1], inputs=forward.ops[1].inputs[:1])
    body = replace(forward, ops=(forward.ops[0], lone, *forward.ops[2:]))
    program = replace(plan.programs[0], bodies=(body, *rest))
    found = run(replace(plan, programs=(program, plan.programs[1])))
    assert found.failure.startswith("rank 0: linear: operands that its declaration does not fit")
    assert not found.impossible


def test_a_deadlocked_plan_is_impossible() -> None:
    plan = row_parallel()
    program = replace(plan.programs[1], calls=())
    plan = replace(plan, programs=(plan.programs[0], program))
    single = recorded(plan, unroll([plan.single], 1))
    found = simulate(plan, single, unroll(plan.programs, 1))
    assert found.impossible
    assert "is not issued by ranks [1]" in found.failure


def test_another_parameter_shape_is_not_the_same_model() -> None:
    plan = row_parallel()
    ranks = tuple(
        replace(p, shards=(replace(p.shards[0], full_shape=(32, 8)), p.shards[1]))
        for p in plan.programs
    )
    found = run(replace(plan, programs=ranks))
    assert "parameter w1 has full shape [32, 8]" in found.failure
    assert not found.impossible


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2},
        {"dp": 1, "tp": 4, "pp": 2, "microbatches": 4, "sequence_parallel": True},
        {"dp": 4, "tp": 1, "pp": 1, "microbatches": 1},
    ],
)
def test_zoo_plans_do_not_differ(layout: dict[str, int]) -> None:
    plan = build("llama3-8b", layers=2, **layout)
    found = run(plan)
    assert not found.failure
    assert not found.differs


# -- real plans --------------------------------------------------------------------------------


def ran(plan: Plan, single: Unrolled, parallel: Unrolled) -> Simulation:
    return simulate(plan, recorded(plan, single), parallel)


@pytest.mark.parametrize(
    ("single", "parallel"),
    [
        (LLAMA, "llama3_default_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128"),
        (LLAMA, "llama3_default_dp16_pp4_tp1_nm8_gbs512_ly2_h32_hi4096_sq128"),
        (MOE, "moe_default_dp2_pp2_tp2_nm2_gbs1024_ly2_h16_hi512_sq128_a2_r16"),
    ],
)
def test_real_plans_do_not_differ(shared_plans: Path, single: str, parallel: str) -> None:
    found = ran(*real(shared_plans, single, parallel))
    assert not found.failure
    assert not found.differs


@pytest.mark.parametrize(
    ("single", "parallel"),
    [
        (LLAMA, "llama3_default_dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128"),
        (LLAMA, "llama3_default_dp2_pp16_tp2_nm2_gbs512_ly2_h32_hi4096_sq128"),
        (LARGE_MOE, "moe_default_dp16_pp2_tp4_nm16_gbs1024_ly2_h16_hi512_sq128_a6_r64"),
    ],
)
def test_they_differ_where_a_plan_records_what_the_runtime_does_not_do(
    shared_plans: Path, single: str, parallel: str
) -> None:
    """nnScaler's own plans with tp >= 4 and pp > 1: the receivers join parts in another order than
    the senders' ranks have.  With pp 16: a gradient arrives behind an all-reduce."""
    assert ran(*real(shared_plans, single, parallel)).differs
    found = ran(*real(shared_plans, single, parallel, as_recorded=True))
    assert not found.failure
    assert not found.differs


#: Bugs that can be run; the others contradict themselves before anything is computed.
@pytest.mark.parametrize("bug", ["01", "03", "05", "06", "07", "08", "09", "10", "11", "12", "13"])
def test_bugs_differ(shared_plans: Path, bug: str) -> None:
    name = f"bugs/llama3_br{bug}_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128"
    found = ran(*real(shared_plans, LLAMA, name))
    assert not found.failure
    assert found.differs
