"""Joining a cluster that is not there."""

from __future__ import annotations

import time

import pytest
import ray

from cluster.ray_executor import RayExecutor
from cluster.ray_pool import ClusterError, NoClusterThere, connect
from cluster.settings import Settings
from engine.errors import InvalidInput


def test_nobody_listening_is_said_at_once() -> None:
    if ray.is_initialized():
        pytest.skip("this process uses a Ray already")
    start = time.perf_counter()
    # What the user named is not there: that is no fault of ours, and none of the machine.
    with pytest.raises(NoClusterThere, match=r"Ray cannot be used at '127\.0\.0\.1:1': .*refused"):
        RayExecutor(Settings(executor="ray", address="127.0.0.1:1")).__enter__()
    assert time.perf_counter() - start < 5


def test_a_ray_that_does_not_start_here_is_no_invalid_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if ray.is_initialized():
        pytest.skip("this process uses a Ray already")

    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("no port is free")

    monkeypatch.setattr(ray, "init", fails)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="no port is free") as caught:
        connect(Settings(executor="ray"))
    assert not isinstance(caught.value, InvalidInput)
