"""Rows that no proof was found of beside one that is wrong: what is reported is the wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import shardproof.torch as sp
from shardproof.engine.findings import UNDECIDED
from shardproof.run.result import Result

Tensor = torch.Tensor


def step(scale: int, output: Callable[[Tensor], Tensor]) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        z = model(job.batch["x"])
        job.end(loss=z.pow(2).mean() * scale, outputs={"y": output(z)})

    return run


def verified(scale: int, output: Callable[[Tensor], Tensor]) -> Result:
    """Beside the single device's ``sigmoid(-z)``."""
    single = step(1, lambda z: torch.sigmoid(-z))
    return sp.verify(single, step(scale, output), world_size=1, batch={"x": sp.tensor((2, 4))})


def undecided(result: Result) -> list[str]:
    return [c.name for c in result.conclusions if c.message.endswith(UNDECIDED)]


def test_a_wrong_loss_beside_an_output_that_is_right_by_an_unknown_law() -> None:
    result = verified(2, lambda z: 1 - torch.sigmoid(z))
    assert result.verdict == "refuted"
    assert [(f.operator, f.kind) for f in result.findings] == [("loss", "conclusion")]
    assert undecided(result) == ["y"]
    assert "output y is not the single-device output" + UNDECIDED in {
        c.message.removeprefix("rank 0: ") for c in result.conclusions
    }


@pytest.mark.parametrize("scale", [1, 2])
def test_an_output_that_is_wrong_is_what_is_reported(scale: int) -> None:
    result = verified(scale, lambda z: 2 - torch.sigmoid(z))
    assert result.verdict == "refuted"
    assert result.findings[0].operator == "sigmoid"
    assert undecided(result) == []
