"""Counts of optimizers: states without dimensions, which an update depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import shardproof.torch as sp  # noqa: E402

Make = Callable[..., torch.optim.Optimizer]


def step(parallel: bool, make: Make, more: float = 0.0, **options: Any) -> Callable[[sp.Job], None]:
    """One update; ``more`` is added to every count after it."""

    def one(job: sp.Job) -> None:
        model = nn.Linear(3, 5)
        if parallel:
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = make(model.parameters(), **options)
        job.start(model, optimizer)
        rows = job.batch["x"].chunk(2)[job.rank] if parallel else job.batch["x"]
        loss = model(rows).pow(2).mean()
        loss.backward()
        optimizer.step()
        for state in optimizer.state.values():
            if more:
                state["step"] += more
        job.end(loss=loss)

    return one


def verdict(tmp_path: Path, single: Any, parallel: Any) -> sp.Result:
    return sp.verify(
        single,
        parallel,
        world_size=2,
        batch={"x": sp.tensor((4, 3))},
        validate=True,
        executor="local",
        cache=False,
        out=str(tmp_path / "run"),
    )


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.NAdam])
def test_counts_are_compared(tmp_path: Path, make: Make) -> None:
    right = verdict(tmp_path / "a", step(False, make), step(True, make))
    assert right.verdict == "proved", right
    assert "weight: step" in {c.name for c in right.conclusions if c.kind == "state"}
    assert any("are those of the recorded step" in a for a in right.assumptions)
    wrong = verdict(tmp_path / "b", step(False, make), step(True, make, more=7.0))
    assert wrong.verdict == "refuted", wrong
    assert "weight: step" in {c.name for c in wrong.conclusions if not c.holds}


def test_fused_updates_count_too(tmp_path: Path) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, fused=True)

    result = verdict(tmp_path / "a", step(False, make), step(True, make))
    assert result.verdict in ("proved", "inconclusive"), result
    wrong = verdict(tmp_path / "b", step(False, make), step(True, make, more=1.0))
    assert wrong.verdict != "proved", wrong


def test_momentum_of_a_first_step_is_said_not_to_be_compared(tmp_path: Path) -> None:
    """The first step of SGD is the same for every momentum; a later one is not."""

    def momentum(value: float, earlier: bool) -> Make:
        def make(parameters: Any) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=value)
            for group in optimizer.param_groups if earlier else ():
                for parameter in group["params"]:
                    kept = torch.zeros_like(parameter)
                    optimizer.state[parameter]["momentum_buffer"] = kept
            return optimizer

        return make

    first = verdict(
        tmp_path / "a", step(False, momentum(0.9, False)), step(True, momentum(0.5, False))
    )
    assert first.verdict == "proved", first
    assert any("there before it" in a for a in first.assumptions)
    later = verdict(
        tmp_path / "b", step(False, momentum(0.9, True)), step(True, momentum(0.5, True))
    )
    assert later.verdict == "refuted", later
    right = verdict(
        tmp_path / "c", step(False, momentum(0.9, True)), step(True, momentum(0.9, True))
    )
    assert right.verdict == "proved", right
    assert not any("there before it" in a for a in right.assumptions)
