"""Functions that `torch.func` differentiates, which ask for the batch themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.func import grad, jvp  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.traps.parts import BATCH, Loss, step  # noqa: E402


def by_hand(w: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    x = batch["x"]
    slope = (w * x).cos() * x
    return (slope * batch["y"][0]).sum() + (slope * slope).sum()


def transformed(twice: bool) -> Loss:
    def loss(w: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        def wave(w: Tensor) -> Tensor:
            return (w * batch["x"]).sin()

        slope = grad(lambda w: wave(w).sum())(w)
        forward = jvp(wave, (w,), (batch["y"][0],))[1]
        total: Tensor = forward.sum() + (slope * slope).sum() * (2 if twice else 1)
        return total

    return loss


@pytest.mark.parametrize("twice", [False, True])
def test_transformed_functions_are_recorded(twice: bool, tmp_path: Path) -> None:
    one, other = step(by_hand), step(transformed(twice))
    result = sp.verify(one, other, world_size=1, batch=BATCH, out=tmp_path / "run", cache=False)
    assert result.verdict == ("refuted" if twice else "proved"), sp.told(result)
