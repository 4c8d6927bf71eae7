"""The second eye over runs of real plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import convert
from shardproof.frontends.nnscaler.read import read_records

SINGLE = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128.pkl"
PARALLEL = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"


def real_plan(folder: Path, parallel: str, *, as_recorded: bool = False) -> Plan:
    def converted(name: str, **options: Any) -> Any:
        return convert(cells.plan(read_records(str(folder / name))), **options)

    one = converted(SINGLE, single=True)
    many = converted(parallel, single=False, as_recorded=as_recorded)
    single: Program = one.programs[0]
    return Plan(parallel, single, many.programs, many.microbatches, ("dp",), one.loss)


@pytest.mark.parametrize(
    "name",
    [
        "dp2_pp2_tp2_nm2",
        pytest.param("dp16_pp4_tp8_nm8", marks=pytest.mark.slow),
    ],
)
def test_a_run_of_a_real_plan_is_accepted(
    name: str, shared_plans: Path, tmp_path: Path, make_parts: Callable[..., Any]
) -> None:
    plan = real_plan(shared_plans, PARALLEL.format(name), as_recorded=True)
    make_parts(plan).store(tmp_path)
    found = check(tmp_path, plan=plan)
    assert found.problems == ()
    assert found.ok
