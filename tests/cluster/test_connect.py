"""Joining a cluster that is not there."""

from __future__ import annotations

import time

import pytest
import ray

from cluster.ray_executor import RayExecutor
from cluster.ray_pool import ClusterError
from cluster.settings import Settings


def test_nobody_listening_is_said_at_once() -> None:
    if ray.is_initialized():
        pytest.skip("this process uses a Ray already")
    start = time.perf_counter()
    with pytest.raises(ClusterError, match=r"Ray cannot be used at '127\.0\.0\.1:1': .*refused"):
        RayExecutor(Settings(executor="ray", address="127.0.0.1:1")).__enter__()
    assert time.perf_counter() - start < 5
