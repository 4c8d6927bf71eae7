"""Steps as training scripts have them: GPUs by number, losses that are printed, numbers that Python
reads of tensors; each beside a twin with a mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.printed import require_printed  # noqa: E402

WIDTH, CLASSES, ROWS, RANKS, IGNORED = 4, 3, 4, 2, -1
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "t": sp.tensor((ROWS,), torch.int64, low=IGNORED, high=CLASSES),
}
Step = Callable[[sp.Job], None]


def verify(folder: Path, single: Step, parallel: Step) -> sp.Result:
    options: dict[str, Any] = {"executor": "local", "cache": False, "out": folder / "run"}
    return sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)


def logits(model: nn.Module, x: Any) -> Any:
    return model(x).tanh()


def whole(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = F.mse_loss(logits(model, job.batch["x"]), torch.ones(ROWS, CLASSES))
    loss.backward()
    job.end(loss=loss)


def script(factor: int) -> Step:
    def run(job: sp.Job) -> None:
        dist.init_process_group("nccl")
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.cuda.set_device(rank % torch.cuda.device_count())
        device = torch.device("cuda", rank)
        model = nn.Linear(WIDTH, CLASSES).to(device)
        job.start(model)
        parallel = DistributedDataParallel(model.cuda(), device_ids=[rank])
        x = job.batch["x"].chunk(world)[rank].pin_memory().to(device, non_blocking=True)
        side = torch.cuda.Stream()
        assert isinstance(side, torch.cuda.Stream | None)  # As annotations that are evaluated.
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        assert torch.cuda.Event(enable_timing=True).query()
        with torch.cuda.stream(side), torch.autocast("cuda", dtype=torch.bfloat16):
            target = torch.ones(x.shape[0], CLASSES, device=device, dtype=float).to(float).float()
            loss = F.mse_loss(logits(parallel, x), target.cuda())
        torch.cuda.current_stream().wait_stream(side)
        if not math.isfinite(loss.item()) or torch.isnan(loss):
            raise ValueError(f"loss is {loss.item()}, stopping")
        (loss * factor).backward()
        torch.cuda.synchronize()
        dist.barrier()
        text = f"{loss.item():.4f} {loss:.2f} {sum([loss.item()] * 2) / 2}"
        require_printed(text, "n/a n/a n/a")
        logged = torch.tensor(loss.item(), device=device)
        dist.all_reduce(logged)
        job.end(loss=loss)

    return run


def test_a_script_for_gpus(tmp_path: Path) -> None:
    result = verify(tmp_path, whole, script(1))
    assert result.verdict == "proved", result.reason
    assert any("streams of GPUs" in text for text in result.assumptions)
    assert any("numbers of the step are finite" in text for text in result.assumptions)
    assert verify(tmp_path / "wrong", whole, script(RANKS)).verdict == "refuted"


def test_a_batch_that_is_copied_to_a_gpu_is_not_written_there(tmp_path: Path) -> None:
    """The step changes its copy, and reads the batch again."""

    def step(moved: Callable[[Any], Any]) -> Step:
        def run(job: sp.Job) -> None:
            model = nn.Linear(WIDTH, CLASSES)
            job.start(model)
            own = moved(job.batch["x"])
            own.mul_(2)
            loss = logits(model, own + job.batch["x"]).mean()
            loss.backward()
            job.end(loss=loss)

        return run

    copied = step(lambda x: x.clone())
    for right in (lambda x: x.cuda(), lambda x: x.to("cuda:0")):
        assert verify(tmp_path / str(id(right)), copied, step(right)).verdict == "proved"
    assert verify(tmp_path / "wrong", copied, step(lambda x: x.view_as(x))).verdict == "refuted"


def divided(count_of_all: bool | None) -> Step:
    """The sum of the losses of the labels that count, by how many these are on all ranks, as Python
    reads it; on own rows alone; None: on one device."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = job.batch["x"], job.batch["t"]
        if count_of_all is not None:
            x, t = x.chunk(RANKS)[job.rank], t.chunk(RANKS)[job.rank]
        count = (t != IGNORED).sum()
        if count_of_all:
            dist.all_reduce(count)
        total = F.cross_entropy(model(x), t, ignore_index=IGNORED, reduction="sum")
        loss = total / count.item()
        loss.backward()
        if count_of_all is not None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return run


def test_a_count_that_depends_on_the_batch_and_python_reads(tmp_path: Path) -> None:
    result = verify(tmp_path, divided(None), divided(True))
    assert result.verdict == "proved", result.reason
    assert verify(tmp_path / "wrong", divided(None), divided(False)).verdict == "refuted"


def scaled(change: Callable[[Any, Any], None]) -> Step:
    """What is done to the gradient by a number of it."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES, bias=False)
        job.start(model)
        loss = logits(model, job.batch["x"]).mean()
        loss.backward()
        own = model.weight.grad
        change(own, own.square().sum())
        job.end(loss=loss)

    return run


def by_python(gradient: Any, norm: Any) -> None:
    gradient *= 1 / (norm.item() + 1)  # in place: the parameter's gradient changes


def by_a_tensor(gradient: Any, norm: Any) -> None:
    gradient.mul_(1 / (norm + 1))


def by_nothing(gradient: Any, norm: Any) -> None:
    gradient = gradient * (1 / (norm + 1))


def test_a_number_writes_in_place(tmp_path: Path) -> None:
    assert verify(tmp_path, scaled(by_a_tensor), scaled(by_python)).verdict == "proved"
    wrong = verify(tmp_path / "wrong", scaled(by_nothing), scaled(by_python))
    assert wrong.verdict == "refuted"


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.item() > 1,
        lambda x: float(x) > 1,
        lambda x: math.sqrt(x.item()) > 1,
        lambda x: range((x > 0).sum().item()),
        lambda x: [1, 2][x.long().item()],
        lambda x: bool(x > 0),
    ],
    ids=["compares", "a float", "a function", "counts", "an index", "a flag"],
)
def test_what_depends_on_a_number_is_refused(tmp_path: Path, use: Callable[[Any], object]) -> None:
    step = scaled(lambda _, norm: str(use(norm)))
    result = verify(tmp_path, step, step)
    assert result.verdict == "invalid input"
    assert "that depends on the inputs of the step" in result.reason
    assert Path(__file__).name in result.reason
