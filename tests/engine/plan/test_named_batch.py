"""A plan with a named batch is the same plan: the rank-by-rank runtime ends with the same values,
and `check` of a proof about it reads the input files' plan in the same way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.random_programs.programs import make
from shardproof import api
from shardproof import save as store
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.named_batch import named_batch
from shardproof.engine.plan.unrolled import written_out
from shardproof.engine.plan_files import wellformed
from shardproof.engine.reference_runtime.compare import worst
from shardproof.run.options import Options
from tests.faults.plans import edit_op, llama, verify

#: Seeds whose ranks hold different values along dp, and where microbatches share a body besides.
UNLIKE = 1100054
UNLIKE_MICROBATCHES = 1100141
#: The loss is a sum of softmaxes, its gradient zero but for rounding: no relative error is any.
ZERO = 6026


@pytest.mark.parametrize("mistake", [-1, 0, 1])
def test_the_runtime_ends_with_the_same_values(mistake: int) -> None:
    compared, microbatches = 0, set()
    for seed in range(6000, 6040):
        made = make(seed, mistake)
        named = None if made is None else named_batch(made.plan)
        if made is None or named is None or seed == ZERO:
            continue
        compared += 1
        microbatches.add((made.plan.microbatches, made.plan.loss))
        wellformed.check(named)
        before, after = (worst(plan, 1)[0] > 1e-6 for plan in (made.plan, named))
        assert before == after, seed
        out = written_out(named)
        assert out is None or (worst(out, 1)[0] > 1e-6) == before, seed
    assert compared >= 10
    assert {(1, "mean"), (1, "sum"), (2, "mean"), (2, "sum")} <= microbatches


@pytest.mark.parametrize(
    ("dp", "pp", "microbatches"), [(2, 2, 2), pytest.param(1, 2, 4, marks=pytest.mark.slow)]
)
def test_replicas_and_stages_of_a_pipeline(dp: int, pp: int, microbatches: int) -> None:
    """A stage that loads nothing keeps one body for all microbatches."""
    named = named_batch(llama(dp=dp, pp=pp, microbatches=microbatches, layers=2))
    assert named is not None
    assert named.microbatches == 1
    wellformed.check(named)
    assert verify(named).verdict == "proved"


def test_a_wrong_scale_stays_wrong() -> None:
    plan = llama(dp=2, layers=1)
    twice = edit_op(plan, "silu", lambda op: replace(op, name="mul", attrs={"other": Fraction(2)}))
    for wrong in (plan, twice):
        named = named_batch(wrong)
        assert named is not None
        assert verify(named).verdict == ("proved" if wrong is plan else "refuted")


@pytest.mark.parametrize(
    "seed", [UNLIKE, pytest.param(UNLIKE_MICROBATCHES, marks=pytest.mark.slow)]
)
def test_a_proof_with_a_named_batch_is_checked_against_the_input(seed: int, tmp_path: Path) -> None:
    made = make(seed)
    assert made is not None
    store(made.plan, tmp_path / "plan")
    result = api.run(tmp_path / "plan", None, Options(executor="local", out=str(tmp_path / "runs")))
    assert result.verdict == "proved", result.reason
    found = api.check(Path(result.run_dir), ())
    assert found.ok, found.problems
    assert found.compared
    assert _refused_when_changed(made.plan, tmp_path, Path(result.run_dir))


def _refused_when_changed(plan: Plan, folder: Path, run: Path) -> bool:
    """Whether `check` says no where the input is another plan now."""
    (program,) = plan.programs
    bodies = (replace(program.bodies[0], name="another"), *program.bodies[1:])
    store(replace(plan, programs=(replace(program, bodies=bodies),)), folder / "plan")
    return not api.check(run, ()).ok


def test_one_slice_is_not_divided() -> None:
    assert named_batch(llama(tp=2)) is None
