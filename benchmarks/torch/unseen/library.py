"""PyTorch's own layers and their copies under data parallelism by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, averaged, floats, rows

WIDTH, HEADS, INNER = 8, 2, 16


def case(
    name: str,
    model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor],
    batch: dict[str, sp.TensorSpec],
) -> Case:
    """The gradients as their mean over two ranks; wrong: the loss of the first rank's rows on both,
    and gradients of its own rows on each."""

    def single(job: sp.Job) -> None:
        own = model()
        job.start(own)
        value = loss(own, [job.batch[name] for name in batch])
        value.backward()
        job.end(loss=value)

    def parallel(mistake: str = "") -> Step:
        def step(job: sp.Job) -> None:
            own = model()
            job.start(own)
            at = 0 if mistake == "rows of the first rank" else job.rank
            value = loss(own, rows(job, *batch, at=at))
            value.backward()
            if mistake != "not reduced":
                averaged(own)
            job.end(loss=value)

        return step

    wrong = {m: parallel(m) for m in ("rows of the first rank", "not reduced")}
    return Case(name, single, parallel(), wrong, batch)


def squares(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    *inputs, target = batch
    return F.mse_loss(model(*inputs), target)


class Decoded(nn.Module):
    """The first positions of one tensor, causally, with keys of its last ones beside them."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.layer = nn.TransformerDecoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(self.length)
        own, memory = x[:, : self.length], x[:, self.length :]
        return self.layer(own, memory, tgt_mask=mask, tgt_is_causal=True)  # type: ignore[no-any-return]


class Translated(nn.Module):
    """`nn.Transformer`, which copies its layers from one each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(WIDTH, HEADS, 1, 1, INNER, dropout=0.0, batch_first=True)

    def forward(self, source: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(source, x, tgt_mask=mask)  # type: ignore[no-any-return]


TRANSLATED = case(
    "nn.Transformer with a causal mask",
    Translated,
    squares,
    floats(source=(4, 2, WIDTH), x=(4, 3, WIDTH), y=(4, 3, WIDTH)),
)
HALVES = case(
    "a decoder layer of two parts of one tensor",
    lambda: Decoded(2),
    squares,
    floats(x=(4, 4, WIDTH), y=(4, 2, WIDTH)),
)


class Patches(nn.Module):
    """A vision transformer: patches by convolution, a class token before them, learned positions;
    the class token or the mean goes to the head."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 5, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        h = self.norm(self.layers(h))
        return self.head(h.mean(1) if self.mean else h[:, 0])  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A class token before rows of features, with an attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.positions = nn.Parameter(torch.zeros(1, 4, 4))
        self.inner, self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), self.inner(x)], 1) + self.positions
        y = self.norm(h)
        q, k, v = (w(y).unflatten(-1, (2, 2)).transpose(1, 2) for w in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.head((h + self.o(out.transpose(1, 2).flatten(2)))[:, 0])  # type: ignore[no-any-return]


def entropy(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, labels = batch
    return F.cross_entropy(model(x), labels)


def labelled(classes: int, **shape: tuple[int, ...]) -> dict[str, sp.TensorSpec]:
    return {**floats(**shape), "y": sp.tensor((4,), torch.int64, low=0, high=classes)}


CLASSED, POOLED = (
    case(
        f"vision transformer of nn's layers, {name}",
        lambda mean=mean: Patches(mean=mean),  # type: ignore[misc]
        entropy,
        labelled(10, x=(4, 3, 4, 4)),
    )
    for name, mean in (("class token", False), ("mean of all", True))
)
TOKENS = case("a class token before features", Tokens, entropy, labelled(3, x=(4, 3, 4)))

CASES = [TRANSLATED, HALVES, CLASSED, POOLED, TOKENS]
