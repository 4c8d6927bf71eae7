"""What training scripts do around a step: numbers for logs, checkpoints, questions about GPUs, seeds
of GPUs, batch norm over ranks; each beside a twin with a mistake."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.torch import instructions  # noqa: E402
from shardproof.frontends.torch.conversions import Float  # noqa: E402
from shardproof.frontends.torch.unread import Unread  # noqa: E402
from tests.shardproof.torch.printed import require_printed  # noqa: E402

WIDTH, ROWS, RANKS = 4, 4, 2
BATCH = {"x": sp.tensor((ROWS, WIDTH))}
Step = Callable[[sp.Job], None]


def verify(folder: Path, single: Step, parallel: Step) -> sp.Result:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": folder / "run"}
    return sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)


def logged(loss: Any, folder: Path, rank: int) -> str:
    """What scripts make of a loss for their logs."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    memory = torch.cuda.max_memory_allocated() / 2**20
    texts = [
        "%.3f" % loss.item(),  # noqa: UP031
        "%s: %.2f" % ("loss", float(loss)),  # noqa: UP031
        f"{math.exp(loss.item()):.2f} {round(float(loss), 3)} {np.exp(loss.item())}",
        f"{loss.detach().cpu().numpy()} {np.mean([loss.item()] * 2)}",
        f"{torch.stack([loss, loss]).tolist()} {isinstance(loss.item(), float)}",
        json.dumps({"loss": loss.item()}),
        f"{torch.cuda.get_device_name(0)} {memory:.0f} {start.elapsed_time(end):.0f}",
        f"{float('inf')} {float(3)} {isinstance(1.0, float)}",
    ]
    torch.save({"loss": loss.item()}, folder / f"{rank}.pt")
    return "; ".join(texts)


TEXTS = (
    "n/a; loss: n/a; n/a n/a n/a; n/a n/a; [n/a, n/a] True; "
    '{"loss": "n/a"}; NVIDIA H100 0 0; inf 3.0 True'
)


