"""Lists of tensors that are written in place count as written, as on tensors with memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import shardproof.torch as sp
from shardproof.frontends.torch import versions

BATCH = {"x": sp.tensor((2, 4))}
GIVEN: dict[str, Any] = {"executor": "local", "cache": False}


def _step(two: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        loss = two(model(job.batch["x"])).sin().sum()
        loss.backward()
        job.end(loss=loss)

    return step


def _scaled(y: torch.Tensor) -> torch.Tensor:
    """Twice ``y``, as a view that was there before."""
    flat = (y * 1).view(-1)
    torch._foreach_mul_([flat._base], 2)
    return flat


def _kept(y: torch.Tensor) -> torch.Tensor:
    """The exponential, which autograd keeps, is written over."""
    z = y.exp()
    torch._foreach_add_([z], 1)
    return z


def test_the_gradient_of_an_earlier_view_is_that_of_what_was_written() -> None:
    one = _step(_scaled)
    right = sp.verify(_step(lambda y: y * 2), one, world_size=1, batch=BATCH, **GIVEN)
    assert right.verdict == "proved", right.reason
    unscaled = _step(lambda y: y + y.detach())  # the same loss with half the gradient
    wrong = sp.verify(unscaled, one, world_size=1, batch=BATCH, **GIVEN)
    assert wrong.verdict == "refuted", wrong.reason


def test_what_autograd_keeps_and_a_list_writes_over_is_an_error() -> None:
    result = sp.verify(_step(_kept), _step(_kept), world_size=1, batch=BATCH, **GIVEN)
    assert result.verdict == "invalid input"
    assert "modified by an inplace operation" in result.reason


FUSED: dict[str, Any] = {
    **dict.fromkeys(("momentum", "weight_decay", "dampening"), 0.0),
    **dict.fromkeys(("nesterov", "maximize", "is_first_step"), False),
    "lr": 0.1,
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "product": lambda x, y: torch._foreach_mul_([x, y], 2),
    "copy": lambda x, y: torch._foreach_copy_([x], [y]),
    "parts": lambda x, y: torch.split_with_sizes_copy(torch.ones(8, 3), [4, 4], out=[x, y]),
    "fused": lambda x, y: torch._fused_sgd_([x], [y], [], **FUSED),
    "no list": lambda x, y: x.add_(y),
}


class _Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore
        out = func(*args, **(kwargs or {}))
        versions.count(func, args, kwargs or {})
        return out


@pytest.mark.parametrize("name", WRITES)
def test_fake_tensors_count_as_those_with_memory(name: str) -> None:
    def counts() -> tuple[int, int]:
        x, y = torch.ones(4, 3), torch.ones(4, 3)
        WRITES[name](x, y)
        return x._version, y._version

    with FakeTensorMode(), _Counting():
        fake = counts()
    assert fake == counts()
