"""What leaves the single device's values and comes back to them is not named as a cause: a loss
that is scaled, whose gradients are scaled back, beside a mistake elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.torch.unseen.precision import MASTER
from shardproof import torch as sp


def test_the_cause_is_named_and_not_the_scale_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world, batch = MASTER.world_size, MASTER.batch
    right = sp.verify(MASTER.single, MASTER.right, world_size=world, batch=batch)
    assert right.verdict == "proved", right
    wrong = sp.verify(
        MASTER.single, MASTER.wrong["last bias untouched"], world_size=world, batch=batch
    )
    assert wrong.verdict == "refuted"
    assert wrong.findings[0].layer == "down.bias"
    assert not any("times the single-device" in finding.message for finding in wrong.findings)


def test_a_sum_of_gradients_of_means_is_named_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of a rank's own mean are those of the right program, too: what is wrong is that
    they are added up."""
    monkeypatch.chdir(tmp_path)

    def step(job: sp.Job, ranks: int, op: Any = None) -> None:
        model = torch.nn.Linear(6, 4)
        job.start(model)
        loss = model(job.batch["x"].chunk(ranks)[job.rank]).square().mean()
        loss.backward()
        for parameter in model.parameters() if op is not None else ():
            dist.all_reduce(parameter.grad, op=op)
        job.end(loss=loss)

    def verdict(op: Any) -> sp.Result:
        return sp.verify(
            lambda job: step(job, 1),
            lambda job: step(job, 2, op),
            world_size=2,
            batch={"x": sp.tensor((4, 6))},
        )

    assert verdict(dist.ReduceOp.AVG).verdict == "proved"
    wrong = verdict(dist.ReduceOp.SUM)
    assert wrong.verdict == "refuted"
    assert [finding.operator for finding in wrong.findings] == ["all_reduce"]
    assert "2 times the single-device value" in wrong.findings[0].message
    assert "times 1/2" in wrong.findings[0].repair
