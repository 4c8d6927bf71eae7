"""Real nnScaler plans beside their single-device plans, unrolled."""

from __future__ import annotations

from pathlib import Path

from shardproof.engine.plan.ir import Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import convert
from shardproof.frontends.nnscaler.read import read_records

LLAMA = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128"
MOE = "moe_default_dp1_pp1_tp1_nm1_gbs1024_ly2_h16_hi512_sq128_a2_r16"
LARGE_MOE = "moe_default_dp1_pp1_tp1_nm1_gbs1024_ly2_h16_hi512_sq128_a6_r64"


def real(
    folder: Path, single: str, parallel: str, *, as_recorded: bool = False
) -> tuple[Plan, Unrolled, Unrolled]:
    one = convert(cells.plan(read_records(folder / f"{single}.pkl")), single=True)
    many = convert(
        cells.plan(read_records(folder / f"{parallel}.pkl")), single=False, as_recorded=as_recorded
    )
    plan = Plan("real", one.programs[0], many.programs, many.microbatches, ("dp",), one.loss)
    return plan, unroll([plan.single], 1), unroll(plan.programs, plan.microbatches)
