"""Recurrent layers whose two biases have one gradient, added up in two ways, and what an optimizer
makes of its square."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402

BATCH = {name: sp.tensor((4, 3, 2)) for name in ("x", "y")}


def step(layer: Callable[..., nn.Module], ranks: int, decay: float = 0.99) -> Step:
    def run(job: sp.Job) -> None:
        own = layer(2, 2, batch_first=True)
        model = own if ranks == 1 else DistributedDataParallel(own)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=decay)
        job.start(model, optimizer)
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        loss = nn.functional.mse_loss(model(x)[0], y)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
def test_squares_of_gradients_of_both_biases(
    tmp_path: Path, layer: Callable[..., nn.Module]
) -> None:
    right = locally(tmp_path / "right", step(layer, 1), step(layer, 2), BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = locally(tmp_path / "wrong", step(layer, 1), step(layer, 2, 0.9), BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)
