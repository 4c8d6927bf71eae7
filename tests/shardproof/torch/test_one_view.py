"""Backends count elements of a type: ranks may give a collective unlike shapes, not unlike types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.means import ROWS, WIDTH, verified  # noqa: E402


def flat(x: Any, rank: int) -> Any:
    """Rank 1 sees a vector, rank 0 a matrix."""
    return x.view(-1) if rank else x


def reduced(gradient: Any, rank: int) -> Any:
    dist.all_reduce(flat(gradient, rank))
    return gradient / 2


def reduced_twice(gradient: Any, rank: int) -> Any:
    dist.all_reduce(flat(gradient, rank))
    return gradient


def reduced_to_one(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient.view(2, 8) if rank else gradient, 0)
    dist.broadcast(flat(gradient, rank), 0)
    return gradient / 2


def gathered(gradient: Any, rank: int) -> Any:
    both = torch.empty(2 * ROWS, WIDTH)
    dist.all_gather_into_tensor(both, flat(gradient, rank))
    return both.view(2, ROWS, WIDTH).mean(0)


def gathered_into_vector(gradient: Any, rank: int) -> Any:
    both = flat(torch.empty(2 * ROWS, WIDTH), rank)
    dist.all_gather_into_tensor(both, gradient)
    return both.view(2, ROWS, WIDTH).mean(0)


def scattered(gradient: Any, rank: int) -> Any:
    own, whole = torch.empty(ROWS // 2, WIDTH), torch.empty(ROWS, WIDTH)
    dist.reduce_scatter_tensor(flat(own, rank), flat(gradient, rank))
    dist.all_gather_into_tensor(whole, own)
    return whole / 2


def exchanged(gradient: Any, rank: int) -> Any:
    mine, whole = torch.empty(ROWS, WIDTH), torch.empty(ROWS, WIDTH)
    dist.all_to_all_single(flat(mine, rank), flat(gradient, rank))
    dist.all_gather_into_tensor(whole, mine.view(2, ROWS // 2, WIDTH).mean(0))
    return whole


def sent(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient.view(-1), 1)
    else:
        dist.recv(gradient, 0)
    return gradient / 2


def sent_by_columns(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient.t().contiguous().view(-1), 1)
    else:
        dist.recv(gradient, 0)
    return gradient / 2


def sent_and_turned(gradient: Any, rank: int) -> Any:
    """[2, 8] and [8, 2] are one memory, and no transpose of each other."""
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient.view(2, 8), 1)
    else:
        dist.recv(gradient.view(8, 2), 0)
    return gradient / 2


def exchanged_with_the_other(gradient: Any, rank: int) -> Any:
    """What the other rank has, which rank 1 receives flat."""
    other = torch.empty(ROWS, WIDTH)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, gradient, 1 - rank),
            dist.P2POp(dist.irecv, flat(other, rank), 1 - rank),
        ]
    )
    for work in works:
        work.wait()
    return other


def both_ways(gradient: Any, rank: int) -> Any:
    return (gradient + exchanged_with_the_other(gradient, rank)) / 2


def both_ways_turned(gradient: Any, rank: int) -> Any:
    other = exchanged_with_the_other(gradient, rank)
    return (gradient + (other.t() if rank else other)) / 2


def reduced_together(turned: tuple[bool, bool]) -> Callable[[Any, int], Any]:
    """gloo copies tensors that are reduced together in the order of their dimensions."""

    def mean(gradient: Any, rank: int) -> Any:
        other = gradient.clone()
        with dist._coalescing_manager():
            dist.all_reduce(gradient)
            dist.all_reduce(other.t() if turned[rank] else other.view(2, 2, 4))
        return (gradient + other) / 4

    return mean


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (reduced, "proved"),
        (reduced_twice, "refuted"),
        (reduced_to_one, "proved"),
        (gathered, "proved"),
        (gathered_into_vector, "proved"),
        (scattered, "proved"),
        (exchanged, "proved"),
        (sent, "proved"),
        (sent_by_columns, "refuted"),
        (sent_and_turned, "proved"),
        (both_ways, "proved"),
        (both_ways_turned, "refuted"),
        (reduced_together((False, False)), "proved"),
        (reduced_together((True, True)), "proved"),
        (reduced_together((False, True)), "refuted"),
    ],
)
def test_as_many_elements_are_one_message(mean: Callable[[Any, int], Any], verdict: str) -> None:
    """The translation is that of the replay, which joins what ranks recorded."""
    result = verified(mean)
    assert result.verdict == verdict
    assert any("tensors agree with PyTorch" in text for text in result.assumptions)


def fewer_reduced(gradient: Any, rank: int) -> Any:
    dist.all_reduce(gradient[:2] if rank else gradient)
    return gradient / 2


def fewer_sent(gradient: Any, rank: int) -> Any:
    dist.reduce(gradient, 0)
    if rank == 0:
        dist.send(gradient[:2], 1)
    else:
        dist.recv(gradient, 0)
    return gradient / 2


@pytest.mark.parametrize("mean", [fewer_reduced, fewer_sent])
def test_fewer_elements_are_refuted_and_not_replayed(mean: Callable[[Any, int], Any]) -> None:
    result = verified(mean)
    assert result.verdict == "refuted"
    assert any("translation not replayed" in text for text in result.assumptions), (
        result.assumptions
    )
    assert "[2, 4]" in sp.told(result)


def reduced_in(types: tuple[Any, Any]) -> Callable[[Any, int], Any]:
    def mean(gradient: Any, rank: int) -> Any:
        wide = gradient.to(types[rank])
        dist.all_reduce(wide)
        return wide.float() / 2

    return mean


def sent_as(types: tuple[Any, Any]) -> Callable[[Any, int], Any]:
    def mean(gradient: Any, rank: int) -> Any:
        dist.reduce(gradient, 0)
        wide = gradient.to(types[rank])
        if rank == 0:
            dist.send(wide, 1)
        else:
            dist.recv(wide, 0)
        return wide.float() / 2

    return mean


@pytest.mark.parametrize("mean", [reduced_in, sent_as])
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16])
def test_bytes_of_another_type_are_no_numbers(mean: Callable[..., Any], other: Any) -> None:
    alike, unlike = (
        verified(mean(types)) for types in ((other, other), (torch.float32, torch.float64))
    )
    assert alike.verdict == "proved"
    assert unlike.verdict == "refuted"
    assert "elements of float64 for one and of float32 for the other" in sp.told(unlike)


def no_elements(gradient: Any, rank: int) -> Any:
    """What is empty has no bytes, of whatever type."""
    empty = torch.zeros(0, dtype=torch.int64 if rank else torch.float32)
    dist.all_gather_into_tensor(torch.zeros(0, dtype=empty.dtype), empty)
    return reduced(gradient, rank)


def test_empty_tensors_of_unlike_types_are_not_refuted() -> None:
    result = verified(no_elements)
    assert result.verdict == "inconclusive"
    assert "which has no entries" in result.reason
