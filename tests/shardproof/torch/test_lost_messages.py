"""Messages whose handle nobody keeps: by gloo they may never arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.means import verified  # noqa: E402

KEPT: list[Any] = []


def step(send: Callable[[Any, int], object], factor: float = 0.5) -> Any:
    """Gradients of two ranks, added up by messages."""

    def both(gradient: Any, rank: int) -> Any:
        other = torch.empty_like(gradient)
        send(gradient.clone(), 1 - rank)
        dist.recv(other, 1 - rank)
        return (gradient + other) * factor

    return both


def of_nobody(x: Any, to: int) -> None:
    dist.isend(x, to)


def of_a_list(x: Any, to: int) -> None:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to)])


def by_nccl(x: Any, to: int) -> None:
    dist.init_process_group("nccl")
    dist.isend(x, to)


def kept(x: Any, to: int) -> None:
    KEPT.append(dist.isend(x, to))


def of_a_future(x: Any, to: int) -> None:
    KEPT.append(dist.isend(x, to).get_future())


@pytest.mark.parametrize("send", [of_nobody, of_a_list])
def test_a_handle_that_nobody_keeps_is_refused(send: Callable[[Any, int], object]) -> None:
    result = verified(step(send))
    assert result.verdict == "invalid input"
    assert "nobody keeps its handle" in result.reason
    assert "test_lost_messages.py:" in result.reason


@pytest.mark.parametrize("send", [by_nccl, kept, of_a_future])
@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "proved"), (1.0, "refuted")])
def test_others_arrive(send: Callable[[Any, int], object], factor: float, verdict: str) -> None:
    result = verified(step(send, factor))
    assert result.verdict == verdict, sp.told(result)
