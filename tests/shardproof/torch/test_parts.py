"""Who says which part of a parameter a rank has, and what a proof rests on then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch import steps


def verify(folder: Path, parallel: Any, **options: Any) -> sp.Result:
    batch, local = steps.SPEC, {"executor": "local", "cache": False}
    out = folder / "run"
    return sp.verify(steps.single, parallel, world_size=2, batch=batch, out=out, **local, **options)


def by_hand(stated: bool = False, frozen: str = "") -> Any:
    """Data parallelism by hand; ``frozen``: a parameter without a gradient on one rank."""

    def step(job: sp.Job) -> None:
        model = steps.MLP()
        names = [name for name, _ in model.named_parameters()]
        job.start(model, parameters={n: sp.same(n) for n in names} if stated else None)
        loss = steps.loss_of(model, *steps.own_batch(job))
        loss.backward()
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None if name == frozen else parameter.grad / job.world_size
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("step", "kind", "strict"),
    [
        (by_hand(), "inferred", "inconclusive"),
        (by_hand(stated=True), "stated", "proved"),
        (steps.ddp, "framework", "proved"),
        (steps.computed, "stated", "proved"),
    ],
    ids=["by name alone", "stated", "DDP", "computed"],
)
def test_a_strict_proof_rests_on_no_name_alone(
    tmp_path: Path, step: Any, kind: str, strict: str
) -> None:
    result = verify(tmp_path, step, strict=True)
    assert result.verdict == strict, sp.told(result)
    own = [a for a in result.assumption_details if a.about == "parameters of ranks"]
    assert [a.kind for a in own] == [kind]
    if strict == "inconclusive":
        assert "all of the parameter of the same name (12 of 12)" in result.reason
        assert "sp.same(name)" in result.reason


def test_a_parameter_without_a_gradient_fails(tmp_path: Path) -> None:
    """``.grad is None`` where the single side has one."""
    result = verify(tmp_path, by_hand(frozen="bias"))
    assert result.verdict == "refuted", sp.told(result)
    assert "bias" in sp.told(result)


def test_a_parameter_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    def step(job: sp.Job) -> None:
        model = nn.Sequential(steps.MLP())
        job.start(model)
        job.end(loss=steps.loss_of(model, *steps.own_batch(job)))

    result = verify(tmp_path, step)
    assert result.verdict == "invalid input"
    assert "nothing says what parameter 0.bias is a part of" in result.reason


def test_experts_that_every_rank_counts_from_0_are_not_proved(tmp_path: Path) -> None:
    """Two experts, one on each rank, both called ``experts.0``: the second is held nowhere."""

    def experts(count: int) -> nn.Module:
        return nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(count))})

    def single(job: sp.Job) -> None:
        model = experts(2)
        job.start(model)
        x, y = job.batch["x"].chunk(2), job.batch["y"]
        out = torch.cat([e(part) for e, part in zip(model["experts"], x, strict=True)])  # type: ignore[arg-type]
        loss = (out - y).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = experts(1)
        job.start(model)
        x, y = steps.own_batch(job)
        loss = (model["experts"][0](x) - y).pow(2).mean()  # type: ignore[index]
        (loss / 2).backward()
        job.end(loss=loss)

    result = sp.verify(
        single,
        parallel,
        world_size=2,
        batch=steps.SPEC,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict in ("refuted", "inconclusive"), sp.told(result)
