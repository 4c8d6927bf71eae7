"""Images that are turned along two dimensions (windows of attention that are shifted, as in Swin)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.divided_rows import trained

ROWS, SIDE, WINDOW, WIDTH = 4, 4, 2, 4


class Shifted(nn.Module):
    """Attention in windows of an image that is turned by one position, and back."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, count = x.shape[0], SIDE // WINDOW
        turned = torch.roll(x, (-self.by, -1), (1, 2))
        windows = turned.view(rows, count, WINDOW, count, WINDOW, WIDTH).transpose(2, 3)
        q, k, v = self.qkv(windows.reshape(-1, WINDOW * WINDOW, WIDTH)).chunk(3, -1)
        mixed = self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
        back = mixed.view(rows, count, count, WINDOW, WINDOW, WIDTH).transpose(2, 3)
        return x + torch.roll(back.reshape(rows, SIDE, SIDE, WIDTH), (self.by, 1), (1, 2))


@pytest.mark.parametrize(("by", "verdict"), [(1, "proved"), (2, "refuted")])
def test_rows_of_turned_images_are_divided(by: int, verdict: str) -> None:
    batch = {"x": sp.tensor((ROWS, SIDE, SIDE, WIDTH))}
    result = sp.verify(
        trained(lambda _: Shifted(1)), trained(lambda _: Shifted(by)), world_size=2, batch=batch
    )
    assert result.verdict == verdict, sp.told(result)
