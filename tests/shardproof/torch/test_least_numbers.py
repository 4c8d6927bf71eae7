"""A mask of the batch, of whole numbers, by which the least number of a type hides scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH, LENGTH, HEADS = 4, 3, 2
LEAST = torch.finfo(torch.float32).min
BATCH = {
    "x": sp.tensor((2, LENGTH, WIDTH)),
    "mask": sp.tensor((2, LENGTH), torch.long, low=0, high=2),
}

Added = Callable[[Tensor], Tensor]
#: What is added to scores, of a mask [rows, 1, 1, keys] that is 1 where a key is shown.
ADDED: dict[str, Added] = {
    "product": lambda mask: (1.0 - mask.float()) * LEAST,
    "product with a comparison": lambda mask: (mask == 0).float() * LEAST,
    "zeros that are filled": lambda mask: torch.zeros(2, 1, 1, LENGTH).masked_fill(
        mask == 0, LEAST
    ),
}


class Attention(nn.Module):
    def __init__(self, ranks: int, added: Added) -> None:
        super().__init__()
        self.ranks, self.heads, self.added = ranks, HEADS // ranks, added
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH // ranks, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH // ranks, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.ranks > 1:
            x = CopyTo.apply(x)
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(2, 3) + self.added(mask[:, None, None, :])
        y = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return ReduceFrom.apply(y) if self.ranks > 1 else y


def step(ranks: int, added: Added):
    def one(job: sp.Job) -> None:
        own = WIDTH // ranks
        at = {"start": own * job.rank, "size": own}
        parts = {f"{n}.weight": sp.piece(f"{n}.weight", dim=0, **at) for n in "qkv"}
        parts["o.weight"] = sp.piece("o.weight", dim=1, **at)
        model = Attention(ranks, added)
        job.start(model, parameters=parts if ranks > 1 else None)
        loss = F.mse_loss(model(job.batch["x"], job.batch["mask"]), job.batch["x"])
        loss.backward()
        job.end(loss=loss)

    return one


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_keys_are_hidden_by_the_least_number(added: Added) -> None:
    result = sp.verify(step(1, added), step(2, added), world_size=2, batch=BATCH)
    assert result.verdict == "proved", sp.told(result)


def test_other_keys_that_are_hidden_are_refuted() -> None:
    right, wrong = ADDED["product"], lambda mask: mask.float() * LEAST
    result = sp.verify(step(1, right), step(2, wrong), world_size=2, batch=BATCH)
    assert result.verdict == "refuted", sp.told(result)