def step(
    folder: Path, parallel: bool, by: Callable[[Any, Any], Any], times: Callable[[Any], Any]
) -> Step:
    """The loss times a number that Python read of the rows; ``by`` multiplies."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        x = job.batch["x"]
        wrapped: Any = DistributedDataParallel(model) if parallel else model
        own = x.chunk(RANKS)[job.rank] if parallel else x
        loss = by(wrapped(own).tanh().mean(), x.square().sum())
        times(loss).backward()
        if parallel:
            meter = torch.zeros(2, device=torch.cuda.current_device())
            meter[0] += loss.item()
            dist.all_reduce(meter)
            require_printed(logged(loss, folder, job.rank), TEXTS)
        job.end(loss=loss)
        if float(loss) > 1:  # the step is over
            torch.load(folder / "none.pt")

    return run


def test_what_is_logged_and_saved(tmp_path: Path) -> None:
    single = step(tmp_path, False, lambda loss, norm: loss * norm, lambda x: x)
    by_python = step(tmp_path, True, lambda x, n: torch.mul(x, n.item()), lambda x: x)
    result = verify(tmp_path, single, by_python)
    assert result.verdict == "proved", result.reason
    for said in ("is not written", "about its GPUs", "what follows job.end"):
        assert any(said in text for text in result.assumptions)
    assert not list(tmp_path.glob("*.pt"))
    wrong = step(tmp_path, True, lambda x, n: torch.mul(x, float(n)), lambda x: RANKS * x)
    assert verify(tmp_path / "wrong", single, wrong).verdict == "refuted"


def test_functions_that_the_collector_does_not_look_at_are_followed() -> None:
    """Of functions that were there when a run before froze what was there, texts were not."""
    gc.freeze()
    try:
        assert logged in instructions._everything({__file__})
    finally:
        gc.unfreeze()


def test_a_float_stands_for_the_tensor_that_it_was_read_of() -> None:
    number = Unread("train.py:9", torch.tensor(2.0))
    assert Float(number) is number
    assert isinstance(number, Float)
    assert isinstance(1.5, Float)
    assert not isinstance(2, Float)
    assert Float("0.5") == 0.5
    assert type(Float("0.5")) is float
    assert issubclass(float, Float)
    assert {Float: 1}[float] == 1
    assert torch.mul(torch.tensor(3.0), number) == 6
    x = torch.tensor([3.0])
    x *= number
    assert x == 6
    for use in (
        lambda: float(number),  # code that has Python's own
        lambda: number > 1,
        lambda: max(1.0, number),
        lambda: np.array([number]) > 1,
        lambda: math.pow(number, 2),
        lambda: torch.mul(x, round(number)),
        lambda: range(int(number)),
    ):
        with pytest.raises(InvalidInput, match="and does what depends on it"):
            use()


def seeded(seed: Callable[[int], object] | None) -> Step:
    """Dropout of what all ranks have."""

    def run(job: sp.Job) -> None:
        torch.manual_seed(0)
        if seed is not None:
            seed(job.rank)
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        loss = F.dropout(model(job.batch["x"]), 0.1).square().mean()
        loss.backward()
        job.end(loss=loss)

    return run


def test_a_seed_of_gpus_is_one(tmp_path: Path) -> None:
    right = seeded(lambda rank: torch.cuda.manual_seed(1))
    assert verify(tmp_path / "right", seeded(None), right).verdict == "proved"
    wrong = seeded(lambda rank: torch.cuda.manual_seed_all(rank))
    assert verify(tmp_path / "wrong", seeded(None), wrong).verdict == "refuted"


def normalised(parallel: bool, over_ranks: bool = True) -> Step:
    def run(job: sp.Job) -> None:
        model: Any = nn.Sequential(nn.Linear(WIDTH, 3, bias=False), nn.BatchNorm1d(3), nn.ReLU())
        if parallel and over_ranks:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        job.start(model)
        x = job.batch["x"]
        if parallel:
            wrapped = DistributedDataParallel(model.cuda(job.rank), device_ids=[job.rank])
            loss = wrapped(x.chunk(RANKS)[job.rank]).square().mean()
        else:
            loss = model(x).square().mean()
        loss.backward()
        job.end(loss=loss)

    return run


def test_batch_norm_over_ranks(tmp_path: Path) -> None:
    result = verify(tmp_path, normalised(False), normalised(True))
    assert result.verdict == "proved", result.reason
    assert any("SyncBatchNorm's kernels" in text for text in result.assumptions)
    wrong = verify(tmp_path / "wrong", normalised(False), normalised(True, over_ranks=False))
    assert wrong.verdict == "refuted"


def sharded(factor: int) -> Step:
    def run(job: sp.Job) -> None:
        model: Any = nn.Linear(WIDTH, 2).to(torch.cuda.current_device())
        if factor:
            mesh = init_device_mesh("cuda", (RANKS,))
            fully_shard(model, mesh=mesh)
        job.start(model)
        x = job.batch["x"].chunk(RANKS)[job.rank] if factor else job.batch["x"]
        loss = model(x).square().mean()
        (loss * (factor or 1)).backward()
        job.end(loss=loss)

    return run


def test_a_mesh_of_gpus(tmp_path: Path) -> None:
    assert verify(tmp_path, sharded(0), sharded(1)).verdict == "proved"
    assert verify(tmp_path / "wrong", sharded(0), sharded(RANKS)).verdict == "refuted"


def test_the_compiler_of_torch_knows_what_is_replaced(tmp_path: Path) -> None:
    """It has one rule for each function, and reads them when a library asks it for something."""

    def run(job: sp.Job) -> None:
        from torch._dynamo import trace_rules

        assert trace_rules.get_torch_obj_rule_map()
        whole = seeded(None)
        whole(job)

    assert verify(tmp_path, run, run).verdict == "proved"
