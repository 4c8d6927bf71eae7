"""Functions that a step, or a library that it imports, compiles by TorchScript run as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402


def step(divided: bool, mistake: bool = False) -> Callable[[sp.Job], None]:
    """A layer whose loss is compiled where it is used: ``torch.tensor`` is another one meanwhile."""

    def run(job: sp.Job) -> None:
        @torch.jit.script  # type: ignore[untyped-decorator]
        def squared(x: torch.Tensor) -> torch.Tensor:
            return (x * torch.tensor(0.5)).square().mean()

        model = torch.nn.Linear(6, 4)
        job.start(model)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = squared(model(x))
        loss.backward()
        if divided and not mistake:
            for p in model.parameters():
                assert p.grad is not None
                dist.all_reduce(p.grad)
                p.grad /= 2
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("mistake", [False, True])
def test_what_torchscript_compiles_in_a_step_runs_as_it_is(
    mistake: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = {"x": sp.tensor((4, 6))}
    result = sp.verify(step(divided=False), step(True, mistake), world_size=2, batch=batch)
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
