"""Verdicts do not depend on how many positions stand for an interval of an axis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.checker import check
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.frontends.zoo import build
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import partition
from shardproof.solvers import Portfolio, Query
from tests.checker.changes import without_last_reduction
from tests.engine.real_plans import LLAMA, real

#: Small in every axis, so that larger reduced sizes stay cheap.
TINY: dict[str, Any] = {
    "layers": 1,
    "hidden": 8,
    "heads": 2,
    "kv_heads": 2,
    "ffn": 8,
    "vocabulary": 6,
    "sequence": 3,
    "dp": 1,
    "tp": 2,
    "pp": 1,
    "microbatches": 1,
}


def tiny() -> Plan:
    return build("llama3-8b", **TINY)


def divided() -> Plan:
    """Parameters, gradients and the optimizer's state divided over replicas (ZeRO-3)."""
    return build("llama3-8b", **{**TINY, "dp": 2, "tp": 1, "zero": 3})


def experts() -> Plan:
    """A mixture of experts on two ranks."""
    return build("mixtral-8x7b", **{**TINY, "experts": 4, "dp": 2, "ep": 2, "tp": 1})


PLANS: dict[str, Callable[[], Plan]] = {
    "proved": tiny,
    "proved, divided": divided,
    "proved, experts": experts,
    "refuted": lambda: without_last_reduction(tiny()),
    "refuted, experts": lambda: without_last_reduction(experts()),
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Path, Any]]:
    """A run of a plan at a size, once."""
    runs: dict[tuple[str, int], tuple[Path, Any]] = {}

    def verify(name: str, more: int) -> tuple[Path, Any]:
        if (name, more) not in runs:
            folder = tmp_path_factory.mktemp("run")
            store.save(PLANS[name](), folder / "plan")
            run = folder / "run"
            result = shardproof.verify(folder / "plan", out=run, cache=False, shapes=more)
            runs[name, more] = run, result
        return runs[name, more]

    return verify


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("name", PLANS)
def test_a_verdict_is_the_same_at_larger_sizes(
    verified: Callable[[str, int], tuple[Path, Any]], name: str, more: int
) -> None:
    """The verdict and what it is about (how many texts are equal by chance does depend on
    sizes)."""
    result, least = verified(name, more)[1], verified(name, 0)[1]
    assert result.verdict == name.partition(",")[0]
    assert replace(result.counts, templates=0) == replace(least.counts, templates=0)
    assert result.conclusions == least.conclusions
    assert [f.operator for f in result.findings] == [f.operator for f in least.findings]


def test_texts_grow_with_the_sizes() -> None:
    sizes = []
    for more in (0, 1, 2):
        found = partition(tiny(), more)
        sizes.append([len(one.goals) for one in obligations(found)])
    assert len(sizes[0]) == len(sizes[1]) == len(sizes[2])
    assert all(a <= b <= c for a, b, c in zip(*sizes, strict=True))
    assert sum(sizes[0]) < sum(sizes[1]) < sum(sizes[2])


def test_the_checker_states_at_the_sizes_of_the_run(
    verified: Callable[[str, int], tuple[Path, Any]],
) -> None:
    assert check(verified("proved", 1)[0]).problems == ()


@pytest.mark.parametrize("said", [-1, 9, 10**9, "1", True])
def test_sizes_that_are_none_are_refused(
    said: Any, verified: Callable[[str, int], tuple[Path, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(verified("proved", 0)[0], run)
    path = run / "certificate.json"
    certificate = json.loads(path.read_bytes())
    certificate["settings"]["shapes"] = said
    path.write_text(json.dumps(certificate))
    messages = [p.message for p in check(run).problems]
    assert f"the certificate says that the sizes are +{said}" in messages, messages


@pytest.mark.slow
def test_a_run_at_other_sizes_than_it_says_is_rejected(
    verified: Callable[[str, int], tuple[Path, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(verified("proved", 1)[0], run)
    path = run / "certificate.json"
    certificate = json.loads(path.read_bytes())
    certificate["settings"]["shapes"] = 0
    path.write_text(json.dumps(certificate))
    found = check(run)
    assert not found.ok
    assert any("is not the text of template" in p.message for p in found.problems)


def test_options_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"the sizes must be from \+0 to \+8, not \+9"):
        shardproof.verify("nowhere", shapes=9)


@pytest.mark.slow
@pytest.mark.parametrize("more", [1, 2])
def test_claims_of_a_real_plan_hold_at_larger_sizes(shared_plans: Path, more: int) -> None:
    plan, _, _ = real(shared_plans, LLAMA, LLAMA.replace("dp1_pp1_tp1_nm1", "dp2_pp2_tp2_nm2"))
    least, found = partition(plan), partition(plan, more)
    stated = obligations(found)
    assert len(stated) == len(obligations(least))
    assert found.stages == least.stages
    # Two more positions of every axis make texts of a hundred times the size: every tenth is asked.
    asked = stated[:: 1 if more == 1 else 10]
    queries = [Query.of(str(n), t.goals) for n, t in enumerate(asked)]
    with Portfolio(timeout=120) as portfolio:
        assert {s.verdict for s in portfolio.solve_batch(queries).values()} == {"unsat"}
