"""Whether the recorded backward of the single side is the derivative of its forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardproof.torch as sp
from shardproof import derivative
from shardproof.checker import check

BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 2))}
Step = Callable[[sp.Job], None]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Halved(Square):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return x * gradient  # wrong


class Floor(torch.autograd.Function):
    """A straight-through estimator, whose backward dispatches nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def step(function: Callable[[torch.Tensor], torch.Tensor], scale: float = 1.0) -> Step:
    """The mean square of ``function`` of a product; backward of the loss times ``scale``."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = (function(model(job.batch["x"])) - job.batch["y"]).pow(2).mean()
        (loss if scale == 1 else loss * scale).backward()
        for parameter in model.parameters() if scale != 1 else ():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        job.end(loss=loss)

    return run


def microbatches(job: sp.Job) -> None:
    model = nn.Linear(3, 2)
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
        losses.append((model(x) - y).pow(2).mean())
        (losses[-1] / 2).backward()
    job.end(loss=losses)


def verify(folder: Path, one: Step, strict: bool = False) -> sp.Result:
    """One side against itself."""
    options: dict[str, Any] = {"executor": "local", "cache": False, "strict": strict}
    return sp.verify(one, one, world_size=1, batch=BATCH, out=folder / "run", **options)


def gated(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(x)
    return Square.apply(x) * gate + x * torch.exp(x).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "one",
    [step(Square.apply), step(gated), step(torch.relu, scale=1024), microbatches],
    ids=["a custom function", "where no gradient goes", "a scaled loss", "microbatches"],
)
def test_right_ones_are_proved(tmp_path: Path, one: Step) -> None:
    """Also by the second eye, and strictly."""
    result = verify(tmp_path, one, strict=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("is the derivative of its forward: proved for 2" in a for a in result.assumptions)
    assert check(tmp_path / "run" / "derivative").ok


@pytest.mark.parametrize("function", [Halved, Floor])
def test_what_differs_is_said_and_needed_by_strict_alone(tmp_path: Path, function: Any) -> None:
    result = verify(tmp_path, step(function.apply))
    assert result.verdict == "proved", sp.told(result)
    (found,) = [f for f in result.findings if f.kind == "not required"]
    assert "the gradient of bias and 1 more differs" in found.message
    assert f"{Path(__file__).name}:" in found.source
    assert found.source.endswith("(backward)")
    assert [a.kind for a in result.assumption_details if a.about == "backward"] == ["user's word"]
    strict = verify(tmp_path / "strict", step(function.apply), strict=True)
    assert strict.verdict == "inconclusive"
    assert "is not the derivative of its forward" in strict.reason


def test_what_has_no_rule_is_not_decided(tmp_path: Path) -> None:
    """A scatter is the derivative of a gather already."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        values, index = x.topk(1, dim=1)
        return Square.apply(torch.zeros_like(x).scatter(1, index, values))  # type: ignore[no-any-return]

    result = verify(tmp_path, step(largest))
    assert result.verdict == "proved", sp.told(result)
    assert any("backward is not decided" in a for a in result.assumptions)


def test_a_large_step_is_not_asked_but_by_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derivative, "MOST_OPERATORS", 3)
    result = verify(tmp_path, step(Square.apply))
    assert any("backward is not asked" in a for a in result.assumptions)
    assert not (tmp_path / "run" / "derivative").exists()


def trained(job: sp.Job) -> None:
    """AdamW reads flat gradients of vectors."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    job.start(model, optimizer)
    loss = (model(job.batch["x"]) - job.batch["y"]).pow(2).mean()
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def test_an_optimizer_takes_no_part_in_backward(tmp_path: Path) -> None:
    result = verify(tmp_path, trained)
    assert any("backward is autograd's own" in a for a in result.assumptions)


def test_autograd_alone_is_not_asked_but_by_strict(tmp_path: Path) -> None:
    result = verify(tmp_path, step(torch.tanh))
    assert any("backward is autograd's own" in a for a in result.assumptions)
    assert not (tmp_path / "run" / "derivative").exists()
    strict = verify(tmp_path / "strict", step(torch.tanh), strict=True)
    assert strict.verdict == "proved", sp.told(strict)
    assert any("derivative of its forward: proved" in a for a in strict.assumptions)
