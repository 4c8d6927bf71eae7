"""Ranks written out as programs of their own are the same plan: the rank-by-rank runtime ends with
the same values, and `check` of a proof about them reads the input files' plan in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.random_programs.programs import make
from shardproof import api
from shardproof import save as store
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.unrolled import MOST_PROGRAMS, separable, written_out
from shardproof.engine.plan_files import wellformed
from shardproof.engine.reference_runtime.compare import worst
from shardproof.run.options import Options

#: A seed whose ranks along tp hold different values: its family has no lineage.
UNLIKE = 6012


def plan_of(seed: int, mistake: int = -1) -> Plan:
    made = make(seed, mistake)
    assert made is not None
    return made.plan


@pytest.mark.parametrize("mistake", [-1, 0, 1])
def test_the_runtime_ends_with_the_same_values(mistake: int) -> None:
    compared = 0
    for seed in range(6000, 6030):
        made = make(seed, mistake)
        out = None if made is None else written_out(made.plan)
        if made is None or out is None:
            continue
        compared += 1
        wellformed.check(out)
        assert out.ranks == made.plan.ranks
        ranks = {rank for p in out.programs for rank in _ranks(p.base, p.axes)}
        assert ranks == {rank for p in made.plan.programs for rank in _ranks(p.base, p.axes)}
        before, after = (worst(plan, 1)[0] > 1e-6 for plan in (made.plan, out))
        assert before == after, seed
    assert compared >= 5


def _ranks(base: int, axes: tuple[tuple[str, int, int], ...]) -> list[int]:
    found = [base]
    for _, extent, stride in axes:
        found = [rank + stride * i for rank in found for i in range(extent)]
    return found


def test_a_proof_about_ranks_written_out_is_checked_against_the_input(tmp_path: Path) -> None:
    plan = plan_of(UNLIKE)
    store(plan, tmp_path / "plan")
    result = api.run(tmp_path / "plan", None, Options(executor="local", out=str(tmp_path / "runs")))
    assert result.verdict == "proved", result.reason
    found = api.check(Path(result.run_dir), ())
    assert found.ok, found.problems
    assert found.compared
    (program,) = plan.programs
    other = replace(
        program, bodies=(replace(program.bodies[0], name="another"), *program.bodies[1:])
    )
    store(replace(plan, programs=(other,)), tmp_path / "plan")
    assert not api.check(Path(result.run_dir), ()).ok


def test_what_is_large_or_has_no_such_axes_stays() -> None:
    plan = plan_of(UNLIKE)
    (program,) = plan.programs
    (axis,) = separable(plan)
    wide = tuple((a, MOST_PROGRAMS + 1 if a == axis else n, s) for a, n, s in program.axes)
    assert written_out(replace(plan, programs=(replace(program, axes=wide),))) is None
    narrow = tuple(a for a in program.axes if a[0] != axis)
    assert written_out(replace(plan, programs=(replace(program, axes=narrow),))) is None
