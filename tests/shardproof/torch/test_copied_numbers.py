"""Copies of numbers that nobody knows are no numbers either: `copy`, `pickle`, exchanged objects."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.printed import require_printed  # noqa: E402

BATCH = {"x": sp.tensor((4, 3))}


def exchanged(number: Any) -> Any:
    numbers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return sum(numbers) / len(numbers)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.copy,
    "copied with what holds it": lambda number: copy.deepcopy({"loss": number})["loss"],
    "pickled": lambda number: pickle.loads(pickle.dumps(number)),
    "exchanged": exchanged,
}


def verified(folder: Path, factor: Callable[[Any], Any]) -> sp.Result:
    """Each rank's loss counts as often as a factor of its number says; on one device once more
    than half of its number."""

    def step(job: sp.Job, scaled: Callable[[Any], Any]) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = model(job.batch["x"]).square().mean()
        (loss * scaled(loss)).backward()
        job.end(loss=loss)

    return locally(
        folder,
        lambda job: step(job, lambda loss: 1 + loss.detach() / 2),
        lambda job: step(job, lambda loss: factor(loss.item())),
        BATCH,
    )


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_not_compared(name: str, tmp_path: Path) -> None:
    result = verified(tmp_path, lambda number: 2.0 if COPIES[name](number) > 1 else 1.0)
    assert result.verdict == "invalid input", sp.told(result)
    assert "that depends on the inputs of the step" in result.reason


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_printed(name: str, tmp_path: Path) -> None:
    def factor(number: Any) -> Any:
        require_printed(f"{COPIES[name](number):.2f}", "n/a")
        return 1 + number / 2

    assert verified(tmp_path, factor).verdict == "proved"


@pytest.mark.parametrize("name", ["copied", "copied with what holds it"])
def test_a_copy_on_the_same_rank_is_the_number(name: str, tmp_path: Path) -> None:
    assert verified(tmp_path, lambda number: 1 + COPIES[name](number) / 2).verdict == "proved"
    wrong = verified(tmp_path / "wrong", lambda number: 1 + COPIES[name](number))
    assert wrong.verdict == "refuted"


def test_memory_is_not_given_to_another_library(tmp_path: Path) -> None:
    def factor(number: Any) -> Any:
        return 1 + np.from_dlpack(torch.ones(2) * number)[0] / 2

    result = verified(tmp_path, factor)
    assert result.verdict == "invalid input", sp.told(result)
    assert "given the memory of a tensor" in result.reason
