"""A step on one device beside its replicas, whose gradients are reduced rightly or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.distributed as dist

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Step, floats

#: How replicas reduce gradients of their own means, and the verdict on it.
REDUCED = pytest.mark.parametrize(
    ("op", "expected"), [(dist.ReduceOp.AVG, "proved"), (dist.ReduceOp.SUM, "refuted")]
)


def assert_verdict(
    step: Callable[..., Step],
    op: dist.ReduceOp.RedOpType,
    expected: str,
    **shapes: tuple[int, ...],
) -> None:
    """Assert the verdict on ``step(1)`` beside ``step(2, op)``, whose translation is replayed."""
    result = sp.verify(
        step(1),
        step(2, op),
        world_size=2,
        batch=floats(**shapes),
        cache=False,
        executor="local",
        validate=True,
    )
    assert result.verdict == expected, sp.told(result)
