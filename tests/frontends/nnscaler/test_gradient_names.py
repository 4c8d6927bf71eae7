"""Whose gradient arrives where an adapter gives its result the name of what it read.

nnScaler generates ``x_7 = identity_allreduce(x_7, ranks)``: the name stands for the result then,
and that is what the segment returns and what autograd starts from.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shardproof.engine.plan.ir import Call, Plan
from shardproof.frontends.nnscaler.assumed import BEFORE_ADAPTER
from shardproof.frontends.nnscaler.uses import rebound
from tests.faults.plans import verify
from tests.frontends.lockstep_runtime import World
from tests.frontends.plan_generator import Plans, plans
from tests.frontends.plan_judge import judged, paired
from tests.frontends.plan_records import viewed

RANKS = (0, 1)
#: Generated plans that have such a segment.
SEEDS = (643, 681)


class IdentityAllreduce(torch.autograd.Function):
    """As the runtime's: what it is given is its result, by another grad_fn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, rank: int) -> Tensor:
        ctx.world, ctx.rank = world, rank
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        parts = ctx.world.meet(ctx.rank, RANKS, "all_reduce", gradients[0])
        return torch.stack(parts).sum(0), None, None


def segment(
    x_1: Tensor, w_2: Tensor, world: World, rank: int, *, twice: bool
) -> tuple[Tensor, Tensor]:
    """What is generated for a value that is used here, behind an adapter, and sent on; ``twice``:
    with a multiref, each reader under a name of its own."""
    x_3 = torch.mul(x_1, 2)
    if twice:
        x_4, x_5 = x_3, x_3
        x_4 = IdentityAllreduce.apply(x_4, world, rank)
        return x_5, torch.nn.functional.linear(x_4, w_2)
    x_3 = IdentityAllreduce.apply(x_3, world, rank)
    return x_3, torch.nn.functional.linear(x_3, w_2)


@pytest.mark.parametrize(("twice", "times"), [(False, 2), (True, 1)])
def test_generated_code_starts_from_what_has_the_name(twice: bool, times: int) -> None:
    draw = torch.Generator().manual_seed(1)
    x, w, sent, used = (torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(4))
    world = World(2)
    found: dict[int, Tensor] = {}

    def run(rank: int) -> None:
        x_1 = x.clone().requires_grad_()
        own = slice(2 * rank, 2 * rank + 2)
        outputs = segment(x_1, w[own], world, rank, twice=twice)
        torch.autograd.backward(outputs, [sent, used[:, own]])
        assert x_1.grad is not None
        found[rank] = x_1.grad
        world.ended(rank, None)

    threads = [threading.Thread(target=run, args=(r,)) for r in RANKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each rank has all of `sent`: behind the all-reduce it counts once for each of them.
    for rank in RANKS:
        torch.testing.assert_close(found[rank], 2 * (times * sent + used @ w))


def read(made: Plans, folder: Path, *, as_recorded: bool) -> Plan:
    one, many = viewed(made.single, folder, "single"), viewed(made.parallel, folder, "parallel")
    return paired(one, many, as_recorded=as_recorded)


@pytest.mark.parametrize("seed", SEEDS)
def test_such_a_plan_is_refuted_by_what_its_code_does(seed: int, tmp_path: Path) -> None:
    made = plans(seed)
    judgement = judged(made, seed, tmp_path)
    assert judgement.different
    assert judgement.verdict == "refuted"
    plan = read(made, tmp_path, as_recorded=False)
    assert "gradient name" in {f.kind for f in plan.recorded}
    assert BEFORE_ADAPTER not in plan.assumed


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_proved_on_the_word_that_records_count(seed: int, tmp_path: Path) -> None:
    plan = read(plans(seed), tmp_path, as_recorded=True)
    assert BEFORE_ADAPTER in plan.assumed
    assert verify(plan).verdict == "proved"


def test_a_wrong_twin_is_refuted_on_that_word_too(tmp_path: Path) -> None:
    made = plans(681)
    prims = [p for each in made.communications for p in each if p.name == "AllReducePrim"]
    assert prims
    for prim in prims:
        prim.name, prim.state["kwargs"] = "IdentityPrim", {}
    assert verify(read(made, tmp_path, as_recorded=True)).verdict == "refuted"


def test_a_real_plan_is_told_of(shared_plans: Path) -> None:
    from shardproof.inputs.assume import Assumptions
    from shardproof.inputs.load import load_plan

    name = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
    files = [shared_plans / name.format(x) for x in ("dp1_pp1_tp1_nm1", "dp2_pp16_tp2_nm2")]
    plan = load_plan(*files, Assumptions())
    (told,) = (f for f in plan.recorded if f.kind == "gradient name")
    assert told.source == "adapter 2773"
    assert told.ranks == (10, 11)
    assert BEFORE_ADAPTER in load_plan(*files, Assumptions("as recorded")).assumed


def test_what_is_written_under_the_name_of_a_loss_gradient_is_read_from_there_on() -> None:
    """A backward segment that gives again what it was given (`mlp tp2` of the older plans)."""
    calls = [Call(0, (25,), (25,)), Call(1, (25, 3), (7,)), Call(2, (7,), (25,)), Call(3, (25,))]
    own = [Call(0, (25,), (26,)), Call(1, (26, 3), (7,)), Call(2, (7,), (26,)), Call(3, (26,))]
    assert rebound(calls, {25}) == tuple(own)
    assert rebound(calls, {3}) == tuple(calls)
