"""Which backend a process group has is what the program named, where it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch.backends import MULTIPLIES_FIRST, UNNAMED  # noqa: E402
from tests.shardproof.torch.means import verified  # noqa: E402


def mean(gradient: Any, _: int) -> Any:
    """NCCL's way is another one than that of gloo."""
    unnamed = dist.get_backend()
    dist.init_process_group("nccl")
    group = dist.new_group(backend="gloo")
    dist.all_reduce(gradient)
    named = dist.get_backend(), dist.get_backend(dist.new_group()), dist.get_backend(group)
    return gradient / 2 if (unnamed, *named) == ("gloo", "nccl", "nccl", "gloo") else gradient


def wrong(gradient: Any, _: int) -> Any:
    dist.init_process_group("nccl")
    dist.all_reduce(gradient)
    return gradient if dist.get_backend() == "nccl" else gradient / 2


def test_a_program_is_told_the_backend_that_it_named() -> None:
    right = verified(mean)
    assert right.verdict == "proved", sp.told(right)
    assert UNNAMED in right.assumptions


def test_another_way_of_that_backend_is_refuted() -> None:
    assert verified(wrong).verdict == "refuted"


def half(backend: str | None, factor: float) -> Callable[[Any, int], Any]:
    """The mean of two ranks by a reduction that multiplies first, on a group of ``backend``."""

    def reduced(gradient: Any, _: int) -> Any:
        if backend is not None:
            dist.init_process_group(backend)
        dist.all_reduce(gradient, dist._make_nccl_premul_sum(factor))
        return gradient

    return reduced


def test_a_reduction_that_multiplies_first_is_that_of_nccl() -> None:
    right = verified(half("nccl", 0.5))
    assert right.verdict == "proved", sp.told(right)
    assert MULTIPLIES_FIRST not in right.assumptions
    assert MULTIPLIES_FIRST in verified(half(None, 0.5)).assumptions
    assert verified(half("nccl", 0.25)).verdict == "refuted"
    other = verified(half("gloo", 0.5))
    assert other.verdict == "invalid input"
    assert "PREMUL_SUM" in sp.told(other)


def alone(factor: float, scattered: bool) -> Callable[[Any, int], Any]:
    """A mean that is divided after its all-reduce, in a group of the rank alone."""

    def reduced(gradient: Any, rank: int) -> Any:
        dist.all_reduce(gradient)
        multiplied = dist._make_nccl_premul_sum(factor)
        own = [dist.new_group([other]) for other in range(2)][rank]
        if not scattered:
            dist.all_reduce(gradient, multiplied, group=own)
            return gradient
        result = torch.empty_like(gradient)
        dist.reduce_scatter_tensor(result, gradient, multiplied, group=own)
        return result

    return reduced


@pytest.mark.parametrize("scattered", [False, True])
def test_one_rank_multiplies_too(scattered: bool) -> None:
    """Nothing is added up in a group of one rank; NCCL multiplies there as well."""
    right = verified(alone(0.5, scattered))
    assert right.verdict == "proved", sp.told(right)
    assert verified(alone(1.0, scattered)).verdict == "refuted"
    assert verified(alone(0.25, scattered)).verdict == "refuted"


def monitored(backend: str | None, ranks: int) -> Callable[[Any, int], Any]:
    """The mean of two ranks, of which the first ``ranks`` come to a monitored barrier."""

    def met(gradient: Any, rank: int) -> Any:
        if backend is not None:
            dist.init_process_group(backend)
        dist.all_reduce(gradient)
        if rank < ranks:
            dist.monitored_barrier()
        return gradient / 2

    return met


@pytest.mark.parametrize(
    ("backend", "ranks", "verdict"),
    [(None, 2, "proved"), ("gloo", 1, "refuted"), ("nccl", 2, "invalid input")],
)
def test_a_monitored_barrier_is_a_barrier_of_gloo(
    backend: str | None, ranks: int, verdict: str
) -> None:
    result = verified(monitored(backend, ranks))
    assert result.verdict == verdict, sp.told(result)
