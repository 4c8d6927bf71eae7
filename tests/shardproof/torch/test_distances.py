"""A bias for every distance of two positions of a window, looked up by the distance itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.divided_rows import trained  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

ROWS, WINDOW, WIDTH = 4, 3, 4
Tensor = torch.Tensor
#: Of a table of biases and the distances of queries and keys, the biases.
Look = Callable[[nn.Embedding, Tensor], Tensor]


def _embedded(table: nn.Embedding, apart: Tensor) -> Tensor:
    made: Tensor = table(apart).squeeze(-1)
    return made


def _indexed(table: nn.Embedding, apart: Tensor) -> Tensor:
    return table.weight[apart][..., 0]


def _heads_first(table: nn.Embedding, apart: Tensor) -> Tensor:
    return table.weight.T[:, apart]


class Biased(nn.Module):
    """Attention inside of a window; ``turned``: the bias of key and query."""

    def __init__(self, look: Look, turned: bool) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Embedding(2 * WINDOW - 1, 1)
        self.look, self.turned = look, turned

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(WINDOW)
        apart = places[:, None] - places[None, :] + WINDOW - 1
        bias = self.look(self.bias, apart.T if self.turned else apart)
        made: Tensor = (q @ k.transpose(1, 2) + bias).softmax(-1) @ v
        return made


@pytest.mark.parametrize(
    ("look", "turned", "verdict"),
    [
        (_embedded, False, "proved"),
        (_embedded, True, "refuted"),
        (_indexed, False, "proved"),
        (_indexed, True, "refuted"),
        (_heads_first, False, "proved"),
        (_heads_first, True, "refuted"),
    ],
)
def test_a_bias_of_distances(tmp_path: Path, look: Look, turned: bool, verdict: str) -> None:
    step = trained(lambda job: Biased(look, turned and job.world_size > 1))
    made = locally(tmp_path, step, step, {"x": sp.tensor((ROWS, WINDOW, WIDTH))})
    assert made.verdict == verdict
