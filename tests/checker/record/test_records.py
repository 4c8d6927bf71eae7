"""What was recorded beside a proof: pieces that are updated elsewhere, a planner's own records,
verdicts that came from a cache."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.checker import check
from shardproof.cluster.verdicts.ledger import read
from shardproof.engine.plan.ir import Plan, Shard
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.engine.plan_files import store
from tests.checker.record.test_files import record, recorded
from tests.checker.test_forging import concluded, forged
from tests.checker.test_real_plans import PARALLEL, real_plan
from tests.checker.test_tampering import TAMPERINGS
from tests.engine import small_plans

SMALL: dict[str, Any] = {"hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 20, "vocabulary": 28}


# -- which piece of a gradient a rank updates
# --------------------------------------------------------


@pytest.fixture(scope="module")
def divided(make_parts: Callable[..., Any], make_plan: Callable[..., Plan]) -> Any:
    """Gradients divided over replicas: of every shard a rank updates a half."""
    return make_parts(make_plan(**SMALL, zero=2))


def updated(plan: Plan, change: Callable[[tuple[Shard, ...], int], Shard]) -> Plan:
    """The plan with the first shard changed that is updated as another one."""
    program = plan.programs[0]
    number = next(i for i, s in enumerate(program.shards) if s.updated_as >= 0)
    shards = list(program.shards)
    shards[number] = change(program.shards, number)
    return replace(plan, programs=(replace(program, shards=tuple(shards)), *plan.programs[1:]))


def test_a_divided_run_is_accepted(divided: Any, tmp_path: Path) -> None:
    divided.store(tmp_path)
    assert check(tmp_path).problems == ()


UPDATES: dict[str, Callable[[tuple[Shard, ...], int], Shard]] = {
    "all of it": lambda held, n: replace(held[n], updated_as=-1),
    "itself": lambda held, n: replace(held[n], updated_as=n),
    "another parameter": lambda held, n: replace(held[n], updated_as=held[n].updated_as + 3),
}


@pytest.mark.parametrize("name", UPDATES)
def test_another_piece_that_is_updated_is_rejected(name: str, divided: Any, tmp_path: Path) -> None:
    plan = updated(divided.plan, UPDATES[name])
    assert plan != divided.plan
    divided.copy(plan=plan).store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any("tok_embeddings.weight" in str(p) for p in found.problems), found.problems


# -- what a planner recorded
# -------------------------------------------------------------------------


def test_a_record_is_no_part_of_a_proof_but_of_the_plan(
    shared_plans: Path, tmp_path: Path, make_parts: Callable[..., Any]
) -> None:
    """Another record proves as much; but where the input is read again, it is another plan."""
    plan = real_plan(shared_plans, PARALLEL.format("dp2_pp2_tp2_nm2"), as_recorded=True)
    parts = make_parts(plan)
    other = _with_another_record(plan)
    parts.copy(plan=other).store(tmp_path)
    assert check(tmp_path).ok
    said = [str(problem) for problem in check(tmp_path, plan=plan).problems]
    assert said == [f"input: the plan {plan.name} is not the one of the run"]


def _with_another_record(plan: Plan) -> Plan:
    """The plan with a value of the first ranks recorded as an addend."""
    program = plan.programs[0]
    body = program.bodies[0]
    place = next(i for i, claim in enumerate(body.claims) if claim is not None)
    held = body.claims[place]
    assert held is not None
    changed = RecordedSlice(held.full, held.low, held.high, 1, 2)
    claims = (*body.claims[:place], changed, *body.claims[place + 1 :])
    bodies = (replace(body, claims=claims), *program.bodies[1:])
    return replace(plan, programs=(replace(program, bodies=bodies), *plan.programs[1:]))


# -- verdicts from a cache
# ---------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A run all of whose verdicts came from a cache."""
    store.save(small_plans.replicas(), tmp_path / "plan")
    for name in ("first", "run"):
        result = shardproof.verify(
            tmp_path / "plan", out=tmp_path / name, cache_dir=tmp_path / "cache"
        )
    assert result.counts.cached == result.counts.templates > 0
    return tmp_path / "run"


def test_a_run_from_the_cache_is_accepted(cached: Path) -> None:
    assert all(read(cached / "verdicts.arrows").column("cached").to_pylist())
    assert check(cached).problems == ()


def test_verdicts_of_another_run_from_the_same_cache_are_noticed(
    cached: Path, tmp_path: Path
) -> None:
    store.save(small_plans.row_parallel(), tmp_path / "plan")
    other = tmp_path / "other"
    shardproof.verify(tmp_path / "plan", out=other, cache_dir=tmp_path / "cache")
    shutil.copy(other / "verdicts.arrows", cached)
    said = [str(problem) for problem in check(cached).problems]
    assert any("verdicts.arrows has no verdict on template" in line for line in said), said


def test_a_record_that_says_proved_of_everything_proves_nothing(
    proved: Any, tmp_path: Path
) -> None:
    """As a forged cache leaves it: the texts are asked again, whatever is on record."""
    change, _ = TAMPERINGS["a shifted box"]
    parts = proved.copy()
    change(parts)
    parts = forged(concluded(parts))
    parts.store(tmp_path)
    record(tmp_path, recorded(parts))
    found = check(tmp_path)
    assert not found.ok
    said = [str(problem) for problem in found.problems]
    assert any(re.search(r"^(solver: .* is sat|unproved: )", line) for line in said), said
