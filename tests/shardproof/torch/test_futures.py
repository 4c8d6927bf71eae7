"""What a collective gives, and callbacks of futures make of it, is there once somebody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.means import verified  # noqa: E402


def halved(gradient: Any) -> Any:
    """The future of the mean over two ranks, in the memory of the gradient."""
    future = dist.all_reduce(gradient, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].div_(2))


def waited(gradient: Any, _: int) -> Any:
    sums = [dist.all_reduce(part, async_op=True) for part in gradient.chunk(2)]
    torch.futures.wait_all([work.get_future() for work in sums])
    over = all(work.is_completed() and work.is_success() for work in sums)
    return gradient / (2 if over else 1)


def unfinished(gradient: Any, _: int) -> Any:
    """It takes what has been waited for to be still under way."""
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    return gradient / 2 if not work.is_completed() else gradient


def polled(gradient: Any, _: int) -> Any:
    work = dist.all_reduce(gradient, async_op=True)
    while not work.is_completed():
        pass
    return gradient / 2


def collected(gradient: Any, _: int) -> Any:
    torch.futures.collect_all([halved(part) for part in gradient.chunk(2)]).wait()
    return gradient * 1


def forgotten(gradient: Any, _: int) -> Any:
    for part in gradient.chunk(2):
        halved(part)
    return gradient * 1


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (waited, "proved"),
        (collected, "proved"),
        (forgotten, "refuted"),
        (unfinished, "refuted"),
        (polled, "invalid input"),
    ],
)
def test_callbacks_are_waited_for(mean: Callable[[Any, int], Any], verdict: str) -> None:
    result = verified(mean)
    assert result.verdict == verdict, sp.told(result)
    if mean is forgotten:
        assert result.findings[0].kind == "read before wait"
