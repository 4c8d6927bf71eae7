"""Errors that a step catches while it is recorded: it would go another way on the cluster."""

from __future__ import annotations

import contextlib
import io
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

#: How often a loss counts, by the loss, the input and the model.
Factor = Callable[[Any, Any, nn.Module], float]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def single(job: sp.Job) -> None:
    own = model()
    job.start(own)
    loss = own(job.batch["x"]).square().mean()
    loss.backward()
    job.end(loss=loss)


def scaled(factor: Factor) -> Callable[[sp.Job], None]:
    """Two ranks, whose losses count as often as the factor says."""

    def parallel(job: sp.Job) -> None:
        own = model()
        job.start(own)
        x = job.batch["x"].chunk(job.world_size)[job.rank]
        loss = own(x).square().mean()
        (loss * factor(loss, x, own)).backward()
        for parameter in own.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= job.world_size
        job.end(loss=loss)

    return parallel


def verified(folder: Path, factor: Factor) -> sp.Result:
    return locally(folder, single, scaled(factor), {"x": sp.tensor((4, 3))})


def caught(read: Factor) -> Factor:
    def factor(*given: Any) -> float:
        with contextlib.suppress(Exception):
            return read(*given)
        return 1.0

    return factor


def returned(loss: Any, *_: Any) -> float:
    factor = 1.0
    try:
        factor = 2.0 if int(loss * 1e9) else 1.0
    finally:
        return factor  # noqa: B012 - which is what is tested: the error is lost


def promised(loss: Any, *_: Any) -> float:
    begun: torch.futures.Future[float] = torch.futures.Future()
    ended = begun.then(lambda _: 2.0 if loss.item() > 0 else 1.0)
    begun.set_result(1.0)
    return 1.0 if ended is not None else 2.0


def beside(loss: Any, *_: Any) -> float:
    seen = [1.0]

    def run() -> None:
        with contextlib.suppress(Exception):
            seen[0] = 2.0 if loss.item() > 0 else 1.0

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]


def reloaded(_: Any, x: Any, own: nn.Module) -> float:
    file = io.BytesIO()
    torch.save(own.state_dict(), file)
    file.seek(0)
    return 2.0 if torch.load(file) else 1.0


def kept(*_: Any) -> float:
    store = dist.TCPStore("localhost", 29500, dist.get_world_size(), dist.get_rank() == 0)
    store.set(f"rank{dist.get_rank()}", "2.0")
    return float(dist.PrefixStore("", store).get("rank0"))


READS = {
    "an item": caught(lambda loss, *_: 2.0 if loss.item() > 0 else 1.0),
    "a flag": caught(lambda _, x, __: 2.0 if (x > 0).any() else 1.0),
    "an equality": caught(lambda _, x, __: 1.0 if torch.equal(x, x + 1) else 2.0),
    "a shape": caught(lambda _, x, __: float(len(torch.nonzero(x)))),
    "a key": caught(lambda loss, *_: {0.0: 2.0}.get(loss.item(), 1.0)),
    "a list": caught(lambda loss, *_: 2.0 if loss.tolist() > 0 else 1.0),
    "returned": returned,
    "a callback": promised,
    "another thread": beside,
    "a file": caught(reloaded),
    "a text": caught(lambda loss, *_: 2.0 if float(f"{loss.item():.3f}") > 1 else 1.0),
    "a formatted text": caught(lambda loss, *_: 2.0 if float("%.3f" % loss.item()) > 1 else 1.0),  # noqa: UP031
    "a store": caught(kept),
}


#: What is answered at first, since rows may be chosen by it: why it is refused in the end.
ANSWERED = {
    "a flag": "Python reads the value of a tensor",
    "a shape": "what the step does depends on how many rows data choose",
}


@pytest.mark.parametrize("name", READS)
def test_what_is_refused_stays_refused(name: str, tmp_path: Path) -> None:
    result = verified(tmp_path, READS[name])
    assert result.verdict == "invalid input", sp.told(result)
    assert ANSWERED.get(name, "the step goes on all the same") in result.reason


@pytest.mark.parametrize(("literal", "expected"), [(False, "invalid input"), (True, "proved")])
def test_a_text_of_another_ranks_number(literal: bool, expected: str, tmp_path: Path) -> None:
    """Rank 0 writes what rank 1 reads."""

    def sent(loss: Any, *_: Any) -> float:
        own = dist.get_rank() == 0
        texts = ["%.3f" % loss.item() if own else ""]  # noqa: UP031
        dist.broadcast_object_list(texts, src=0)
        number = 0.0 if own else float("nan" if literal else texts[0])
        return 2.0 if number > 1 else 1.0

    result = verified(tmp_path, sent)
    assert result.verdict == expected, sp.told(result)


def otherwise_viewed(loss: Any, x: Any, own: nn.Module) -> float:
    try:
        x.t().view(-1)
    except RuntimeError:
        return 1.0
    return 2.0


def logged(loss: Any, x: Any, _: nn.Module) -> float:
    """Texts in another thread and in a store, an array that is read."""
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(f"loss {loss.item():.3f} {{}}".format, loss.shape).result()
    store = dist.FileStore("nowhere", dist.get_world_size())
    store.set("loss", f"{text} {(x > 0).sum().item():,d} {x.numpy().mean():08.2e}")
    return 1.0 if math.isnan(float("nan")) and torch.arange(3).numpy().sum() == 3 else 2.0


@pytest.mark.parametrize("factor", [otherwise_viewed, logged], ids=["PyTorch's own", "a log"])
def test_what_ends_as_on_the_cluster_is_proved(factor: Factor, tmp_path: Path) -> None:
    assert verified(tmp_path, factor).verdict == "proved"
    wrong = verified(tmp_path / "wrong", lambda *given: 2 * factor(*given))
    assert wrong.verdict == "refuted"


@pytest.mark.parametrize("factor", [1, 2])
def test_gradients_that_another_thread_changes(factor: int, tmp_path: Path) -> None:
    def parallel(job: sp.Job) -> None:
        own = model()
        job.start(own)
        loss = own(job.batch["x"].chunk(job.world_size)[job.rank]).square().mean()
        loss.backward()
        gradients = [p.grad for p in own.parameters()]
        with ThreadPoolExecutor(1) as pool:
            pool.map(lambda gradient: gradient.mul_(factor), gradients)
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= job.world_size
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, {"x": sp.tensor((4, 3))})
    assert result.verdict == "invalid input", sp.told(result)
    assert "only the thread that runs the step is recorded" in result.reason
