"""DDP whose loss leaves parameters out reduces no bucket that they are in, and says which these
are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
DistributedDataParallel = pytest.importorskip("torch.nn.parallel").DistributedDataParallel

import shardproof.torch as sp  # noqa: E402
from shardproof.report.tries import about_steps  # noqa: E402

BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 2))}


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """An encoder with a pooler that its loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.pooler = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def single(job: sp.Job) -> None:
    model = Encoder()
    job.start(model)
    loss = (model(job.batch["x"]) - job.batch["y"]).square().mean()
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job, frozen: bool = False, **options: Any) -> None:
    inner = Encoder()
    inner.pooler.requires_grad_(not frozen)
    model = DistributedDataParallel(inner, **options)
    job.start(model)
    x, y = (job.batch[name].chunk(2)[job.rank] for name in ("x", "y"))
    loss = (model(x) - y).square().mean()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize(
    "options", [{"find_unused_parameters": True}, {"static_graph": True}, {"frozen": True}]
)
def test_ddp_that_knows_what_takes_no_part_is_proved(
    options: dict[str, bool], tmp_path: Path
) -> None:
    def step(job: sp.Job) -> None:
        parallel(job, **options)

    result = sp.verify(single, step, world_size=2, batch=BATCH, cache=False, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    assert not any("waits for" in text for text in result.assumptions)


def test_ddp_that_waits_for_gradients_is_refuted_and_told_why(tmp_path: Path) -> None:
    result = sp.verify(
        single, parallel, world_size=2, batch=BATCH, cache=False, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)
    assert any("pooler.0.weight" in text for text in result.assumptions), result.assumptions
    (told,) = about_steps(result.verdict, result.assumptions)
    assert "pooler.0.weight, pooler.0.bias, pooler.1.weight and 1 more got no gradient" in told
    assert "find_unused_parameters=True" in sp.told(result)
