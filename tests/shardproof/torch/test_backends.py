"""Which backend a process group has is what the program named, where it asks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch.backends import UNNAMED  # noqa: E402
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
