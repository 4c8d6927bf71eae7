"""The older plans of the artifact: each decided, and the small ones beside the runtime's rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shardproof.engine.plan.ir import Plan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.read import read_records
from shardproof.frontends.nnscaler.records import Tensor
from tests.faults.plans import verify
from tests.frontends import lockstep
from tests.frontends.plan_judge import paired

MLP, LLAMA = "mlp_mgener_{}_gbs16_dim1024_ly{}", "llama3adpt_mgener_{}_gbs64_ly2_h32_hi4096_sq128"
GPT = "gpt_mgener_{}_gbs16_dim1024_ly2_h16_hi1024_sq1024"
ONE = "dp1_pp1_tp1_nm1"

#: Parallel plans with their single-device ones.
SMALL = [
    (MLP.format(ONE, 1), MLP.format("dp1_pp1_tp2_nm1", 1)),
    (MLP.format(ONE, 2), MLP.format("dp1_pp1_tp2_nm1", 2)),
    (MLP.format(ONE, 2), MLP.format("dp1_pp2_tp1_nm2", 2)),
    (MLP.format(ONE, 2), MLP.format("dp2_pp2_tp2_nm2", 2)),
]
LARGER = [
    (LLAMA.format(ONE), LLAMA.format("dp1_pp1_tp2_nm1")),
    (LLAMA.format(ONE), LLAMA.format("dp1_pp2_tp2_nm1")),
]
RANDOM = [
    (GPT.format(ONE), GPT.format("dp1_pp1_tp2_nm1")),
    (GPT.format(ONE), GPT.format("dp2_pp2_tp2_nm2")),
]


def read(folder: Path, name: str) -> cells.Plan:
    return cells.plan(read_records(str(folder / "older" / f"{name}.pkl")))


def both(folder: Path, names: tuple[str, str]) -> Plan:
    return paired(*(read(folder, name) for name in names))


@pytest.mark.parametrize("names", [*SMALL, *LARGER, *RANDOM], ids=lambda names: names[1])
def test_it_is_proved(shared_plans: Path, names: tuple[str, str]) -> None:
    found = verify(both(shared_plans, names))
    assert found.verdict == "proved", found.reason
    # Every rank returns the loss, and no partial loss is taken for one.
    losses = [c for c in found.conclusions if c.kind == "loss"]
    assert losses
    assert all(c.holds for c in losses)


@pytest.mark.parametrize("names", SMALL, ids=lambda names: names[1])
def test_the_runtime_computes_the_same(shared_plans: Path, names: tuple[str, str]) -> None:
    """At full size, on random numbers."""
    one, many = (read(shared_plans, name) for name in names)
    draw = torch.Generator().manual_seed(1)
    full: dict[str, torch.Tensor] = {}
    batch: list[torch.Tensor] = []
    for item in one.sequence(0):
        if isinstance(item, cells.DataOp):
            shapes = [x.shape for x in item.outputs if isinstance(x, Tensor)]
            batch = [torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes]
        for node in item.nodes if isinstance(item, cells.Segment) else ():
            for x in node.inputs:
                if isinstance(x, Tensor) and x.is_attr and x.full.name not in full:
                    shape = x.full.shape
                    full[x.full.name] = torch.randn(shape, generator=draw, dtype=torch.float64)
    microbatches, replicas = many.microbatches or 1, many.ranks // len(many.devices)
    alone = lockstep.run(one, lockstep.Inputs(full, batch))
    inputs = lockstep.Inputs(full, batch, microbatches, microbatches * replicas)
    assert lockstep.difference(alone, lockstep.run(many, inputs), replicas) == ""
