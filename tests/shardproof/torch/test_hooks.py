"""DistributedDataParallel with the user's own communication hooks, and with parameters that a step
does not use; each beside a twin that divides by nothing, or by too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

ROWS, RANKS = 4, 2
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "t": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    """``paths`` layers, of which a call uses those that it names (all, if none)."""

    def __init__(self, paths: int = 1) -> None:
        super().__init__()
        self.paths = nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(paths)])

    def forward(self, x: Tensor, *used: int) -> Tensor:
        return torch.stack([self.paths[n](x) for n in used or range(len(self.paths))]).sum(0)


def single(job: sp.Job, paths: int = 1, *used: int) -> None:
    model = Model(paths)
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"], *used), job.batch["t"])
    loss.backward()
    job.end(loss=loss)


def hooked(hook: Any, factor: int = 1) -> Step:
    def run(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        x, t = rows(job, "x", "t")
        loss = F.cross_entropy(parallel(x), t)
        (loss * factor).backward()
        job.end(loss=loss)

    return run


# DDP compares the annotations of hooks themselves, which are text in this file: there are none.
def divided_after(state, bucket):  # type: ignore[no-untyped-def]
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / RANKS)


def divided_before(state, bucket):  # type: ignore[no-untyped-def]
    return dist.all_reduce(bucket.buffer().div_(RANKS), async_op=True).get_future()


def summed(state, bucket):  # type: ignore[no-untyped-def]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future()


HOOKS = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
    divided_after,
    divided_before,
)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_average_are_proved(hook: Any) -> None:
    found = sp.verify(single, hooked(hook), world_size=RANKS, batch=BATCH)
    assert found.verdict == "proved", found
    wrong = sp.verify(single, hooked(hook, 2), world_size=RANKS, batch=BATCH)
    assert wrong.verdict == "refuted"


def test_a_hook_that_does_not_divide_is_refuted() -> None:
    wrong = sp.verify(single, hooked(summed), world_size=RANKS, batch=BATCH)
    assert wrong.verdict == "refuted"


def with_unused(factor: int, *used: int) -> Step:
    """Ranks use the same path, or (``used``) each the one at its place."""

    def run(job: sp.Job) -> None:
        model = Model(2)
        job.start(model)
        parallel = DistributedDataParallel(model, find_unused_parameters=True)
        x, t = rows(job, "x", "t")
        own = used[job.rank] if used else 0
        loss = F.cross_entropy(parallel(x, own), t)
        (loss * factor).backward()
        job.end(loss=loss)

    return run


def one_of_two(job: sp.Job) -> None:
    single(job, 2, 0)


def test_parameters_that_no_rank_uses_have_no_gradient() -> None:
    found = sp.verify(one_of_two, with_unused(1), world_size=RANKS, batch=BATCH)
    assert found.verdict == "proved", found
    assert any("add up before Python reads them" in text for text in found.assumptions)
    assert sp.verify(one_of_two, with_unused(2), world_size=RANKS, batch=BATCH).verdict == "refuted"


def test_ranks_that_use_different_parameters_are_inconclusive() -> None:
    """Each is recorded alone, and cannot know what the other one uses."""
    found = sp.verify(one_of_two, with_unused(1, 0, 1), world_size=RANKS, batch=BATCH)
    assert found.verdict == "inconclusive"
    assert "rank 0 [2, 2, 0, 0], rank 1 [0, 0, 2, 2]" in found.reason


def divided_by_sum(rows_counted: int) -> Step:
    """The sum of losses by a count that ranks add up and Python reads."""

    def run(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        x, t = rows(job, "x", "t")
        count = torch.tensor(rows_counted)
        dist.all_reduce(count)
        loss = F.cross_entropy(model(x), t, reduction="sum") / count.item()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return run


def test_a_count_that_ranks_add_up_and_python_reads() -> None:
    right = sp.verify(single, divided_by_sum(ROWS // RANKS), world_size=RANKS, batch=BATCH)
    assert right.verdict == "proved", right
    wrong = sp.verify(single, divided_by_sum(ROWS), world_size=RANKS, batch=BATCH)
    assert wrong.verdict == "refuted"


def accumulated(*synchronised: bool) -> Step:
    """As many microbatches as flags, behind some of which ranks add their gradients up."""

    def run(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        parallel = DistributedDataParallel(model)
        x, t = (part.chunk(len(synchronised)) for part in rows(job, "x", "t"))
        losses = []
        for at, synchronise in enumerate(synchronised):
            parallel.require_backward_grad_sync = synchronise
            losses.append(F.cross_entropy(parallel(x[at]), t[at]))
            (losses[-1] / len(synchronised)).backward()
        job.end(loss=losses)

    return run


@pytest.mark.parametrize("flags", [(False, True), (True, True)], ids=["the last", "each"])
def test_microbatches_behind_which_gradients_are_added_up(flags: tuple[bool, ...]) -> None:
    found = sp.verify(single, accumulated(*flags), world_size=RANKS, batch=BATCH)
    assert found.verdict == "proved", found


def test_a_last_microbatch_that_no_rank_shares_is_refuted() -> None:
    wrong = sp.verify(single, accumulated(True, False), world_size=RANKS, batch=BATCH)
    assert wrong.verdict == "refuted"
