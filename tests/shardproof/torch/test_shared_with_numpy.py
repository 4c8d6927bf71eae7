"""An array that ``Tensor.numpy`` gives is the memory of the tensor, in both directions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402

BATCH = {"x": sp.tensor((4, 4))}
Made = Callable[[torch.Tensor], torch.Tensor]


def known(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(4.0)
    array = table.numpy()
    table.mul_(2)
    return torch.tensor(array * 1.5)


def unknown(x: torch.Tensor) -> torch.Tensor:
    row = x[0] * 1
    array = row.numpy()
    row.add_(1)
    return torch.tensor(array) + 0


def copied(copy: Callable[[np.ndarray], object], late: bool) -> Made:
    """What is copied out of an array that is a tensor's memory, which is written later on, or not."""

    def made(x: torch.Tensor) -> torch.Tensor:
        row = x[0] * 1
        kept = copy(row.numpy())
        if late:
            row.add_(1)
        return torch.tensor(kept) + 0

    return made


def reduced(late: bool) -> Made:
    """A copy of the array of a tensor that is being reduced, made before the wait or after it."""

    def made(x: torch.Tensor) -> torch.Tensor:
        row = x[0] * 1
        work = dist.all_reduce(row, async_op=True)
        if late:
            work.wait()
        kept = row.numpy().copy()
        if not late:
            work.wait()
        return torch.tensor(kept)

    return made


COPIES = {
    "copy": np.ndarray.copy,
    "array": np.array,
    "elements": lambda array: [array[i] for i in range(4)],
    "list": np.ndarray.tolist,
    "joined": lambda array: np.concatenate([array[:2], array[2:]]),
}


def written_known(x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(4)
    with contextlib.suppress(ValueError):
        table.numpy()[1] = 5
    return table


def written_before(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(4.0)
    with contextlib.suppress(ValueError):
        table.numpy()[:] = 0
    return table.mul_(0)


def written_unknown(x: torch.Tensor) -> torch.Tensor:
    row = x[0] * 1
    with contextlib.suppress(ValueError):
        row.numpy()[0] = 5
    return row + 0


def written_large(x: torch.Tensor) -> torch.Tensor:
    rows = x.repeat(5, 1)
    with contextlib.suppress(ValueError):
        rows.__array__().fill(5)
    return rows[0]


def forgotten(x: torch.Tensor) -> torch.Tensor:
    table = torch.ones(4)
    array = table.numpy()
    table.copy_(x[0])
    return torch.tensor(array)


def buffer(late: bool) -> Made:
    """An array that is a tensor's memory, and into which NumPy writes before it is, or later."""

    def made(x: torch.Tensor) -> torch.Tensor:
        array = np.zeros(4, dtype=np.float32)
        array[1] = 0 if late else 5
        table = torch.from_numpy(array)
        y = table + x
        array[1] = 5
        return y + table

    return made


def verdict(left: Made, right: Made) -> str:
    def step(made: Made) -> Callable[[sp.Job], None]:
        def run(job: sp.Job) -> None:
            job.start(torch.nn.Linear(1, 1))
            x = job.batch["x"]
            job.end(outputs={"y": x + made(x)})

        return run

    return str(sp.verify(step(left), step(right), world_size=1, batch=BATCH).verdict)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (known, lambda x: torch.tensor([0.0, 3.0, 6.0, 9.0]), "proved"),
        (known, lambda x: torch.tensor([0.0, 1.5, 3.0, 4.5]), "refuted"),
        (unknown, lambda x: x[0] + 1, "proved"),
        (unknown, lambda x: x[0] + 0, "refuted"),
        (written_known, lambda x: torch.zeros(4), "invalid input"),
        (written_before, lambda x: torch.zeros(4), "invalid input"),
        (written_unknown, lambda x: x[0] + 0, "invalid input"),
        (written_large, lambda x: x[0] + 0, "invalid input"),
        (buffer(False), lambda x: x + torch.tensor([0.0, 10.0, 0.0, 0.0]), "proved"),
        (buffer(True), lambda x: x + 0, "invalid input"),
        (forgotten, lambda x: torch.ones(4), "invalid input"),
    ],
)
def test_an_array_is_the_memory_of_its_tensor(left: Made, right: Made, expected: str) -> None:
    assert verdict(left, right) == expected


@pytest.mark.parametrize("kind", COPIES)
def test_what_is_copied_out_of_an_array_is_not_what_is_written_later(kind: str) -> None:
    """Nobody tells a number of the array that it was copied: before the memory is written both are
    one, and afterwards it is refused."""
    assert verdict(copied(COPIES[kind], late=False), lambda x: x[0] + 0) == "proved"
    assert verdict(copied(COPIES[kind], late=False), lambda x: x[0] + 1) == "refuted"
    assert verdict(copied(COPIES[kind], late=True), lambda x: x[0] + 1) == "invalid input"


@pytest.mark.parametrize(("late", "expected"), [(True, "proved"), (False, "invalid input")])
def test_a_copy_made_before_the_wait_is_not_the_sum(late: bool, expected: str) -> None:
    assert verdict(lambda x: x[0] * 1, reduced(late)) == expected


def written_back(made: Callable[[np.ndarray], torch.Tensor]) -> Made:
    """A tensor that is made of the array of another one is written, and the other one read."""

    def step(x: torch.Tensor) -> torch.Tensor:
        row = x[0] * 1
        made(row.numpy()).add_(1)
        return row + 0

    return step


def every_second(x: torch.Tensor) -> torch.Tensor:
    row = x[0] * 1
    row[1::2] += 1
    return row + 0


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (torch.from_numpy, lambda x: x[0] + 1),
        (torch.as_tensor, lambda x: x[0] + 1),
        (torch.tensor, lambda x: x[0] + 0),
        (lambda array: torch.from_numpy(array[1::2]), every_second),
    ],
    ids=["from_numpy", "as_tensor", "tensor", "part"],
)
def test_a_tensor_of_an_array_of_a_tensor_is_its_memory(
    made: Callable[[np.ndarray], torch.Tensor], expected: Made
) -> None:
    # Looked up when the step runs: the recorder has its own.
    called = made if made.__name__ == "<lambda>" else lambda x: getattr(torch, made.__name__)(x)
    assert verdict(written_back(called), expected) == "proved"
    assert verdict(written_back(called), lambda x: expected(x) + x[1]) == "refuted"
