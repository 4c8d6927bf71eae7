"""FSDP1: flat shards that begin inside parameters; each way beside a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch.geometry import boxes  # noqa: E402

Step = Callable[[sp.Job], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def finish(job: sp.Job, model: nn.Module, x: torch.Tensor, optimizer: Any, norm: Any) -> None:
    loss = model(x).float().pow(2).mean()
    loss.backward()
    if norm is not None:
        norm(1.0)
    if optimizer is not None:
        optimizer.step()
    job.end(loss=loss)


def alone(adam: bool = False, clipped: bool = False) -> Step:
    def step(job: sp.Job) -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters()) if adam else None
        job.start(model, optimizer)

        def norm(most: float) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)

        finish(job, model, job.batch["x"], optimizer, norm if clipped else None)

    return step


def flat(adam: bool = False, clipped: bool = False, first: bool = False, **given: Any) -> Step:
    """FSDP1 of blocks; ``first``: every rank reads the first rows."""

    def step(job: sp.Job) -> None:
        model = FullyShardedDataParallel(
            Model(),
            device_id=torch.device("cpu"),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            **{k: v() if callable(v) else v for k, v in given.items()},
        )
        optimizer = torch.optim.AdamW(model.parameters()) if adam else None
        job.start(model, optimizer)
        rows = job.batch["x"].chunk(job.world_size)[0 if first else job.rank]
        finish(job, model, rows, optimizer, model.clip_grad_norm_ if clipped else None)

    return step


def verdict(tmp_path: Path, single: Step, parallel: Step, world: int = 2) -> sp.Result:
    return sp.verify(
        single,
        parallel,
        world_size=world,
        batch={"x": sp.tensor((12, 3))},
        validate=True,
        executor="local",
        cache=False,
        out=str(tmp_path / "run"),
    )


def groups() -> tuple[Any, Any]:
    """Shards in pairs of ranks, replicas across these."""
    rank = dist.get_rank()
    shards = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    return shards, [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]


HYBRID = {"process_group": groups, "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
LOW = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "a flat parameter": ({}, 2),
    "original parameters": ({"use_orig_params": True}, 2),
    "three ranks, padded": ({}, 3),
    "three ranks, original parameters": ({"use_orig_params": True}, 3),
    "gradients alone": ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, 2),
    "gradients alone, original parameters": (
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "use_orig_params": True},
        2,
    ),
    "nothing is sharded": (
        {"sharding_strategy": ShardingStrategy.NO_SHARD, "use_orig_params": True},
        2,
    ),
    "pairs of ranks": ({**HYBRID, "use_orig_params": True}, 4),
    "bfloat16": ({"mixed_precision": LOW, "use_orig_params": True}, 2),
}


@pytest.mark.parametrize("name", WAYS)
def test_flat_shards_are_proved(tmp_path: Path, name: str) -> None:
    given, world = WAYS[name]
    result = verdict(tmp_path, alone(), flat(**given), world)
    assert result.verdict == "proved", result
    assert any("as FSDP's flat parameters say" in a for a in result.assumptions)
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)


@pytest.mark.parametrize(
    "name", ["original parameters", "pairs of ranks", "gradients alone, original parameters"]
)
def test_the_first_rows_on_every_rank_are_refuted(tmp_path: Path, name: str) -> None:
    given, world = WAYS[name]
    result = verdict(tmp_path, alone(), flat(first=True, **given), world)
    assert result.verdict == "refuted", result


@pytest.mark.parametrize("original", [False, True])
def test_new_parameters_and_states_are_proved(tmp_path: Path, original: bool) -> None:
    result = verdict(tmp_path, alone(adam=True), flat(adam=True, use_orig_params=original))
    assert result.verdict == "proved", result


def test_norms_over_flat_shards_are_proved_and_refuted_where_they_are_missing(
    tmp_path: Path,
) -> None:
    single = alone(adam=True, clipped=True)
    result = verdict(tmp_path / "right", single, flat(adam=True, clipped=True))
    assert result.verdict == "proved", result
    wrong = verdict(tmp_path / "wrong", single, flat(adam=True))
    assert wrong.verdict == "refuted", wrong


def microbatches(wait: bool, scale: float) -> Step:
    def step(job: sp.Job) -> None:
        model = FullyShardedDataParallel(
            Model(), device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({Block})
        )
        job.start(model)
        losses = []
        for number, rows in enumerate(job.batch["x"].chunk(2)[job.rank].chunk(2)):
            with model.no_sync() if wait and number == 0 else nullcontext():
                losses.append(model(rows).pow(2).mean() / 2)
                (losses[-1] * scale).backward()
        job.end(loss=losses)

    return step


@pytest.mark.parametrize("wait", [False, True])
def test_microbatches_are_proved_and_gradients_twice_as_large_refuted(
    tmp_path: Path, wait: bool
) -> None:
    assert verdict(tmp_path / "a", alone(), microbatches(wait, 1.0)).verdict == "proved"
    assert verdict(tmp_path / "b", alone(), microbatches(wait, 2.0)).verdict == "refuted"


def test_boxes_of_an_interval_are_its_entries_in_their_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(int(n) for n in random.integers(1, 5, int(random.integers(0, 4))))
        entries = np.arange(prod(shape)).reshape(shape)
        start, stop = sorted(int(n) for n in random.integers(0, prod(shape) + 1, 2))
        taken: list[int] = []
        for offset, own in boxes(shape, start, stop):
            box = tuple(slice(a, a + n) for a, n in zip(offset, own, strict=True))
            taken += entries[box].flatten().tolist()
        assert taken == list(range(start, stop))
