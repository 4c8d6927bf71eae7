"""Checks whose error the step catches are no checks: what it does then is another step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch.nn import functional

import shardproof.torch as sp

BATCH = {name: sp.tensor((2, 4)) for name in ("x", "y")}
LOG = logging.getLogger(__name__)
Change = Callable[[torch.Tensor], torch.Tensor]


def step(change: Change) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        loss = functional.mse_loss(change(model(job.batch["x"])), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return run


def check(h: torch.Tensor) -> None:
    if h.abs().max().item() > 3:
        raise OverflowError("large")


def caught_by_the_caller(h: torch.Tensor) -> torch.Tensor:
    try:
        check(h)
    except OverflowError:
        h = h.clamp(-3, 3)
    return h


def suppressed(h: torch.Tensor) -> torch.Tensor:
    with suppress(AssertionError):
        assert (h.abs() < 3).all()
        return h
    return h.clamp(-3, 3)


class Scale:
    def __init__(self, h: torch.Tensor) -> None:
        self.h = h

    @property
    def scale(self) -> float:
        if self.h.norm() < 1:
            raise AttributeError("scale")
        return 1.0


def read_as_an_attribute(h: torch.Tensor) -> torch.Tensor:
    return h * getattr(Scale(h), "scale", 0.5)


def repaired(h: torch.Tensor) -> bool:
    h.mul_(0.5)
    return True


def mended_in_the_question(h: torch.Tensor) -> torch.Tensor:
    if h.abs().max() > 3 and not repaired(h):
        raise ValueError
    return h


@pytest.mark.parametrize(
    "change",
    [
        *(caught_by_the_caller, suppressed, read_as_an_attribute),
        mended_in_the_question,
    ],
)
def test_a_step_that_goes_on_is_refused(change: Change) -> None:
    result = sp.verify(step(lambda h: h), step(change), world_size=1, batch=BATCH)
    assert result.verdict == "invalid input"
    assert "Python reads the value" in result.reason


def passed_on(h: torch.Tensor) -> torch.Tensor:
    try:
        check(h)
    except OverflowError as error:
        LOG.info("large")
        raise RuntimeError(f"in {__name__}") from error
    finally:
        LOG.info("checked")
    return h


def only_printed(h: torch.Tensor) -> torch.Tensor:
    try:
        check(h)
    except OverflowError as error:
        LOG.info(error)
    return h


def of_what_is_known(h: torch.Tensor, strict: bool = False) -> torch.Tensor:
    if torch.isnan(h).any() and strict:
        raise ValueError
    if (
        h.sum() > 1e6
        or (h < -1e6).any()
    ):  # fmt: skip
        raise ValueError(f"{h.sum().item():.1f}")
    return h


@pytest.mark.parametrize("change", [passed_on, only_printed, of_what_is_known])
@pytest.mark.parametrize(("factor", "verdict"), [(1, "proved"), (2, "refuted")])
def test_what_ends_the_step_is_a_check(change: Change, factor: int, verdict: str) -> None:
    result = sp.verify(
        step(lambda h: h), step(lambda h: change(h) * factor), world_size=1, batch=BATCH
    )
    assert result.verdict == verdict
    assert any("what is checked at" in text for text in result.assumptions)
