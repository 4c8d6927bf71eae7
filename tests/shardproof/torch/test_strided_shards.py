"""DTensors whose local part is several boxes (`_StridedShard`): fused gate and up projections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import shardproof.torch as sp
from shardproof.checker import check
from tests.shardproof.torch.steps import ReduceFrom

WIDTH, INNER, TP = 3, 8, 2
BATCH = {"x": sp.tensor((2, 5, WIDTH))}
HERE: dict[str, Any] = {"executor": "local", "cache": False}
PACKED, ROWS = _StridedShard(1, split_factor=2), Shard(1)


def gated(h: torch.Tensor) -> torch.Tensor:
    """Gate and up projections, one after the other."""
    gate, up = h.chunk(2, dim=-1)
    return F.silu(gate) * up


class Layers(nn.Module):
    """Two layers with weights in one tensor, each a sum over its inner features."""

    def __init__(self, inner: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2, 2 * INNER, WIDTH))
        self.inner = inner

    def forward(self, x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.bmm(x, up.transpose(1, 2))).sum(-1)


def step(
    inner: Callable[[torch.Tensor], torch.Tensor], placement: Any, update: bool = False
) -> Callable[[sp.Job], None]:
    """One device where there is no placement."""

    def run(job: sp.Job) -> None:
        model = Layers(inner)
        if placement is not None:
            mesh = init_device_mesh("cpu", (TP,))
            model.up = nn.Parameter(distribute_tensor(model.up.data, mesh, [placement]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1) if update else None
        job.start(model, optimizer)
        up: Any = model.up
        out = model(job.batch["x"], up if placement is None else up.to_local())
        loss = (out if placement is None else ReduceFrom.apply(out)).pow(2).mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        job.end(loss=loss)

    return run


def verified(one: Any, many: Any, out: Path, **options: Any) -> sp.Result:
    return sp.verify(one, many, world_size=TP, batch=BATCH, **HERE, **options, out=out)


def test_both_halves_of_a_fused_weight_are_divided(tmp_path: Path) -> None:
    one, many = step(gated, None, True), step(gated, PACKED, True)
    result = verified(one, many, tmp_path / "run", validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert {"gradient", "updated parameter", "state"} <= {c.kind for c in result.conclusions}
    assert check(tmp_path / "run").ok


def blocks(h: torch.Tensor) -> torch.Tensor:
    """Half of the gate, with its up projection behind it, and then the other half."""
    return gated(h.unflatten(-1, (TP, 2 * INNER // TP))).flatten(-2)


@pytest.mark.parametrize(
    ("inner", "placement", "verdict"),
    [(gated, ROWS, "refuted"), (blocks, ROWS, "proved"), (blocks, PACKED, "refuted")],
)
def test_another_layout_wants_another_division(
    tmp_path: Path, inner: Any, placement: Any, verdict: str
) -> None:
    result = verified(step(inner, None), step(gated, placement), tmp_path / "run")
    assert result.verdict == verdict, sp.told(result)
