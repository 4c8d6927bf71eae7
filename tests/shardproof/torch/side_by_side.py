"""Small models in whose sequences different values lie side by side: class tokens, prefixes, images
before text, queries for what is hidden.  Their attention may be divided over ranks by heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH, WORDS, LENGTH, PATCHES = 8, 11, 6, 4

Batch = Mapping[str, torch.Tensor]


class Attention(nn.Module):
    """Of some heads, divided over ``ranks``; ``mistake``: the gradient of what it reads stays a part
    on each rank."""

    def __init__(self, ranks: int = 1, mistake: bool = False, heads: int = 2) -> None:
        super().__init__()
        own = WIDTH // ranks
        self.heads, self.ranks, self.mistake = heads // ranks, ranks, mistake
        self.q, self.k = nn.Linear(WIDTH, own), nn.Linear(WIDTH, own, bias=False)
        self.v, self.o = nn.Linear(WIDTH, own), nn.Linear(own, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(
        self, x: torch.Tensor, causal: bool = False, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.ranks > 1 and not self.mistake:
            x = CopyTo.apply(x)
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        y = self.o(y.transpose(1, 2).flatten(2))
        return (ReduceFrom.apply(y) if self.ranks > 1 else y) + self.bias


class Block(nn.Module):
    """Attention between a norm and a residual; ``joins``: then another norm and a linear layer."""

    def __init__(
        self, ranks: int = 1, mistake: bool = False, heads: int = 2, joins: bool = False
    ) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(ranks, mistake, heads)
        self.behind, self.mix = (
            (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) if joins else ((), ())
        )

    def forward(
        self, x: torch.Tensor, causal: bool = False, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = x + self.attention(self.norm(x), causal, mask)
        return x + self.mix(self.behind(x)) if isinstance(self.mix, nn.Linear) else x


class Sided(nn.Module, ABC):
    """A model with a loss of a batch; ``batch``: of so many rows."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__()
        self.block = Block(ranks, mistake)

    @abstractmethod
    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch."""

    @staticmethod
    def batch(rows: int) -> dict[str, sp.TensorSpec]:
        return {"ids": sp.tensor((rows, LENGTH), torch.long, low=0, high=WORDS - 1)}


class ClassToken(Sided):
    """One token before patches of an image, which alone is classified."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.patch, self.head = nn.Conv2d(1, WIDTH, 2, 2), nn.Linear(WIDTH, 3)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))

    def loss(self, batch: Batch) -> torch.Tensor:
        x = self.patch(batch["x"]).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return F.cross_entropy(self.head(self.block(x)[:, 0]), batch["y"])

    @staticmethod
    def batch(rows: int) -> dict[str, sp.TensorSpec]:
        return {
            "x": sp.tensor((rows, 1, 4, 4)),
            "y": sp.tensor((rows,), torch.long, low=0, high=2),
        }


class FirstToken(Sided):
    """The first of the words is classified; all of them are of type 0."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.types, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def loss(self, batch: Batch) -> torch.Tensor:
        ids = batch["ids"]
        x = self.words(ids) + self.types(torch.zeros_like(ids))
        x = self.block(self.norm(x + self.places(torch.arange(LENGTH))))
        return F.cross_entropy(self.head(x[:, 0]), batch["y"])

    @staticmethod
    def batch(rows: int) -> dict[str, sp.TensorSpec]:
        return Sided.batch(rows) | {"y": sp.tensor((rows,), torch.long, low=0, high=2)}


class Prefix(Sided):
    """Three learned positions before the words, causal."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.words, self.prefix = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(3, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def loss(self, batch: Batch) -> torch.Tensor:
        x = self.words(batch["ids"])
        x = torch.cat([self.prefix[None].expand(x.shape[0], -1, -1), x], 1)
        x = self.head(self.block(x, causal=True)[:, 3:-1])
        return F.cross_entropy(x.flatten(0, 1), batch["ids"][:, 1:].flatten())


class Visible(Sided):
    """Three words are visible to all others, which are causal; the mask is of booleans."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def loss(self, batch: Batch) -> torch.Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        mask[:, :3] = True
        x = self.head(self.block(self.words(batch["ids"]), mask=mask)[:, 2:-1])
        return F.cross_entropy(x.flatten(0, 1), batch["ids"][:, 3:].flatten())


class Decoder(Sided):
    """All words but the last, causal."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.words = nn.Embedding(WORDS, WIDTH)

    def loss(self, batch: Batch) -> torch.Tensor:
        ids = batch["ids"]
        x = self.block(self.words(ids)[:, :-1], causal=True) @ self.words.weight.T
        return F.cross_entropy(x.flatten(0, 1), ids[:, 1:].flatten())


class TwoAhead(Sided):
    """The next word, and then the one behind it; the losses are of positions that overlap."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.words, self.then = nn.Embedding(WORDS, WIDTH), Attention(ranks, mistake)

    def loss(self, batch: Batch) -> torch.Tensor:
        ids, table = batch["ids"], self.words.weight.T
        x = self.block(self.words(ids), causal=True)
        y = x[:, :-1] + self.then(x[:, :-1], causal=True)
        one = F.cross_entropy((x[:, :-1] @ table).flatten(0, 1), ids[:, 1:].flatten())
        return one + F.cross_entropy((y[:, :-1] @ table).flatten(0, 1), ids[:, 2:].flatten())


class Hidden(Sided):
    """What a part of the patches says of the others, for which there are learned queries."""

    def __init__(self, ranks: int = 1, mistake: bool = False) -> None:
        super().__init__(ranks, mistake)
        self.block = Block(ranks, mistake, heads=4)
        self.patch, self.query = nn.Linear(3, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.decoder = Block(ranks, mistake, heads=4, joins=True)

    def loss(self, batch: Batch) -> torch.Tensor:
        x = self.patch(batch["x"])
        with torch.no_grad():
            target = self.block(x)[:, 2:]
        x = torch.cat([self.block(x[:, :2]), self.query.expand(x.shape[0], PATCHES - 2, -1)], 1)
        return ((self.decoder(x)[:, 2:] - target) ** 2).mean()

    @staticmethod
    def batch(rows: int) -> dict[str, sp.TensorSpec]:
        return {"x": sp.tensor((rows, PATCHES, 3))}
