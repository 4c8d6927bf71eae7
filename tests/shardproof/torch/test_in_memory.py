"""Collectives take what lies in memory: columns of a matrix are no message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.means import WIDTH, verified  # noqa: E402


def columns(gradient: Any, _: int) -> Any:
    """Half of the columns after the other, where they lie."""
    for part in gradient.chunk(2, 1):
        dist.all_reduce(part)
    return gradient / 2


def copies(gradient: Any, _: int) -> Any:
    for part in gradient.chunk(2, 1):
        copied = part.contiguous()
        dist.all_reduce(copied)
        part.copy_(copied)
    return gradient / 2


def second_rows(gradient: Any, _: int) -> Any:
    dist.all_reduce(gradient[::2])
    dist.all_reduce(gradient[1::2])
    return gradient / 2


def rows(gradient: Any, _: int) -> Any:
    for part in gradient.chunk(2, 0):
        dist.all_reduce(part)
    return gradient / 2


def turned(gradient: Any, _: int) -> Any:
    dist.all_reduce(gradient.t())
    return gradient / 2


def turned_on_one(gradient: Any, rank: int) -> Any:
    """On rank 1 the same numbers lie by columns."""
    own = gradient.clone() if rank == 0 else gradient.t().contiguous().t()
    dist.all_reduce(own)
    return own / 2


def turned_on_all(gradient: Any, _: int) -> Any:
    own = gradient.t().contiguous().t()
    dist.all_reduce(own)
    return own / 2


def sent_by_columns(gradient: Any, rank: int) -> Any:
    """The sum from rank 0, which sends it as it lies there: gloo and NCCL raise an error."""
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient.t().contiguous().t(), 1)
    else:
        dist.recv(gradient, 0)
    return gradient / 2


def received_by_columns(gradient: Any, rank: int) -> Any:
    """The sum from rank 0, by columns on both ranks: gloo and NCCL raise an error."""
    own = gradient.t().contiguous().t()
    dist.reduce(own, 0)
    if rank == 0:
        dist.send(own, 1)
    else:
        dist.recv(own, 0)
    return own / 2


def sent_by_rows(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient, 1)
    else:
        dist.recv(gradient, 0)
    return gradient / 2


def sent_and_received_flat(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient.view(-1), 1)
    else:
        dist.recv(gradient.view(-1), 0)
    return gradient / 2


def exchanged_columns(gradient: Any, _: int) -> Any:
    into = torch.empty(WIDTH, WIDTH)
    dist.all_to_all_single(into, gradient.t())
    return into


def scattered_columns(gradient: Any, rank: int) -> Any:
    into = torch.empty(WIDTH, WIDTH // 2)
    dist.scatter(into, list(gradient.chunk(2, 1)) if rank == 0 else None, 0)
    return gradient


def reduced_columns(gradient: Any, rank: int) -> Any:
    into = torch.empty(WIDTH, WIDTH)
    dist.reduce_scatter(into[:, :2], [part.contiguous() for part in gradient.chunk(2, 1)])
    return gradient


def scattered_sums(gradient: Any, _: int) -> Any:
    """Each rank adds up half of the columns, and all get both."""
    into = torch.empty(WIDTH, WIDTH // 2)
    dist.reduce_scatter(into, list(gradient.chunk(2, 1)))
    both = [torch.empty(WIDTH, WIDTH // 2) for _ in range(2)]
    dist.all_gather(both, into)
    return torch.cat(both, 1) / 2


def turned_sums(gradient: Any, _: int) -> Any:
    """gloo copies such parts as they lie, but for the rank's own."""
    into = torch.empty(WIDTH, WIDTH // 2)
    dist.reduce_scatter(into, [part.t().contiguous().t() for part in gradient.chunk(2, 1)])
    both = [torch.empty(WIDTH, WIDTH // 2) for _ in range(2)]
    dist.all_gather(both, into)
    return torch.cat(both, 1) / 2


def at_its_place(gradient: Any, rank: int) -> Any:
    """Each rank adds up half of the rows, where they lie, and all get both."""
    own = gradient.chunk(2)[rank]
    dist.reduce_scatter_tensor(own, gradient)
    dist.all_gather_into_tensor(gradient, own)
    return gradient / 2


def at_the_place_of_another(gradient: Any, rank: int) -> Any:
    """What arrives for the other rank's rows is written over those that are sent."""
    own, rows = gradient.chunk(2)[rank], torch.zeros(WIDTH, WIDTH)
    dist.reduce_scatter_tensor(own, gradient.clone())
    rows[: WIDTH // 2] = own
    dist.all_gather_into_tensor(rows, rows[: WIDTH // 2])
    return rows / 2


def exchanged_in_place(gradient: Any, _: int) -> Any:
    both = gradient.repeat(2, 1)
    dist.all_to_all_single(both, both)
    return both.view(2, WIDTH, WIDTH).mean(0)


def exchanged(gradient: Any, _: int) -> Any:
    both = torch.empty(2 * WIDTH, WIDTH)
    dist.all_to_all_single(both, gradient.repeat(2, 1))
    return both.view(2, WIDTH, WIDTH).mean(0)


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (copies, "proved"),
        (rows, "proved"),
        (turned, "proved"),
        (turned_on_all, "proved"),
        (turned_on_one, "refuted"),
        (sent_by_rows, "proved"),
        (scattered_sums, "proved"),
        (at_its_place, "proved"),
        (exchanged, "proved"),
        (sent_and_received_flat, "proved"),
    ],
)
def test_what_lies_without_gaps_is_taken_as_it_lies(
    mean: Callable[[Any, int], Any], verdict: str
) -> None:
    """The translation is that of the replay: a memory on one rank by columns is another order."""
    result = verified(mean)
    assert result.verdict == verdict
    assert any("tensors agree with PyTorch" in text for text in result.assumptions)


@pytest.mark.parametrize(
    ("mean", "reason"),
    [
        (columns, "does not lie in one piece"),
        (second_rows, "does not lie in one piece"),
        (exchanged_columns, "not contiguous"),
        (scattered_columns, "does not lie in one piece"),
        (reduced_columns, "does not lie in one piece"),
        (turned_sums, "not contiguous"),
        (sent_by_columns, "not contiguous"),
        (received_by_columns, "not contiguous"),
        (exchanged_in_place, "shares memory with what it reads"),
        (at_the_place_of_another, "shares memory with what it reads"),
    ],
)
def test_what_lies_otherwise_is_refused_by_the_line_of_the_collective(
    mean: Callable[[Any, int], Any], reason: str
) -> None:
    result = verified(mean)
    assert result.verdict == "invalid input"
    assert reason in sp.told(result)
    assert f"({mean.__name__})" in sp.told(result)
