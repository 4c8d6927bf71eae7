"""A constant that is wrong on one rank, in plans that are run at their true sizes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from shardproof.diagnosis.search import Diagnosis
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import Plan
from shardproof.engine.simulation import simulate as simulation
from shardproof.engine.simulation import true_size
from shardproof.engine.simulation.simulate import FAINT, Simulation, simulate, simulate_again
from shardproof.engine.simulation.true_size import TOO_LARGE, confirmed, outright
from shardproof.engine.specification.demands import Demand
from shardproof.partition.stages.partition import partition
from shardproof.run import early, explained, pipeline
from tests.faults.plans import apart_llama, attrs, edit_op, named, verify

LITTLE = Fraction(1, 100_000)


def with_epsilon(epsilon: Fraction) -> Plan:
    """The second of two ranks adds another epsilon in its first norm."""
    return edit_op(apart_llama(), "rms_norm", attrs(eps=epsilon), program=1)


@pytest.mark.parametrize(("times", "wrong"), [(2, True), (1, False)])
def test_an_epsilon_shows_in_the_losses_on_faint_inputs(times: int, wrong: bool) -> None:
    result = partition(with_epsilon(times * LITTLE))
    single, parallel = result.derived, result.parallel.unrolled
    for seed in (0, 1):
        assert not outright(result.plan, single, parallel, seed).differs
    found = outright(result.plan, single, parallel, FAINT)
    assert not found.failure
    assert found.differs == wrong


def sought(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, affordable: Callable[[list[Demand]], bool]
) -> Simulation:
    """A difference in gradients, sought in the plan itself where not everything can be run."""
    result = partition(plan)
    single, parallel = result.derived, result.parallel.unrolled
    smaller = simulate(result.plan, single, parallel)
    assert smaller.differs
    assert not any(c.differs for c in smaller.losses)
    monkeypatch.setattr(true_size, "_affordable", lambda *given: affordable(given[-1]))
    return confirmed(smaller, result.plan, single, parallel)


def test_the_nearest_gradient_is_looked_at_where_all_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = edit_op(apart_llama(), "silu", named("sigmoid"), body="backward")
    itself = sought(wrong, monkeypatch, lambda demands: len({d.expected for d in demands}) == 1)
    assert itself.differs
    assert not itself.fewer
    assert {c.demand.kind for c in itself.comparisons} == {GRADIENT}


@pytest.mark.parametrize("losses", [True, False])
def test_losses_are_looked_at_where_every_gradient_is_too_large(
    losses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    itself = sought(
        with_epsilon(2 * LITTLE),
        monkeypatch,
        lambda demands: losses and {d.kind for d in demands} == {LOSS},
    )
    assert itself.differs == losses
    assert itself.failure == ("" if losses else TOO_LARGE)


@pytest.mark.parametrize(("times", "verdict"), [(2, "refuted"), (1, "proved")])
def test_a_large_plan_with_one_rank_apart_is_decided_at_its_true_size(
    times: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "LARGE", 0)
    monkeypatch.setattr(pipeline, "simulated", lambda *_, **__: pytest.fail("run at small sizes"))
    found = verify(with_epsilon(times * LITTLE))
    assert found.verdict == verdict
    if verdict == "refuted":
        first = found.findings[0]
        assert (first.kind, first.operator, first.ranks) == ("mismatch", "rms_norm", (1,))


def test_a_repair_tells_what_differs_where_a_plan_is_too_large_to_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the repair the plan holds, and the same plan at fewer positions too: its difference
    there is that of the repair."""
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    result = verify(with_epsilon(2 * LITTLE))
    first = result.findings[0]
    assert (result.verdict, result.reason) == ("refuted", explained.SEEN_SMALLER)
    assert (first.kind, first.operator, first.ranks) == ("mismatch", "rms_norm", (1,))
    assert first.repair.startswith("holds with")
    assert verify(with_epsilon(LITTLE)).verdict == "proved"


@pytest.mark.parametrize(
    "again", [Simulation(failure="too large"), Simulation(undefined=True), None], ids=str
)
def test_a_plan_that_differs_at_fewer_positions_with_its_repair_too_is_not_refuted(
    again: Simulation | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs may be that there are fewer positions: where the sides part is told, no more."""
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    monkeypatch.setattr(explained, "simulate_again", lambda fewer, *_: again or fewer)
    result = verify(with_epsilon(2 * LITTLE))
    first = result.findings[0]
    assert result.verdict == "inconclusive"
    assert TOO_LARGE in result.reason
    assert (first.kind, first.operator, first.ranks) == ("where the sides part", "rms_norm", (1,))


def test_what_no_repair_mends_is_not_refuted_where_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(true_size, "_affordable", lambda *_: False)
    monkeypatch.setattr(Diagnosis, "run", lambda *_: False)
    assert verify(with_epsilon(2 * LITTLE)).verdict == "inconclusive"


@pytest.mark.parametrize(("plain", "runs"), [(True, 1), (False, 2)])
def test_for_values_alone_both_sides_are_run_once(
    plain: bool, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a difference is rounding takes further runs, on inputs next to these."""
    result = partition(with_epsilon(2 * LITTLE))
    single, parallel = result.derived, result.parallel.unrolled
    first = simulate(result.plan, single, parallel)
    evaluated, real = [], simulation._evaluated

    def counted(*given: Any, **options: Any) -> Any:
        evaluated.append(given)
        return real(*given, **options)

    monkeypatch.setattr(simulation, "_evaluated", counted)
    again = simulate_again(first, result.plan, single, parallel, plain=plain)
    assert again.differs
    assert len(evaluated) == runs if plain else len(evaluated) >= runs
